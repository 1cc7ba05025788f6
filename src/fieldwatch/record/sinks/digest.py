"""What a one-line report of a run says: total, and per active term its value, share and trend."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fieldwatch.record import tags
from fieldwatch.record.derive import trend
from fieldwatch.record.history import History
from fieldwatch.record.row import Block

STATISTICS = "Statistics/"
"""Tags that begin so are a line's own: what a loop wants to see in every one."""


@dataclass(frozen=True, kw_only=True)
class TermReport:
    """One active loss term at the time of a report.

    Attributes:
        name: the term.
        value: its raw value.
        share: weighted value / total, NaN where unknown.
        trend: relative change of its median over the last window against the one before, NaN where unknown.
    """

    name: str
    value: float
    share: float
    trend: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a report says.

    Attributes:
        step: the step it stands at.
        phase: the named phase, empty if none was named.
        total: the total loss, NaN if not recorded.
        total_trend: its trend.
        terms: the active terms, in order of recording.
        gradient: total gradient norm, NaN if not recorded.
        statistics: what else was recorded of this step for the line, by name.
    """

    step: int
    phase: str
    total: float
    total_trend: float
    terms: tuple[TermReport, ...]
    gradient: float
    statistics: Mapping[str, float]


class Digest:
    """Keeps what the next report needs: the last two windows of values, and the phase.

    Args:
        window: how many values each of the two windows of a trend holds.

    Raises:
        ValueError: the window is not positive.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"a trend window of {window} values: wanted at least 1")
        self._window = window
        self._phases: dict[int, str] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the values, as after a resume; the phases stay."""
        # A trend compares two windows, so two windows of values are kept.
        self._history = History(capacity=2 * self._window)

    def add(self, block: Block) -> None:
        """Take a block of the step axis in."""
        self._history.extend(block)

    def event(self, event: Mapping[str, Any]) -> None:
        """Note the name of a phase and the step from which on it holds, which may lie ahead."""
        if event["kind"] == "phase":
            self._phases[int(event["step"])] = str(event.get("name", ""))

    def report(self, block: Block) -> Report:
        """Report at the last row of a block that was just taken in."""
        step = int(block.steps[-1])
        started = max((first for first in self._phases if first <= step), default=None)
        row = dict(zip(block.columns, block.values[-1].tolist(), strict=True))
        terms = tuple(
            TermReport(
                name=term,
                value=row[name],
                share=row.get(tags.SHARE.tag(term), math.nan),
                trend=self._trend(name),
            )
            for term, name in tags.COMPONENT.parts(row).items()
        )
        return Report(
            step=step,
            phase="" if started is None else self._phases[started],
            total=row.get(tags.TOTAL, math.nan),
            total_trend=self._trend(tags.TOTAL) if tags.TOTAL in row else math.nan,
            terms=terms,
            gradient=row.get(tags.TOTAL_NORM, math.nan),
            statistics={
                name.removeprefix(STATISTICS): value
                for name, value in row.items()
                if name.startswith(STATISTICS) and not math.isnan(value)
            },
        )

    def _trend(self, name: str) -> float:
        return trend(self._history[name], self._window)
