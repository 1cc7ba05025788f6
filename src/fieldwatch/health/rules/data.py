"""The rule that comes back to what the check of the data found before the first step."""

from dataclasses import dataclass, replace
from typing import ClassVar

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History, tags


@dataclass(frozen=True, kw_only=True)
class DoubtfulData(HealthRule):
    """The check of the data before the first step had warned; it is the first suspect of a bad result."""

    severity: ClassVar[Severity] = "note"
    remedy: ClassVar[str] = "Follow the advice of the check; `fieldwatch doctor --data` shows all of its findings."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a note for each warning of the check; a bad result makes it as serious as the result."""
        return tuple(
            replace(
                self.finding(int(event["step"]), str(event.get("message", "")), subject=str(event.get("name", ""))),
                remedy=str(event.get("remedy") or self.remedy),
            )
            for event in history.events(tags.DATA_CHECK)
            if event.get("severity") == "warning"
        )
