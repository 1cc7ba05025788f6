"""Damaged checkpoints that were skipped when a run began; they are recorded once the record is rewound."""

from pathlib import Path

from fieldwatch.checkpoint import Incident
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.start import refuse_step_0


class Incidents:
    """Problems with a run's checkpoints before its loop began.

    Args:
        folder: run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: list[tuple[int, dict[str, str | int]]] = []
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
