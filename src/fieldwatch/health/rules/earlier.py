"""Rule for runs whose result is far behind that of an earlier run of the same program on the same data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding
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

    The finding names what differs between the two: settings, lines of the user's code, versions.

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
        "Go back to what the earlier run had, one difference at a time. If this is another experiment, give it another "
        "parent folder."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding, at the end of the run."""
        events = history.events(self.kind)
        if not events or not finished(history):
            return ()
        event = events[-1]
        if event["times"] < self.times and event["share"] < self.share:
            return ()
        here = number(event["here"], _DIGITS)
        there = number(event["there"], _DIGITS)
        text = (
            f"{event['metric']} ends at {here}; in the earlier run {event['run']} it was {there}{_by_how_much(event)}. "
            f"{_differences(event)}"
        )
        found = self.finding(history.step, text, subject=str(event["metric"]))
        return (replace(found, remedy=_remedy(event)),)


def _by_how_much(event: Mapping[str, Any]) -> str:
    if event["times"] > 1:
        return f" ({number(event['times'], 2)} times the error)"
    return f" ({percent(event['share'], 0)} of its gain is missing)"


def _differences(event: Mapping[str, Any]) -> str:
    """Return a sentence about what differs between the runs."""
    parts = [f"{name} ({old} there, {new} here)" for name, old, new in event["settings"][:_SHOWN]]
    more = len(event["settings"]) - len(parts) + event["further_settings"]
    parts += [f"{more} more settings"] if more else []
    code = [_line(*each) for each in event["code"][:_SHOWN]]
    more = (event["changed_places"] or 0) - len(code)
    parts += code + ([f"{more} {'more ' if code else ''}places in the code"] if more else [])
    parts += [f"{name} {old or 'absent'} there, {new or 'absent'} here" for name, old, new in event["versions"]]
    unknown = "" if event["changed_places"] is not None else " The source of the runs is not known."
    same = f" Their losses are equal up to step {event['same_until']:,}." if event["same_until"] >= 0 else ""
    if parts:
        return f"They differ in {'; '.join(parts)}.{unknown}{same}"
    return f"Their settings{'' if unknown else ', code'} and versions are the same.{unknown}{same}"


def _line(file: str, line: int, was: str, now: str) -> str:
    if not was:
        return f"{file}:{line}, new: {now}"
    return f"{file}:{line}, was: {was}" + (f", is: {now}" if now else ", is gone")


def _remedy(event: Mapping[str, Any]) -> str:
    """Return the advice that fits the differences."""
    advice: list[str] = []
    if event["settings"]:
        values = ", ".join(f"{name} to {old}" for name, old, _ in event["settings"][:_SHOWN])
        advice.append(f"Set {values}, as in {event['run']}, or find out which of them matters.")
    if event["code"]:
        places = ", ".join(f"{file}:{line}" for file, line, _, _ in event["code"][:_SHOWN])
        advice.append(f"Look at {places}: {event['run']} had other code there (code.zip in both folders).")
    elif event["changed_places"]:
        advice.append("Compare the files in code.zip of both folders.")
    if not advice:
        advice.append("Compare the data of both runs (order, normalization, labels), and their devices.")
    return " ".join([*advice, f"`{event['command']}` shows both."])
