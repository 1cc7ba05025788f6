"""Rules for incidents that a run survived: rollbacks and failed evaluations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class RolledBack(HealthRule):
    """The run rolled back to its last good state and continued at half the learning rate or without the bad updates.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "rolled_back"
    remedy: ClassVar[str] = (
        "Check what changed shortly before (a stage, a learning rate, a view). If it happens again, train with a lower "
        "learning rate from the start."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per rollback."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('cause')}: the run rolled back from {event.get('from')} steps to the state after "
                f"{event.get('to')}; {_what_changed(event)}.",
                subject=self.kind,
            )
            for event in history.events(self.kind)
        )


def _what_changed(event: Mapping[str, Any]) -> str:
    if "rate_factor" in event:
        return f"its learning rates are now {event['rate_factor']:g} times those of the schedule"
    skipped = event.get("skipped")
    return f"the updates of steps {skipped[0]} to {skipped[1]} are skipped" if skipped else "no update is skipped"


@dataclass(frozen=True, kw_only=True)
class ValidationFailed(HealthRule):
    """An evaluation, a mesh extraction or an image failed; training continued.

    Attributes:
        kind: kind of the events to report.
    """

    kind: str = "validation_failed"
    remedy: ClassVar[str] = (
        "Read the traceback in the given file. If memory ran out, evaluate fewer points at a time or extract a coarser "
        "mesh. The training itself is not affected."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per failure."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('what', 'validation')} failed: {event.get('reason')} (see {event.get('file')}).",
                subject=str(event.get("what", self.kind)),
            )
            for event in history.events(self.kind)
        )
