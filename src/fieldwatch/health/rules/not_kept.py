"""Rule for objects that a run uses but that are missing from its checkpoints."""

from dataclasses import dataclass
from typing import ClassVar

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class NotKept(HealthRule):
    """The run uses an optimizer, model, schedule or data order that no checkpoint holds, so a resume would differ.

    A note until the run is resumed: nothing is lost before. The loop prints it at its first step, whatever it is.

    Attributes:
        kind: kind of the events that name such objects.
    """

    severity: ClassVar[Severity] = "note"
    kind: str = "not_kept"
    remedy: ClassVar[str] = (
        "Pass it to run.track(...) before the loop. docs/adopt.md describes what to track, and which data loaders "
        "have a position that can be saved."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per object that is not saved."""
        # Reversed, so that the first event of each subject wins.
        events = {str(event.get("subject", "")): event for event in reversed(history.events(self.kind))}
        # Each part of a run records its plan when it begins.
        resumed = any(int(event["step"]) > 0 for event in history.events("plan"))
        severity: Severity = "warning" if resumed else "note"
        return tuple(
            self.finding(int(event["step"]), str(event.get("reason", "")), subject=subject, severity=severity)
            for subject, event in events.items()
        )
