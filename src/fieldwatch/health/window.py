"""Spans (one metric within one phase) and the calculations that all rules share.

Thresholds, baselines and warm-ups restart at phase borders, so a rule never sees a series that crosses one. A rule
sees the current phase, and any that ended since the last examination: those that were active during the last 64 steps
(``LOOKBACK``), the last 256 from step 1,024 on, or the last 1,024 from step 4,096 on. All calculations are causal: the
result for a recording depends only on it and on earlier recordings, so that a later examination of the same recordings
gives the same result.
"""

import bisect
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import History, Series, tags

DISTURBANCES = ("growth", "prune", "reset", "phase", "grid_rebuilt", "rolled_back")
"""Kinds of events by which the program itself changes the model or the loss."""
LOOKBACK = 64
"""Number of steps between two examinations, and of past steps whose phases a rule still examines."""
_SPACINGS = ((1024, 1), (4096, 4))
_WIDEST_SPACING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One metric within one phase.

    Attributes:
        name: name of the metric.
        start: first step of the phase.
        series: recordings of the metric in the phase; at least one.
        whole: whether the history still holds the first recordings of the phase.
    """

    name: str
    start: int
    series: Series
    whole: bool

    @property
    def values(self) -> NDArray[np.float64]:
        """Recorded values, ``[n]``."""
        return self.series.values

    def step(self, at: int) -> int:
        """Return the step of the recording at index ``at``."""
        return int(self.series.steps[at])


def spacing(end: int) -> int:
    """Return by how many times the examinations of a fast loop are farther apart than at its beginning.

    It grows with the number of steps, since an examination takes as long as some hundreds of fast steps.

    Args:
        end: number of steps so far.
    """
    for last, times in _SPACINGS:
        if end <= last:
            return times
    return _WIDEST_SPACING


def phases(history: History) -> list[tuple[int, int]]:
    """Return the first and last step of each phase that may have been active since the last examination, oldest first.

    These are the last 64 steps, the last 256 from step 1,024 on, or the last 1,024 from step 4,096 on.
    """
    bounds: list[tuple[int, int]] = []
    last = history.step
    lookback = LOOKBACK * spacing(last + 1)
    while last >= 0:
        start = history.phase_start(last)
        bounds.append((start, last))
        # Older phases were examined completely while they were active.
        if start <= history.step - lookback:
            break
        # Walk back phase by phase.
        last = start - 1
    return bounds[::-1]


def spans(history: History, *names: str) -> Iterator[Span]:
    """Yield the spans of the given metrics, phase by phase; metrics that are not recorded are skipped."""
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
    """Return the recordings from step ``first`` to step ``last``, both inclusive."""
    steps = series.steps
    # Most series lie entirely within one phase: avoid the copy.
    if not len(steps) or (steps[0] >= first and steps[-1] <= last):
        return series
    return series[bisect.bisect_left(steps, first) : bisect.bisect_right(steps, last)]


def _is_whole(series: Series, start: int, first: int) -> bool:
    """Return whether the history still holds the first recordings of a phase.

    A run that continues another one begins at a step above 0, so the phase start is compared with the run's first
    step instead of 0.
    """
    if series.steps[0] < start:
        return True
    # Positions are steps, or epochs for per-epoch metrics: those are small even if the first recording came late.
    begun = max(first, 0)
    return start <= begun and bool(series.positions[0] < begun + LOOKBACK)


def first_sustained(mask: NDArray[np.bool_], *, patience: int = 1, warmup: int = 0) -> int | None:
    """Return the first index at which a condition had held for ``patience`` consecutive recordings.

    Args:
        mask: ``[n]`` whether the condition holds for each recording.
        patience: number of consecutive recordings, including the returned one.
        warmup: number of recordings to skip at the beginning.

    Returns:
        The index into ``mask``; None if the condition never held for that long.
    """
    tail = mask[warmup:]
    if np.count_nonzero(tail) < patience:
        return None
    # If two recordings without the condition are more than `patience` apart, the run between them is long enough.
    edges = np.concatenate(([-1], np.flatnonzero(~tail), [len(tail)]))
    long = np.flatnonzero(np.diff(edges) > patience)
    return warmup + int(edges[long[0]]) + patience if len(long) else None


def trailing_mean(values: NDArray[np.float64], width: int, *, least: int, lag: int = 0) -> NDArray[np.float64]:
    """Return the mean of the ``width`` recordings before each recording.

    Non-finite values are ignored. The mean is NaN if there are fewer than ``least`` recordings.

    Args:
        values: ``[n]`` recorded values.
        width: number of recordings in the mean.
        least: minimum number of recordings for a mean.
        lag: number of recordings directly before each one to exclude from its mean.
    """
    means = np.full(len(values), np.nan)
    number = len(values) - lag
    if number <= least:
        return means
    finite = np.isfinite(values)
    # Without non-finite values the counts are known in advance, which halves the work.
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
    """Return ``[n + 1]`` prefix sums: the sum of the first 0, 1, ..., n values."""
    # The leading 0 makes the sum of any range a difference of two entries.
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def trailing_count(mask: NDArray[np.bool_], width: int) -> NDArray[np.float64]:
    """Return how often the condition held in the ``width`` recordings up to and including each one."""
    sums = _running_sum(mask)
    counts = sums[1:].copy()
    counts[width:] -= sums[1 : max(len(sums) - width, 1)]
    return counts


def on_steps(series: Series, steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a series at the given steps, NaN for steps without a recording."""
    # Metrics recorded in the same rows share one array of steps: no search needed.
    if series.steps is steps:
        return series.values
    if not len(series):
        return np.full(len(steps), np.nan)
    if len(series) == len(steps) and (series.steps == steps).all():
        return series.values
    positions = np.minimum(np.searchsorted(series.steps, steps), len(series) - 1)
    return np.where(series.steps[positions] == steps, series.values[positions], np.nan)


