"""Sink that prints a run's progress to the terminal: periodic status lines, and events as they occur."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console as RichConsole
from rich.text import Text

from fieldwatch.base import number, percent
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.digest import Digest, Report
from fieldwatch.record.terminal import Terminal

_STYLES = {"note": "cyan", "warning": "yellow", "error": "bold red"}
_SHOWN_EVENTS = ("finding", "refusal", "phase", "evaluation", "died", "restarted", "hung")
_FLAT = 0.005
"""Absolute relative change below which a trend is shown as flat."""


class Console:
    """Prints a status line every few seconds: step, total loss, and value, share of the total and trend of each term.

    Example: ``step 400  coarse  loss 0.0120 ↓1.0%  pixel 0.0100 83% ↓3.2%  |grad| 0.41``. Findings, refusals, phases,
    evaluations and restarts are printed immediately.

    Args:
        console: output console; by default, a :class:`~fieldwatch.record.Terminal` on standard output.
        every: minimum interval between two lines, in seconds.
        window: number of values in each of the two windows that a trend compares.
        clock: monotonic clock, in seconds.

    Raises:
        ValueError: if ``every`` is negative or ``window`` is not positive.
    """

    def __init__(
        self,
        console: RichConsole | None = None,
        *,
        every: float = 10.0,
        window: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every < 0:
            raise ValueError(f"Console: every must be at least 0 seconds, got {every}")
        self._console = console or Terminal()
        self._digest = Digest(window)
        self._every = every
        self._due = -math.inf
        self._clock = clock

    def __call__(self, block: Block) -> None:
        """Add a block, and print a status line if one is due."""
        if block.axis != "step" or not len(block):
            return
        self._digest.add(block)
        now = self._clock()
        if now >= self._due and self._digest.covers(block):
            # Schedule from now, not from the last due time, so that a pause is not followed by a burst of lines.
            self._due = now + self._every
            self._print(_line(self._digest.report(block)))

    def event(self, event: Mapping[str, Any]) -> None:
        """Print a finding, refusal, phase, evaluation or restart."""
        self._digest.event(event)
        kind = event["kind"]
        if kind in _SHOWN_EVENTS:
            message = str(event.get("message") or event.get("name") or "")
            text = Text(f"step {event['step']}  ").append(kind, _STYLES.get(str(event.get("severity")), "bold"))
            self._print(text.append(f"  {message}" if message else "").append(_remedy(event), "dim"))

    def _print(self, text: Text) -> None:
        # soft_wrap: the terminal wraps long lines, and a redirected output keeps them whole.
        self._console.print(text, soft_wrap=True)


def _remedy(event: Mapping[str, Any]) -> str:
    return f"  {event['remedy']}" if event.get("remedy") else ""


def _line(report: Report) -> Text:
    text = Text(f"step {report.step}", "bold")
    if report.phase:
        text.append(f"  {report.phase}", "magenta")
    text.append(f"  loss {number(report.total)}").append(*_arrow(report.total_trend))
    for term in report.terms:
        # Dim terms that contribute less than 1 % to the total.
        text.append(f"  {term.name} {number(term.value)}", "dim" if term.share < 0.01 else "")
        text.append("" if math.isnan(term.share) else f" {percent(term.share, 0)}").append(*_arrow(term.trend))
    return text if math.isnan(report.gradient) else text.append(f"  |grad| {number(report.gradient)}")


def _arrow(change: float) -> tuple[str, str]:
    """Return the text and style of a trend; decreasing is good."""
    if math.isnan(change):
        return "", ""
    if abs(change) < _FLAT:
        return " →", "dim"
    return (f" ↓{percent(-change)}", "green") if change < 0 else (f" ↑{percent(change)}", "yellow")
