"""Contents of a one-line report of a run: total loss, and value, share and trend of each active term."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fieldwatch.record import tags
from fieldwatch.record.derive import trend
from fieldwatch.record.history import History
from fieldwatch.record.row import Block

STATISTICS = "Statistics/"
"""Prefix of tags that a training loop wants to see in every report."""


@dataclass(frozen=True, kw_only=True)
class TermReport:
    """One active loss term at the step of a report.

    Attributes:
        name: name of the term.
        value: unweighted value.
        share: weighted value divided by the total loss; NaN if unknown.
        trend: relative change of the median between the last two windows of values; NaN if unknown.
    """

    name: str
    value: float
    share: float
    trend: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """The contents of a one-line report.

    Attributes:
        step: 0-based step of the report.
        phase: name of the current phase; empty if it has none.
        total: total loss; NaN if not recorded.
        total_trend: trend of the total loss, as in :class:`TermReport`; NaN if unknown.
        terms: active terms, in order of recording.
        gradient: total gradient norm; NaN if not recorded.
        statistics: values of the step's ``Statistics/...`` tags, by name without that prefix.
    """

    step: int
    phase: str
    total: float
    total_trend: float
    terms: tuple[TermReport, ...]
    gradient: float
    statistics: Mapping[str, float]


class Digest:
    """Keeps the data for the next report: the last two windows of values, and the phases.

    Args:
        window: number of values in each of the two windows that a trend compares.

    Raises:
        ValueError: if the window is not positive.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"trend window must be at least 1 value, got {window}")
        self._window = window
        self._phases: dict[int, str] = {}
        self.clear()

    def clear(self) -> None:
        """Drop all values, as is needed after a resume; keep the phases."""
        # A trend compares two windows.
        self._history = History(capacity=2 * self._window)

    def add(self, block: Block) -> None:
        """Add a block of the step axis."""
        self._history.extend(block)

    def event(self, event: Mapping[str, Any]) -> None:
        """Record the name and first step of a phase, which may lie in the future; ignore other events."""
        if event["kind"] == "phase":
            self._phases[int(event["step"])] = str(event.get("name", ""))

    @staticmethod
    def covers(block: Block) -> bool:
        """Return whether a report of this block would show a value: a loss, a gradient norm or a statistic."""
        # The row of an evaluation has the step of a training row, but none of its values.
        reported = (tags.TOTAL, tags.TOTAL_NORM)
        return any(
            name in reported or name.startswith(STATISTICS) or tags.COMPONENT.part(name) is not None
            for name in block.columns
        )

    def report(self, block: Block) -> Report:
        """Return a report for the last row of a block that was just added."""
        step = int(block.steps[-1])
        # The current phase is the one that started last at or before this step.
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
