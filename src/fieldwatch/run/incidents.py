"""Damaged checkpoints that were skipped when a run began; they are recorded once the record is rewound."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldwatch.checkpoint import Incident, NoWayBackError
from fieldwatch.record import CHECKPOINTS, checkpoint_folders, read_events
from fieldwatch.run.run_record import RunRecord


class Incidents:
    """Problems with a run's checkpoints before its loop began.

    Args:
        folder: run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._start_allowed = False

    def add_damaged(self, incident: Incident, step: int) -> None:
        """Add a damaged checkpoint, instead of which the one of ``step`` was restored."""
        message = (
            f"resumed from step {step}, because the checkpoint of step {incident.step} is damaged ({incident.reason}); "
            f"{max(incident.step - step, 0)} steps are repeated"
        )
        facts = {"what": incident.what, "reason": incident.reason, "message": message, "damaged": incident.step}
        # Events of `step` itself would be dropped if the run resumed there again.
        event_step = max(step - 1, 0)
        self._pending.append((event_step, {**facts, "resumed_from": step}))

    def add_lost(self, reason: str) -> None:
        """Add the loss of all checkpoints in the run folder, for which the mirror's is used."""
        message = f"no usable checkpoint in the run folder ({reason}); restored from the mirror"
        self._pending.append((0, {"what": "lost", "reason": reason, "message": message}))

    def add_abandoned(self, step: int, abandoned: Sequence[Incident]) -> None:
        """Add the later checkpoints that were set aside because the user continues from the one of ``step``."""
        steps = [incident.step for incident in abandoned]
        message = f"continues from step {step} as requested"
        if abandoned:
            names = ", ".join(incident.path.name for incident in abandoned)
            message += f"; the checkpoints of later steps were set aside: {names}"
        self._pending.append(
            (max(step - 1, 0), {"what": "abandoned", "message": message, "abandoned": steps, "resumed_from": step})
        )

    def allow_step_0(self) -> None:
        """Allow the run to begin at step 0, because it was restored or the user requested it."""
        self._start_allowed = True

    @property
    def start_undecided(self) -> bool:
        """Whether a start at step 0 has not been allowed yet."""
        return not self._start_allowed

    def refuse_step_0(self) -> None:
        """Refuse to begin at step 0 in a folder that contains, or once contained, a checkpoint.

        Raises:
            NoWayBackError: the folder contains or contained a checkpoint, and step 0 was not allowed.
        """
        if not self._start_allowed:
            refuse_step_0(self._folder)

    def record_all(self, record: RunRecord) -> list[str]:
        """Record the pending incidents, and return a message for each."""
        messages = list[str]()
        while self._pending:
            step, facts = self._pending.pop(0)
            record.event("incident", step, **facts)
            messages.append(str(facts["message"]))
        return messages


def refuse_step_0(folder: Path) -> None:
    """Refuse to start a run from step 0 in a folder that contains, or once contained, its checkpoints.

    Raises:
        NoWayBackError: checkpoints exist or are missing; the message says which, and what to do.
    """
    checkpoints = checkpoint_folders(folder)
    set_aside = checkpoint_folders(folder, set_aside=True)
    if checkpoints:
        reason = (
            f"{folder} holds the checkpoint {checkpoints[0].name}, but none was restored: call run.resume() before "
            "the loop"
        )
    elif set_aside:
        names = ", ".join(path.name for path in set_aside[:3])
        reason = f"{folder} has only checkpoints that were set aside ({names}): restore one of them from a backup"
    # The event log still mentions checkpoints after their folder was deleted.
    elif any(event["kind"] == "checkpoint" for event in read_events(folder)):
        reason = (
            f"the record of {folder} mentions checkpoints, but {CHECKPOINTS}/ has none: restore that folder from a "
            "backup"
        )
    else:
        return
    raise NoWayBackError(
        f"{reason}, use another run folder, or discard the training with --resume start-over "
        "(Saving(resume='start-over')), which moves its checkpoints and results aside and starts from step 0"
    )