def excused(history: History, kinds: Collection[str], steps: NDArray[np.float64], grace: int) -> NDArray[np.bool_]:
    """Return for each step whether an event of one of the kinds occurred at most ``grace`` steps before it."""
    mask = np.zeros(len(steps), np.bool_)
    for kind in kinds:
        for event in history.events(kind):
            mask |= (steps >= event["step"]) & (steps <= event["step"] + grace)
    return mask


def named(history: History, prefix: str, suffix: str = "") -> dict[str, str]:
    """Return the recorded metrics with a prefix and a suffix, keyed by the part of the name between the two."""
    return tags.Family(prefix, suffix).parts(history.names())


def planned_steps(history: History) -> int | None:
    """Return the planned number of steps; None if the run did not declare one."""
    plans = history.events("plan")
    steps = plans[-1].get("steps") if plans else None
    return steps if isinstance(steps, int) and steps > 0 else None


def finished(history: History) -> bool:
    """Return whether the training is over: the last planned step is recorded, or the loop ended in order before it."""
    planned = planned_steps(history)
    if planned is not None and history.step + 1 >= planned:
        return True
    ended = history.events(ENDED)
    # A run that goes on later has recorded steps behind that end.
    is_over = bool(ended) and int(ended[-1]["steps"]) >= history.step + 1
    return is_over and history.step + 1 >= _LEAST_PART * (planned or 0)


ENDED = "ended"
"""Kind of the event of a loop that ended in order with planned steps left, or without a plan: ``steps``."""
_LEAST_PART = 0.25
"""Fraction of the planned steps; a loop that ends earlier was tried out or interrupted, not stopped early."""


def finite_median(values: NDArray[np.float64]) -> float:
    """Return the median of the finite values; NaN if there is none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def is_signed(values: NDArray[np.float64]) -> bool:
    """Return whether any finite value is negative: ratios to a mean have no meaning then."""
    return bool((values < 0).any())


def noise(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of single recordings around their course, from successive differences.

    A trend changes neighbors by little, so that it is no noise (von Neumann). The middle half of the differences
    counts: a single step from one level to another is no noise either.

    Args:
        values: ``[n]`` recorded values.

    Returns:
        The standard deviation of normal noise with such differences; 0 with fewer than three finite values.
    """
    steps = np.diff(values[np.isfinite(values)])
    if len(steps) < 2:
        return 0.0
    low, high = np.quantile(steps, (0.25, 0.75))
    return float(high - low) / _QUARTILES


_QUARTILES = 1.908
"""Distance between the quartiles of differences of normal numbers, in standard deviations of these."""
