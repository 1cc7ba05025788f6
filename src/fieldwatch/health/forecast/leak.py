"""What grows that the model does not explain: a slope of memory over steps between two changes of the model's size."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.trace import ALLOCATED, PARAMETERS, PEAK, SIZE, WORK, had_event, upper_median
from fieldwatch.health.window import between, on_steps
from fieldwatch.record import History

WINDOWS = (128, 512, 2048)
"""Steps looked back: a fast leak shows in the last 128 already, a slow one needs more. Each is looked at whenever half
of it is new, so that the long ones cost as little per step as the short one."""
# Share of the least leak that a window has to climb to be examined at all.
_CLIMB = 0.25
# Steps of constant size below which a stretch is left out.
_STRETCH = 12
# Steps after a change of size that are left out: caches and workspaces are taken anew.
_SETTLING = 2
# Rows below which nothing is concluded.
_FEWEST = 64
# In units of the usual distance from the median of five.
_SPIKE = 6.0
# Share of the slope, and standard errors, that have to remain without the jumps and in the later half.
_REMAINS = 0.5
_REMAINS_SURE = 3.0
_LEAST_NOISE = 0.05
# Jumps that are taken out: workspaces and caches that are allocated once.
_JUMPS = 3


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Growth of memory that neither the model's size nor the step's work nor new samples explain.

    Attributes:
        metric: the metric that grows.
        rate: MiB per step.
        error: its standard error.
        steps: over how many steps.
        level: MiB at its end.
    """

    metric: str
    rate: float
    error: float
    steps: int
    level: float

    @property
    def significance(self) -> float:
        """The rate in units of its error."""
        return self.rate / self.error


