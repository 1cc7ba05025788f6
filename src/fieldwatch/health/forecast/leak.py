"""Leak detection: a slope of memory over the steps between two changes of the model's size."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.trace import ALLOCATED, PARAMETERS, PEAK, SIZE, WORK, had_event, upper_median
from fieldwatch.health.window import between, on_steps
from fieldwatch.record import History

WINDOWS = (128, 512, 2048)
"""Window lengths in steps: fast leaks show within 128 steps, slow ones need more. A window is examined whenever half of
it is new, so that long windows cost as little per step as short ones."""
# Fraction of the smallest leak that a window must climb to be examined at all.
_CLIMB = 0.25
# Minimum number of steps in a stretch of constant size; shorter stretches are ignored.
_STRETCH = 12
# Steps to skip after a change of size, while caches and workspaces are reallocated.
_SETTLING = 2
# Minimum number of rows for a conclusion.
_FEWEST = 64
# Distance of a spike from the running median of five, in units of the typical distance.
_SPIKE = 6.0
# A leak must keep this fraction of its slope, and this many standard errors, without its jumps and in its later half.
_REMAINS = 0.5
_REMAINS_SURE = 3.0
# MiB; lower bound of the noise.
_LEAST_NOISE = 0.05
# Number of jumps to remove: workspaces and caches that are allocated once.
_JUMPS = 3


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Growth of memory that neither the model's size nor the step's work nor new samples explain.

    Attributes:
        metric: metric that grows.
        rate: growth in MiB per step.
        error: standard error of the rate, in MiB per step.
        steps: number of steps of the window.
        level: memory at the end of the window, in MiB.
    """

    metric: str
    rate: float
    error: float
    steps: int
    level: float

    @property
    def significance(self) -> float:
        """The rate in units of its standard error."""
        return self.rate / self.error


