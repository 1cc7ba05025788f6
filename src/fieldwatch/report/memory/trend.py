"""Trend of a quantity: its slope over all snapshots, with a confidence interval.

The slope is the Theil-Sen estimator, the median of the slopes between all pairs of blocks, with Sen's interval (Sen
1968, JASA 63:1379). A block is one of at most 40 equal parts of the snapshots, represented by its median.

Least squares would not do, because memory changes in spikes (evaluation), in single steps (densification) and with
correlated noise. A spike does not change the median of a block, and a single step changes less than half of the pairs.
The remaining correlation between blocks widens the interval (Hamed and Rao 1998, J. Hydrology 204:182, first lag only).
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["rising", "falling", "steady", "in steps", "uneven", "too short"]
BLOCKS = 40
"""Maximum number of blocks; the number of pairs, and with it the cost, grows with its square."""
LEAST = 6
"""Minimum number of snapshots of a slope: with 5 or fewer, a 95 % interval does not exist or covers everything."""
_NORMAL = 1.959964
"""97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A slope per 1000 iterations with its 95 % confidence interval.

    Attributes:
        per_1000: slope in the unit of the quantity per 1000 iterations.
        low: lower end of the interval.
        high: upper end of the interval.
        blocks: number of blocks that the slope was computed from.
    """

    per_1000: float
    low: float
    high: float
    blocks: int

    @property
    def sign(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def trend_of(steps: NDArray[np.int64], values: Floats) -> Trend | None:
    """Return the slope of a quantity; None if it has fewer than six finite values.

    Args:
        steps: ``[n]`` ascending iterations.
        values: ``[n]`` values; those that are not finite are left out.
    """
    known = np.isfinite(values)
    steps = steps[known]
    values = values[known]
    if len(values) < LEAST:
        return None
    x, y = blocks_of(steps, values)
    i, j = np.triu_indices(len(x), k=1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    slope = float(np.median(slopes))
    n = len(x)
    # Variance of Kendall's S without ties; Sen's interval takes the slopes of these ranks.
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18) * widening(y - slope * x)
    lower = (len(slopes) - _NORMAL * spread) / 2
    upper = (len(slopes) + _NORMAL * spread) / 2
    low = slopes[max(0, math.floor(lower))]
    high = slopes[min(len(slopes) - 1, math.ceil(upper))]
    return Trend(per_1000=1000 * slope, low=1000 * float(low), high=1000 * float(high), blocks=n)


def blocks_of(steps: NDArray[np.int64], *columns: Floats) -> tuple[Floats, ...]:
    """Return the median step and the median of each column in at most 40 equal parts of the snapshots."""
    edges = np.linspace(0, len(steps), min(BLOCKS, len(steps)) + 1).astype(int)
    parts = [slice(start, end) for start, end in pairwise(edges.tolist())]
    whole = (steps.astype(np.float64), *columns)
    return tuple(np.array([np.median(column[part]) for part in parts]) for column in whole)


def widening(residuals: Floats) -> float:
    """Return the factor by which correlation between neighboring residuals widens an interval, at least 1.

    Args:
        residuals: ``[n]`` residuals in order of step.
    """
    residuals = residuals - residuals.mean()
    power = float(residuals @ residuals)
    if power <= 0:
        return 1.0
    correlation = float(residuals[1:] @ residuals[:-1]) / power
    # A correlation that is not significant at 95 % counts as zero, or noise would widen every interval.
    if correlation < _NORMAL / math.sqrt(len(residuals)):
        return 1.0
    # Variance of a mean of an AR(1) process, relative to independent values; limited, since it diverges at 1.
    return math.sqrt((1 + correlation) / (1 - min(correlation, 0.98)))


def verdict_of(steps: NDArray[np.int64], values: Floats, trend: Trend | None, least: float) -> Verdict:
    """Describe how a quantity changes.

    Args:
        steps: ``[n]`` iterations.
        values: ``[n]`` finite values.
        trend: slope of the quantity; None if there are too few values.
        least: minimum change over the whole range that is relevant.
    """
    if trend is None:
        return "too short"
    span = float(steps[-1] - steps[0]) / 1000
    if trend.sign and abs(trend.per_1000) * span >= least:
        return "rising" if trend.sign > 0 else "falling"
    # Without a clear slope: medians of the first and last quarter, since single values may be spikes.
    quarter = max(1, len(values) // 4)
    moved = abs(float(np.median(values[-quarter:]) - np.median(values[:quarter])))
    if moved >= least:
        return "in steps" if _in_steps(values, moved) else "uneven"
    return "steady"


def _in_steps(values: Floats, moved: float) -> bool:
    """Return whether the largest 5 % of the changes between snapshots make up most of the total change."""
    changes = np.diff(values)
    count = max(1, len(changes) // 20)
    largest = np.argsort(-np.abs(changes))[:count]
    return abs(float(changes[largest].sum())) >= 0.8 * moved


def startup(allocated: Floats, optimizer: Floats | None) -> int:
    """Return the number of snapshots at the start that are excluded from slopes.

    These are the snapshots before the optimizer has a state, and those before a jump in the first 5 % (at least two) of
    the snapshots that exceeds 5 % of the memory and ten times the usual change.

    Args:
        allocated: ``[n]`` allocated memory.
        optimizer: ``[n]`` memory of the optimizer's state; None if unknown.
    """
    count = len(allocated)
    if count < 2 * LEAST:
        return 0
    before = 0
    # Adam allocates twice the size of the parameters at its first update.
    if optimizer is not None and optimizer.any():
        before = int(np.argmax(optimizer > 0))
    head = max(2, count // 20)
    changes = np.abs(np.diff(allocated))
    usual = float(np.median(changes[head:]))
    level = float(np.median(allocated))
    jumps = np.flatnonzero(changes[:head] > max(10 * usual, 0.05 * level))
    before = max(before, int(jumps[-1]) + 1 if len(jumps) else 0)
    # A start-up that lasts half of the run is none: the optimizer was created late, or the log is odd.
    return before if before <= count // 2 else 0
