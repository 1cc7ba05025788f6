"""Rules for runs whose result is far behind that of an earlier run of the same program on the same data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History

_SHOWN = 3
"""Number of settings and of changed lines that are named."""
_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class WorseThanEarlier(HealthRule):
    """The result is far behind that of an earlier run in the same parent folder, of the same program on the same data.

    Attributes:
        kind: kind of the event to judge.
    """

    kind: str = "earlier_run"
    times: float = threshold(
        2.0, unit="times the error", reason="3 dB of PSNR; other seeds and small changes of settings stay below it"
    )
    share: float = threshold(
        0.5, unit="fraction of what the earlier run gained", reason="for scores and returns without a best value"
    )
    remedy: ClassVar[str] = (
        "Compare the data of both runs (order, normalization, labels), their seeds and their devices. If this is "
        "another experiment, give it another parent folder."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding, at the end of the run, if nothing is known that differs between the runs."""
        event = self._far_behind(history)
        if event is None or _differs(event):
            return ()
        known = "settings, code and versions" if event["changed_places"] is not None else "settings and versions"
        text = f"{_result(event)} Their {known} are the same.{_same_losses(event)}"
        found = self.finding(history.step, text, subject=str(event["metric"]))
        return (replace(found, remedy=f"{self.remedy} `{event['command']}` shows both."),)

    def _far_behind(self, history: History) -> Mapping[str, Any] | None:
        """Return the event of a finished run that is far behind."""
        events = history.events(self.kind)
        if not events or not finished(history):
            return None
        event = events[-1]
        return event if event["times"] >= self.times or event["share"] >= self.share else None


@dataclass(frozen=True, kw_only=True)
class WorseSinceChange(WorseThanEarlier):
    """The result is far behind that of an earlier run, and settings, the user's code or versions differ between them.

    The finding names what differs. It is a note if many settings differ: then it is another experiment.
    """

    settings: int = threshold(3, unit="settings", reason="another preset or model changes more of them at once")
    remedy: ClassVar[str] = (
        "Go back to what the earlier run had, one difference at a time. If this is another experiment, give it another "
        "parent folder."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding, at the end of the run."""
        event = self._far_behind(history)
        if event is None or not _differs(event):
            return ()
        text = f"{_result(event)} They differ in {_differences(event)}.{_same_losses(event)}"
        severity: Severity = (
            "note" if len(_without_seed(event)) + event["further_settings"] > self.settings else "warning"
        )
        found = self.finding(history.step, text, subject=str(event["metric"]), severity=severity)
        return (replace(found, remedy=_remedy(event)),)


def _differs(event: Mapping[str, Any]) -> bool:
    """Return whether anything but the seed is known to differ."""
    return bool(_without_seed(event) or event["changed_places"] or event["versions"])


def _without_seed(event: Mapping[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Return name, earlier value and value of the listed settings without the seed."""
    return [(name, old, new) for name, old, new in event["settings"] if "seed" not in str(name)]


def _result(event: Mapping[str, Any]) -> str:
    """Return a sentence about both results."""
    here = number(event["here"], _DIGITS)
    there = number(event["there"], _DIGITS)
    by = f"{number(event['times'], 2)} times the error" if event["times"] > 1 else ""
    by = by or f"{percent(event['share'], 0)} of its gain is missing"
    return f"{event['metric']} ends at {here}; in the earlier run {event['run']} it was {there} ({by})."


def _same_losses(event: Mapping[str, Any]) -> str:
    if event["same_until"] < 0:
        return ""
    return f" Their losses are equal up to step {event['same_until']:,}."


def _differences(event: Mapping[str, Any]) -> str:
    """Return what differs between the runs, as a list in words."""
    parts = [f"{name} ({old} there, {new} here)" for name, old, new in event["settings"][:_SHOWN]]
    more = len(event["settings"]) - len(parts) + event["further_settings"]
    parts += [f"{more} more settings"] if more else []
    code = [_line(*each) for each in event["code"][:_SHOWN]]
    more = (event["changed_places"] or 0) - len(code)
    parts += code + ([f"{more} {'more ' if code else ''}places in the code"] if more else [])
    parts += [f"{name} ({old or 'absent'} there, {new or 'absent'} here)" for name, old, new in event["versions"]]
    return "; ".join(parts)


def _line(file: str, line: int, was: str, now: str) -> str:
    if not was:
        return f"{file}:{line}, new: {now}"
    return f"{file}:{line}, was: {was}" + (f", is: {now}" if now else ", is gone")


def _remedy(event: Mapping[str, Any]) -> str:
    """Return the advice that fits the differences."""
    advice: list[str] = []
    settings = _without_seed(event)
    if settings:
        values = ", ".join(f"{name} to {old}" for name, old, _ in settings[:_SHOWN])
        advice.append(f"Set {values}, as in {event['run']}, or find out which of them matters.")
    if event["code"]:
        places = ", ".join(f"{file}:{line}" for file, line, _, _ in event["code"][:_SHOWN])
        advice.append(f"Look at {places}: {event['run']} had other code there (code.zip in both folders).")
    elif event["changed_places"]:
        advice.append("Compare the files in code.zip of both folders.")
    if event["versions"]:
        advice.append(
            f"Install {', '.join(f'{name} {old}' for name, old, _ in event['versions'])} to see if it matters."
        )
    return " ".join([*advice, f"`{event['command']}` shows both."])
