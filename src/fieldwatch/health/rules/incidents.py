"""What happened to a run and did not end it: it went back to an earlier state, or an evaluation failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldwatch.health.finding import Finding
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History


@dataclass(frozen=True, kw_only=True)
class RolledBack(HealthRule):
    """The run went back to its last good state; it goes on at half the rate, or without the bad updates."""

    kind: str = "rolled_back"
    remedy: ClassVar[str] = (
        "Look at what changed shortly before it (a stage, a rate, a view); if it comes again, train with a lower "
        "learning rate from the start."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each time."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('cause')}: the run went back from {event.get('from')} steps to the state after "
                f"{event.get('to')}, {_what_changed(event)}.",
                subject=self.kind,
            )
            for event in history.events(self.kind)
        )


def _what_changed(event: Mapping[str, Any]) -> str:
    if "rate_factor" in event:
        return f"its rates are now {event['rate_factor']:g} of the schedule's"
    skipped = event.get("skipped")
    return f"the updates of steps {skipped[0]} to {skipped[1]} are skipped" if skipped else "no update is skipped"


@dataclass(frozen=True, kw_only=True)
class ValidationFailed(HealthRule):
    """An evaluation, a mesh or a picture could not be made; the training went on."""

    kind: str = "validation_failed"
    remedy: ClassVar[str] = (
        "Read the traceback in the file that is named. Out of memory: evaluate fewer points at a time, or extract a "
        "coarser mesh. The training itself was not touched."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return each failure."""
        return tuple(
            self.finding(
                int(event["step"]),
                f"{event.get('what', 'validation')} failed: {event.get('reason')} (see {event.get('file')}).",
                subject=str(event.get("what", self.kind)),
            )
            for event in history.events(self.kind)
        )
