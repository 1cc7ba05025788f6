"""What a rule looks at: one metric inside one phase, and the few calculations that all rules share.

Every threshold, baseline and warm-up starts again at a phase border, so a rule never sees a series across one.
It sees the phases that were running during the last 64 steps (``LOOKBACK``): the present one, and one that ended
between two looks. All calculations are causal: what is said about a recording depends on it and on
earlier recordings only, so that a later look at the same recordings says the same.
"""

import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import History, Series, tags

LOOKBACK = 64
"""Steps before the present one whose phases a rule still sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One metric inside one phase.

    Attributes:
        name: the metric.
        start: first step of the phase.
        series: its recordings there; at least one.
        whole: False where the history no longer holds the phase's first recordings.
    """

    name: str
    start: int
    series: Series
    whole: bool

    @property
    def values(self) -> NDArray[np.float64]:
        """The recorded values, ``[n]``."""
        return self.series.values

    def step(self, at: int) -> int:
        """Return the step of one recording."""
        return int(self.series.steps[at])


def phases(history: History) -> list[tuple[int, int]]:
    """Return first and last step of the phases that ran during the last 64 steps, the oldest first."""
    found: list[tuple[int, int]] = []
    last = history.step
    while last >= 0:
        start = history.phase_start(last)
        found.append((start, last))
        if start <= history.step - LOOKBACK:
            break
        last = start - 1
    return found[::-1]


def spans(history: History, *names: str) -> Iterator[Span]:
    """Yield the recorded ones among the metrics, phase by phase."""
    recorded = [name for name in names if name in history]
    if not recorded:
        return
    bounds = phases(history)
    for name in recorded:
        series = history[name]
        for start, last in bounds:
            part = between(series, start, last)
            if len(part):
                whole = _is_whole(series, start, history.first)
                yield Span(name=name, start=start, series=part, whole=whole)


def between(series: Series, first: float, last: float) -> Series:
    """Return the recordings of the steps from ``first`` to ``last``, both included."""
    steps = series.steps
    if not len(steps) or (steps[0] >= first and steps[-1] <= last):
        return series
    return series[bisect.bisect_left(steps, first) : bisect.bisect_right(steps, last)]


def _is_whole(series: Series, start: int, first: int) -> bool:
    """Tell whether the history still holds a phase's first recordings: earlier ones, or the very first ones.

    A run that goes on from elsewhere begins at a step above 0: what counts is how far its own first step lies back.
    """
    if series.steps[0] < start:
        return True
    begun = max(first, 0)
    return start <= begun and bool(series.positions[0] < begun + LOOKBACK)


def first_held(mask: NDArray[np.bool_], *, patience: int = 1, warmup: int = 0) -> int | None:
    """Return the first place at which a condition had held for ``patience`` recordings in a row.

    Args:
        mask: ``[n]``, whether the condition holds for each recording.
        patience: recordings in a row, the found one included.
        warmup: recordings at the beginning that do not count.
    """
    tail = mask[warmup:]
    if np.count_nonzero(tail) < patience:
        return None
    edges = np.concatenate(([-1], np.flatnonzero(~tail), [len(tail)]))
    long = np.flatnonzero(np.diff(edges) > patience)
    return warmup + int(edges[long[0]]) + patience if len(long) else None


def trailing_mean(values: NDArray[np.float64], width: int, *, least: int, lag: int = 0) -> NDArray[np.float64]:
    """Return, for each recording, the mean of the ``width`` recordings before it.

    Non-finite values never enter; NaN where fewer than ``least`` recordings are there.

    Args:
        values: ``[n]``.
        width: recordings in the mean.
        least: recordings below which there is no mean.
        lag: how many recordings directly before each one are left out as well.
    """
    means = np.full(len(values), np.nan)
    number = len(values) - lag
    if number <= least:
        return means
    finite = np.isfinite(values)
    if finite.all():
        sums = _running_sum(values)
        width = min(width, number)
        means[lag + least : lag + width] = sums[least:width] / np.arange(least, width)
        means[lag + width :] = (sums[width:number] - sums[: number - width]) / width
        return means
    sums = _running_sum(np.where(finite, values, 0.0))
    counts = _running_sum(finite)
    ends = np.arange(least, number)
    starts = np.maximum(ends - width, 0)
    known = counts[ends] - counts[starts]
    np.divide(sums[ends] - sums[starts], known, out=means[least + lag :], where=known >= least)
    return means


def _running_sum(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``[n + 1]``: the sum of the first 0, 1, ..., n values."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def trailing_count(mask: NDArray[np.bool_], width: int) -> NDArray[np.float64]:
    """Return, for each recording, how often the condition held in the ``width`` recordings up to it."""
    sums = _running_sum(mask)
    counts = sums[1:].copy()
    counts[width:] -= sums[1 : max(len(sums) - width, 1)]
    return counts


def on_steps(series: Series, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a series' values at some steps, NaN where it recorded nothing then."""
    if series.steps is steps:
        return series.values
    if not len(series):
        return np.full(len(steps), np.nan)
    if len(series) == len(steps) and (series.steps == steps).all():
        return series.values
    places = np.minimum(np.searchsorted(series.steps, steps), len(series) - 1)
    return np.where(series.steps[places] == steps, series.values[places], np.nan)


def excused(history: History, kinds: Collection[str], steps: NDArray[np.float64], grace: int) -> NDArray[np.bool_]:
    """Tell for each step whether an event of one of the kinds happened at most ``grace`` steps before it."""
    mask = np.zeros(len(steps), np.bool_)
    for kind in kinds:
        for event in history.events(kind):
            mask |= (steps >= event["step"]) & (steps <= event["step"] + grace)
    return mask


def named(history: History, prefix: str, suffix: str = "") -> dict[str, str]:
    """Return the recorded metrics between a prefix and a suffix: what stands between them -> the full name."""
    return tags.Family(prefix, suffix).parts(history.names())