def find_leaks(history: History, *, last: int, first: int = 0, significance: float, least: float) -> Iterator[Leak]:
    """Find an ongoing leak in windows of different lengths.

    Memory is examined within stretches of constant model size, so that growth of the model is not mistaken for a leak.
    The step's work and the number of samples visited for the first time (a cache that fills) are regressed out. A leak
    is a slope that is significant, persists in the later half of the window, and is not the sum of a few jumps
    (workspaces and caches that are allocated once).

    Args:
        history: history with ``Memory/allocated_MB``, or ``Memory/peak_MB`` if that is missing.
        last: last step to use.
        first: first step to use.
        significance: minimum slope in standard errors.
        least: minimum slope in MiB per step.

    Yields:
        The leak in each window that is due and shows one, the shortest window first.
    """
    metric = ALLOCATED if ALLOCATED in history else PEAK
    if metric not in history:
        return
    for steps in WINDOWS:
        # Not due yet. Longer windows are not due either, because their halves are multiples of this one.
        if (last + 1) % (steps // 2):
            return
        begin = max(first, last - steps + 1)
        # The cheap test comes first: most windows of a healthy run end here.
        climbed = _climbed(history, metric, begin, last, least)
        rows = _Rows.of(history, metric, begin, last) if climbed else None
        leak = None if rows is None else rows.leak(metric, significance, least)
        if leak is not None:
            yield leak
        if begin == first:
            return


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Rows of one window; memory, time and covariates are centered within each stretch of constant size.

    Attributes:
        steps: ``[n]`` steps.
        stretches: ``[n]`` index of each row's stretch.
        time: ``[n]`` centered steps.
        memory: ``[n]`` centered memory, in MiB.
        covariates: ``[n, c]`` centered covariates.
        level: memory at the end of the window, in MiB.
    """

    steps: NDArray[np.float64]
    stretches: NDArray[np.intp]
    time: NDArray[np.float64]
    memory: NDArray[np.float64]
    covariates: NDArray[np.float64]
    level: float

    @classmethod
    def of(cls, history: History, metric: str, first: int, last: int) -> Self | None:
        """Select the rows in stretches of at least 12 steps of constant size; None if there are fewer than 64."""
        series = between(history[metric], first, last)
        if len(series) < _FEWEST:
            return None
        steps = series.steps
        stretches = np.cumsum(_stretch_starts(history, series.steps))
        count = np.bincount(stretches)
        # Position of each row in its stretch.
        steps_into = np.arange(len(steps)) - (np.cumsum(count) - count)[stretches]
        # The first stretch begins with the window and not with a change of size, so it has no settling steps.
        usable = (
            np.isfinite(series.values) & (count[stretches] >= _STRETCH) & ((steps_into >= _SETTLING) | (stretches == 0))
        )
        if np.count_nonzero(usable) < _FEWEST:
            return None
        steps = steps[usable]
        memory = series.values[usable]
        stretches = np.unique(stretches[usable], return_inverse=True)[1].astype(np.intp)
        ending = upper_median(memory[-16:])
        columns = _covariates(history, steps)
        covariates = np.stack(columns, axis=1) if columns else np.zeros((len(steps), 0))
        rows = cls(
            steps=steps, stretches=stretches, time=steps, memory=memory, covariates=covariates, level=ending
        ).centered()
        # Spikes are detected in the residuals, so that a slope or a covariate does not count as one.
        spikes = _spikes(_residuals(rows.covariates, rows.time, rows.memory)[1], stretches)
        return rows.subset(~spikes) if spikes.any() else rows

    def subset(self, mask: NDArray[np.bool_]) -> Self:
        """Return the rows selected by a mask ``[n]``, centered again."""
        return replace(
            self,
            steps=self.steps[mask],
            stretches=np.unique(self.stretches[mask], return_inverse=True)[1].astype(np.intp),
            time=self.time[mask],
            memory=self.memory[mask],
            covariates=self.covariates[mask],
        ).centered()

    def centered(self) -> Self:
        """Subtract the mean within each stretch from time, memory and the covariates."""
        covariates = [_centered(column, self.stretches) for column in self.covariates.T]
        return replace(
            self,
            time=_centered(self.time, self.stretches),
            memory=_centered(self.memory, self.stretches),
            covariates=np.stack(covariates, axis=1) if covariates else self.covariates,
        )

    def leak(self, metric: str, significance: float, least: float) -> Leak | None:
        """Return the leak of this window, if there is one."""
        # Frisch-Waugh-Lovell theorem: the slope between the residuals equals that of the joint fit.
        time, memory = _residuals(self.covariates, self.time, self.memory)
        rate, error = _line(time, memory)
        if rate < max(least, significance * error):
            return None
        jumps = self._jumps(memory)
        half = self.subset(self.steps >= (self.steps[0] + self.steps[-1]) / 2)
        later = _residuals(half.covariates, half.time, half.memory)
        for again in (_residuals(jumps, time, memory), later):
            remains, doubt = _line(*again)
            if remains < max(_REMAINS * rate, _REMAINS_SURE * doubt):
                return None
        steps = int(self.steps[-1] - self.steps[0] + 1)
        return Leak(metric=metric, rate=rate, error=error, steps=steps, level=self.level)

    def _jumps(self, memory: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[n, 3]``: the jumps that explain most of the memory, found greedily one after another."""
        jumps = np.zeros((len(memory), 0))
        for _ in range(_JUMPS):
            # Each jump is fitted to what the earlier ones leave unexplained.
            _, residual = _residuals(jumps, memory, memory)
            jumps = np.column_stack((jumps, self._best_jump(residual)))
        return jumps

    def _best_jump(self, memory: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[n]``: the centered step function that explains most of the memory."""
        count = np.bincount(self.stretches)
        before = np.arange(len(memory)) - (np.cumsum(count) - count)[self.stretches]
        after = count[self.stretches] - before
        # A step at row i of n centered rows explains (sum of rows i to n)**2 * n / (i * (n - i)) of the variance.
        explained = np.square(np.cumsum(memory[::-1])[::-1]) * count[self.stretches]
        at = int(np.argmax(np.where(before > 0, explained / np.maximum(before * after, 1), 0.0)))
        raised = (np.arange(len(memory)) >= at) & (self.stretches == self.stretches[at])
        return _centered(raised.astype(np.float64), self.stretches)


def _climbed(history: History, metric: str, first: int, last: int, least: float) -> bool:
    """Return whether a window could contain a leak: its end is above its beginning, or the model shrank meanwhile."""
    values = between(history[metric], first, last).values
    if len(values) < _FEWEST:
        return False
    quarter = len(values) // 4
    if upper_median(values[-quarter:]) - upper_median(values[:quarter]) > _CLIMB * least * (last - first):
        return True
    # A shrinking model can hide a leak.
    sizes = [between(history[name], first, last).values for name in (SIZE, PARAMETERS) if name in history]
    return any(len(size) and size[-1] < size[0] for size in sizes)


def _stretch_starts(history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the rows that start a new stretch: growth, a changed size, an evaluation or a phase border."""
    starts = had_event(history, steps, "growth", "evaluation", "phase")
    for name in (SIZE, PARAMETERS):
        if name in history:
            size = on_steps(history[name], steps)
            starts[1:] |= size[1:] != size[:-1]
    return starts


def _covariates(history: History, steps: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return columns that may explain memory at each step: the work, and the number of distinct samples so far."""
    columns: list[NDArray[np.float64]] = []
    if WORK in history:
        work = on_steps(history[WORK], steps)
        known = np.isfinite(work)
        if known.any():
            columns.append(np.where(known, work, np.mean(work[known])) / max(float(np.abs(work[known]).max()), 1.0))
    samples = history.sample_losses()
    if len(samples.owners):
        first = np.append(True, np.diff(samples.owners) != 0)
        begun = np.sort(samples.visits.steps[first])
        columns.append(np.searchsorted(begun, steps, side="right") / len(begun))
    return columns


def _centered(values: NDArray[np.float64], stretches: NDArray[np.intp]) -> NDArray[np.float64]:
    """Subtract the mean of its stretch from each value."""
    count = np.maximum(np.bincount(stretches), 1)
    return values - (np.bincount(stretches, weights=values) / count)[stretches]


def _spikes(values: NDArray[np.float64], stretches: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark values far from the running median of five: spikes, but not jumps or slopes."""
    # The running median follows a jump or a slope, but not a spike.
    medians = np.sort(np.lib.stride_tricks.sliding_window_view(values, 5), axis=1)[:, 2]
    off = np.abs(values[2:-2] - medians)
    spikes = np.zeros(len(values), np.bool_)
    spikes[2:-2] = (off > _SPIKE * (upper_median(off) + _LEAST_NOISE)) & (stretches[4:] == stretches[:-4])
    return spikes


def _residuals(
    covariates: NDArray[np.float64], time: NDArray[np.float64], memory: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the residuals of time and memory after regression on the covariates."""
    if not covariates.shape[1]:
        return time, memory
    # The pseudo-inverse copes with covariates that are constant or collinear.
    both = np.stack((time, memory), axis=1)
    residual = both - covariates @ (np.linalg.pinv(covariates.T @ covariates, hermitian=True) @ (covariates.T @ both))
    return residual[:, 0], residual[:, 1]


def _line(time: NDArray[np.float64], memory: NDArray[np.float64]) -> tuple[float, float]:
    """Return the slope and its standard error, corrected for the autocorrelation of the residuals."""
    square = float(time @ time)
    if square < 1.0:
        return 0.0, np.inf
    slope = float(time @ memory) / square
    residuals = memory - slope * time
    # AR(1): n correlated residuals carry the information of n * (1 - r) / (1 + r) independent ones.
    autocorrelation = float(
        np.clip(residuals[1:] @ residuals[:-1] / max(float(residuals @ residuals), 1e-12), 0.0, 0.95)
    )
    noise = max(float(np.sqrt(residuals @ residuals / max(len(residuals) - 2, 1))), _LEAST_NOISE)
    return slope, noise * float(np.sqrt((1 + autocorrelation) / (1 - autocorrelation) / square))