def find_leak(history: History, *, last: int, first: int = 0, significance: float, least: float) -> Leak | None:
    """Look for a leak that is still going on.

    Memory is looked at within stretches in which the model's size does not change, so that growth of the model cannot
    be taken for a leak; work and the number of samples seen for the first time (a cache that fills) are regressed out.
    A leak is a slope that is significant, goes on in the later half, and is no sum of a few jumps (workspaces and
    caches that are taken once).

    Args:
        history: what was recorded: ``Memory/allocated_MB``, or ``Memory/peak_MB`` where that is missing.
        last: look at the record up to this step.
        first: look at it from this step on.
        significance: in standard errors.
        least: MiB per step.

    Returns:
        The leak, from the shortest window that shows it; None where there is none.
    """
    metric = ALLOCATED if ALLOCATED in history else PEAK
    if metric not in history:
        return None
    for steps in WINDOWS:
        # Not due yet; nor are the longer windows, whose halves are multiples of this one's.
        if (last + 1) % (steps // 2):
            return None
        begin = max(first, last - steps + 1)
        climbed = _climbed(history, metric, begin, last, least)
        rows = _Rows.of(history, metric, begin, last) if climbed else None
        leak = None if rows is None else rows.leak(metric, significance, least)
        if leak is not None or begin == first:
            return leak
    return None


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of one window, ``[n]``; memory (MiB), time (steps) and ``covariates`` have no mean within a stretch."""

    steps: NDArray[np.float64]
    stretches: NDArray[np.intp]
    time: NDArray[np.float64]
    memory: NDArray[np.float64]
    covariates: NDArray[np.float64]
    level: float

    @classmethod
    def of(cls, history: History, metric: str, first: int, last: int) -> Self | None:
        """Take the rows in stretches of at least 12 steps of one size; None if they are fewer than 64."""
        series = between(history[metric], first, last)
        if len(series) < _FEWEST:
            return None
        steps = series.steps
        stretches = np.cumsum(_stretch_starts(history, series.steps))
        count = np.bincount(stretches)
        # Position of each row in its stretch.
        steps_into = np.arange(len(steps)) - (np.cumsum(count) - count)[stretches]
        # The first stretch begins with the window and not with a change, so it has nothing to settle.
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
        # Of the residuals: a slope or a covariate is no spike.
        spikes = _spikes(_residuals(rows.covariates, rows.time, rows.memory)[1], stretches)
        return rows.subset(~spikes) if spikes.any() else rows

    def subset(self, mask: NDArray[np.bool_]) -> Self:
        """Return some of the rows, centred anew."""
        return replace(
            self,
            steps=self.steps[mask],
            stretches=np.unique(self.stretches[mask], return_inverse=True)[1].astype(np.intp),
            time=self.time[mask],
            memory=self.memory[mask],
            covariates=self.covariates[mask],
        ).centered()

    def centered(self) -> Self:
        """Take the mean within each stretch off time, memory and the covariates."""
        covariates = [_centered(column, self.stretches) for column in self.covariates.T]
        return replace(
            self,
            time=_centered(self.time, self.stretches),
            memory=_centered(self.memory, self.stretches),
            covariates=np.stack(covariates, axis=1) if covariates else self.covariates,
        )

    def leak(self, metric: str, significance: float, least: float) -> Leak | None:
        """Return the leak of this window, if there is one."""
        # By Frisch and Waugh the slope between residuals is that of the joint fit.
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
        """Return ``[n, 3]``: the jumps that explain most of the memory, each of what the ones before left."""
        jumps = np.zeros((len(memory), 0))
        for _ in range(_JUMPS):
            _, residual = _residuals(jumps, memory, memory)
            jumps = np.column_stack((jumps, self._best_jump(residual)))
        return jumps

    def _best_jump(self, memory: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, centred, the one step function that explains most of the memory."""
        count = np.bincount(self.stretches)
        before = np.arange(len(memory)) - (np.cumsum(count) - count)[self.stretches]
        after = count[self.stretches] - before
        # A step at row i of n centered ones explains (sum of the rest)**2 * n / (i * (n - i)).
        explained = np.square(np.cumsum(memory[::-1])[::-1]) * count[self.stretches]
        at = int(np.argmax(np.where(before > 0, explained / np.maximum(before * after, 1), 0.0)))
        raised = (np.arange(len(memory)) >= at) & (self.stretches == self.stretches[at])
        return _centered(raised.astype(np.float64), self.stretches)


def _climbed(history: History, metric: str, first: int, last: int, least: float) -> bool:
    """Whether a window could hold a leak at all: its end is above its beginning, or the model shrank meanwhile."""
    values = between(history[metric], first, last).values
    if len(values) < _FEWEST:
        return False
    quarter = len(values) // 4
    if upper_median(values[-quarter:]) - upper_median(values[:quarter]) > _CLIMB * least * (last - first):
        return True
    sizes = [between(history[name], first, last).values for name in (SIZE, PARAMETERS) if name in history]
    return any(len(size) and size[-1] < size[0] for size in sizes)


def _stretch_starts(history: History, steps: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark the rows with which another stretch begins: growth, a changed size, an evaluation, a phase."""
    starts = had_event(history, steps, "growth", "evaluation", "phase")
    for name in (SIZE, PARAMETERS):
        if name in history:
            size = on_steps(history[name], steps)
            starts[1:] |= size[1:] != size[:-1]
    return starts


def _covariates(history: History, steps: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return what else may explain memory at each step: the work, and how many samples have been seen so far."""
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
    """Take the mean of its stretch off each value."""
    count = np.maximum(np.bincount(stretches), 1)
    return values - (np.bincount(stretches, weights=values) / count)[stretches]


def _spikes(values: NDArray[np.float64], stretches: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Mark what stands far off the median of five: spikes, but no jumps and slopes."""
    # A jump or a slope moves the median along, a spike does not.
    medians = np.sort(np.lib.stride_tricks.sliding_window_view(values, 5), axis=1)[:, 2]
    off = np.abs(values[2:-2] - medians)
    spikes = np.zeros(len(values), np.bool_)
    spikes[2:-2] = (off > _SPIKE * (upper_median(off) + _LEAST_NOISE)) & (stretches[4:] == stretches[:-4])
    return spikes


def _residuals(
    covariates: NDArray[np.float64], time: NDArray[np.float64], memory: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return time and memory without what the other columns explain of them."""
    if not covariates.shape[1]:
        return time, memory
    both = np.stack((time, memory), axis=1)
    residual = both - covariates @ (np.linalg.pinv(covariates.T @ covariates, hermitian=True) @ (covariates.T @ both))
    return residual[:, 0], residual[:, 1]


def _line(time: NDArray[np.float64], memory: NDArray[np.float64]) -> tuple[float, float]:
    """Return slope and standard error; neighbouring residuals that are alike count for less."""
    square = float(time @ time)
    if square < 1.0:
        return 0.0, np.inf
    slope = float(time @ memory) / square
    residuals = memory - slope * time
    # AR(1): residuals that resemble their neighbours hold less information than their number.
    autocorrelation = float(
        np.clip(residuals[1:] @ residuals[:-1] / max(float(residuals @ residuals), 1e-12), 0.0, 0.95)
    )
    noise = max(float(np.sqrt(residuals @ residuals / max(len(residuals) - 2, 1))), _LEAST_NOISE)
    return slope, noise * float(np.sqrt((1 + autocorrelation) / (1 - autocorrelation) / square))
