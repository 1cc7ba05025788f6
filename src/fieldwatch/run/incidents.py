"""Damaged checkpoints that a run passed over when it began; they are recorded once the record is rewound."""

from pathlib import Path

from fieldwatch.checkpoint import Incident, NoWayBackError
from fieldwatch.record import CHECKPOINTS, checkpoint_folders, read_events
from fieldwatch.run.run_record import RunRecord


class Incidents:
    """What happened to a run's checkpoints before it began.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[tuple[int, dict[str, str | int]]] = []
        self._start_allowed = False

    def add_damaged(self, incident: Incident, step: int) -> None:
        """Note that a damaged checkpoint was passed over, and the one of ``step`` was used."""
        message = (
            f"resumed from step {step}, because the checkpoint of step {incident.step} is damaged ({incident.reason}); "
            f"{max(incident.step - step, 0)} steps are repeated"
        )
        facts = {"what": incident.what, "reason": incident.reason, "message": message, "damaged": incident.step}
        event_step = max(step - 1, 0)  # an event of the step itself is void when the run is resumed there again
        self._pending.append((event_step, {**facts, "resumed_from": step}))

    def add_lost(self, reason: str) -> None:
        """Note that no checkpoint of the run folder is good, and the mirror's is used."""
        message = f"no checkpoint in the run folder is good ({reason}); the mirror's is used"
        self._pending.append((0, {"what": "lost", "reason": reason, "message": message}))

    def allow_step_0(self) -> None:
        """Let the run begin at step 0 from now on: it was restored, or the user said so."""
        self._start_allowed = True

    @property
    def start_undecided(self) -> bool:
        """Whether nothing has said yet that the run may begin at step 0."""
        return not self._start_allowed

    def refuse_step_0(self) -> None:
        """Refuse to begin at step 0 in a folder that ever held a checkpoint.

        Raises:
            NoWayBackError: it did.
        """
        if not self._start_allowed:
            refuse_step_0(self._folder)

    def record_all(self, record: RunRecord) -> list[str]:
        """Record what was noted; a sentence about each, for the terminal."""
        messages = list[str]()
        while self._pending:
            step, facts = self._pending.pop(0)
            record.event("incident", step, **facts)
            messages.append(str(facts["message"]))
        return messages


def refuse_step_0(folder: Path) -> None:
    """Refuse to start a run from step 0 in a folder that ever held one of its checkpoints.

    Raises:
        NoWayBackError: it did; the message says what lies there and what can be done.
    """
    checkpoints = checkpoint_folders(folder)
    set_aside = checkpoint_folders(folder, set_aside=True)
    if checkpoints:
        reason = (
            f"{folder} holds the checkpoint {checkpoints[0].name}, and none was restored: call run.resume() before "
            "the loop"
        )
    elif set_aside:
        names = ", ".join(path.name for path in set_aside[:3])
        reason = f"{folder} has only checkpoints that were set aside ({names}): restore one of them from a copy"
    elif any(event["kind"] == "checkpoint" for event in read_events(folder)):
        reason = (
            f"the record of {folder} tells of checkpoints, and {CHECKPOINTS}/ has none: restore that folder from a copy"
        )
    else:
        return
    raise NoWayBackError(
        f"{reason}, use another run folder, or give up what was trained with --resume start-over "
        "(Saving(resume='start-over')), which moves it aside and starts from step 0"
    )
