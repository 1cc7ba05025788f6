"""Contents of a one-line report of a run: total loss, and value, share and trend of each active term."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from fieldwatch.record import tags
from fieldwatch.record.derive import trend, trends
from fieldwatch.record.history import History
from fieldwatch.record.row import Block

STATISTICS = "Statistics/"
"""Prefix of tags that a training loop wants to see in every report."""
_MOST_WAITING = 1024
"""Number of rows whose values are kept whole."""


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
        self._waiting: list[Block] = []

    def add(self, block: Block) -> None:
        """Add a block of the step axis."""
        self._waiting.append(block)
        # Most rows are needed by no report: those that one may need are kept together.
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Put the series whose trends are reported into the history."""
        for names, group in groupby(self._waiting, lambda block: tuple(_places(block.columns).trends)):
            blocks = list(group)
            if names:
                self._history.extend(_series_block(names, blocks))
        self._waiting = []

    def event(self, event: Mapping[str, Any]) -> None:
        """Record the name and first step of a phase, which may lie in the future; ignore other events."""
        if event["kind"] == "phase":
            self._phases[int(event["step"])] = str(event.get("name", ""))

    @staticmethod
    def covers(block: Block) -> bool:
        """Return whether a report of this block would show a value: a loss, a gradient norm or a statistic."""
        # The row of an evaluation has the step of a training row, but none of its values.
        return _places(block.columns).any

    def report(self, block: Block) -> Report:
        """Return a report for the last row of a block that was just added."""
        step = int(block.steps[-1])
        # The current phase is the one that started last at or before this step.
        started = max((first for first in self._phases if first <= step), default=None)
        places = _places(block.columns)
        row = block.values[-1].tolist()
        trends = self._trends(tuple(places.trends))
        terms = tuple(
            TermReport(
                name=term,
                value=row[value],
                share=math.nan if share is None else row[share],
                trend=trends[tags.COMPONENT.tag(term)],
            )
            for term, value, share in places.terms
        )
        return Report(
            step=step,
            phase="" if started is None else self._phases[started],
            total=math.nan if places.total is None else row[places.total],
            total_trend=trends.get(tags.TOTAL, math.nan),
            terms=terms,
            gradient=math.nan if places.gradient is None else row[places.gradient],
            statistics={name: row[place] for name, place in places.statistics if not math.isnan(row[place])},
        )

    def _trends(self, names: Sequence[str]) -> dict[str, float]:
        """Return the trend of each series, NaN if it is unknown."""
        self._take_waiting()
        values = self._history.last_values(names, 2 * self._window)
        if values is None:
            return {name: trend(self._history[name], self._window) for name in names}
        # All medians at once: they are most of the work of a report.
        return dict(zip(names, trends(values.reshape(len(names), 2, self._window)), strict=True))


class _Places:
    """Columns that a report reads, by index.

    Args:
        columns: columns of a block.

    Attributes:
        total: column of the total loss; None if it is not recorded.
        gradient: column of the total gradient norm; None if it is not recorded.
        terms: name, column and column of the share (None if it is not recorded) of each loss term.
        statistics: name and column of each statistic.
        trends: column of each metric whose trend is reported, by tag.
        any: whether there is any column to report.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        column_of = {name: place for place, name in enumerate(columns)}
        terms = tags.COMPONENT.parts(columns)
        self.total = column_of.get(tags.TOTAL)
        self.gradient = column_of.get(tags.TOTAL_NORM)
        self.terms = [(term, column_of[name], column_of.get(tags.SHARE.tag(term))) for term, name in terms.items()]
        self.statistics = [
            (name.removeprefix(STATISTICS), place) for name, place in column_of.items() if name.startswith(STATISTICS)
        ]
        self.trends = {name: column_of[name] for name in (tags.TOTAL, *terms.values()) if name in column_of}
        self.any = bool(self.trends or self.statistics or self.gradient is not None)


def _series_block(names: tuple[str, ...], blocks: Sequence[Block]) -> Block:
    """Return one block of some columns of consecutive blocks."""
    values = [block.values[:, list(_places(block.columns).trends.values())] for block in blocks]
    return Block(
        axis=blocks[0].axis,
        columns=names,
        steps=np.concatenate([block.steps for block in blocks]),
        seconds=np.concatenate([block.seconds for block in blocks]),
        positions=np.concatenate([block.positions for block in blocks]),
        values=np.concatenate(values),
    )


# Blocks repeat a few sets of columns.
@functools.lru_cache(maxsize=1024)
def _places(columns: tuple[str, ...]) -> _Places:
    return _Places(columns)
