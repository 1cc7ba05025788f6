"""Rules that come back to what was doubtful before the first step: the data, and the settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.record import History, tags

_SETTING = "setting "
"""Begin of the name of a check that is about a setting."""


def _warnings(history: History) -> Iterator[Mapping[str, Any]]:
    return (event for event in history.events(tags.DATA_CHECK) if event.get("severity") == "warning")


@dataclass(frozen=True, kw_only=True)
class DoubtfulData(HealthRule):
    """The check of the data before the first step had warned; it is the first suspect of a bad result."""

    severity: ClassVar[Severity] = "note"
    remedy: ClassVar[str] = "Follow the advice of the check; `fieldwatch doctor --data` shows all of its findings."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a note for each warning of the check; a bad result makes it as serious as the result."""
        return tuple(
            _of_event(self, event, str(event.get("name", "")))
            for event in _warnings(history)
            if not str(event.get("name", "")).startswith(_SETTING)
        )


@dataclass(frozen=True, kw_only=True)
class DoubtfulSetting(HealthRule):
    """A rate, weight or threshold is far from that of the preset; it is the first suspect of a bad result."""

    severity: ClassVar[Severity] = "note"
    remedy: ClassVar[str] = "Use the value of the preset."

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a note for each such setting; a bad result makes it as serious as the result."""
        return tuple(
            _of_event(self, event, str(event["name"]).removeprefix(_SETTING))
            for event in _warnings(history)
            if str(event.get("name", "")).startswith(_SETTING)
        )


def _of_event(rule: HealthRule, event: Mapping[str, Any], subject: str) -> Finding:
    # What spoils a run for certain needs no bad figure to be said.
    severity: Severity = "warning" if event.get("certain") else "note"
    finding = rule.finding(int(event["step"]), str(event.get("message", "")), subject=subject, severity=severity)
    return replace(finding, remedy=str(event.get("remedy") or rule.remedy))
