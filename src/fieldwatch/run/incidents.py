"""Damaged checkpoints that a run passed over when it began, until they can be told: after the record was rewound."""

from pathlib import Path

from fieldwatch.checkpoint import Incident
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.start import refuse_step_0


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
