"""What a run uses and no checkpoint holds."""

from dataclasses import dataclass
from typing import ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class NotKept(HealthRule):
    """A run uses an optimizer, a model, a schedule or a data order that no checkpoint holds: a resume is another run.

    Attributes:
        kind: events that name what is not kept.
    """

    kind: str = "not_kept"
    remedy: ClassVar[str] = (
        "Give it to run.track(...) before the loop. docs/adopt.md says what to keep, and which loader "
        "has a position to keep."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding for each thing that is not kept."""
        events = {str(event.get("subject", "")): event for event in reversed(history.events(self.kind))}
        return tuple(
            self.finding(int(event["step"]), str(event.get("reason", "")), subject=subject)
            for subject, event in events.items()
        )
