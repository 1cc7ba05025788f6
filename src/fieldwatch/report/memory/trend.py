"""How fast a quantity grows, with a confidence interval over all snapshots.

The slope is Theil and Sen's, the median of the slopes between all pairs of blocks, with Sen's interval (Sen 1968, JASA
63:1379). Blocks are at most 40 equal parts of the snapshots, each by its median. Chosen over a straight line by least
squares because memory moves in spikes (evaluation), in single steps (a densification) and in correlated noise: a
spike does not reach a block's median, a single step moves less than half of the pairs, and the correlation that is
left between blocks widens the interval (Hamed and Rao 1998, J. Hydrology 204:182, first lag only).
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
LEAST = 6
"""Fewer snapshots than this have no slope: with 5 and less, a 95 % interval does not exist or says nothing."""
_NORMAL = 1.959964


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A slope per 1000 iterations with its 95 % confidence interval.

    Attributes:
        per_1000: the slope, in the quantity's unit.
        low: lower end of the interval.
        high: upper end of the interval.
        blocks: how many blocks of snapshots it rests on.
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
    """Return the slope of a quantity, None where fewer than six snapshots know it.

    Args:
        steps: ``[n]`` iterations, ascending.
        values: ``[n]``; non-finite ones are left out.
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


def widening(rest: Floats) -> float:
    """Return by what an interval grows because neighbours among the ``[n]`` residuals are alike."""
    rest = rest - rest.mean()
    power = float(rest @ rest)
    if power <= 0:
        return 1.0
    alike = float(rest[1:] @ rest[:-1]) / power
    # Not significant at 95 %: then it is taken for zero.
    if alike < _NORMAL / math.sqrt(len(rest)):
        return 1.0
    return math.sqrt((1 + alike) / (1 - min(alike, 0.98)))


def verdict_of(steps: NDArray[np.int64], values: Floats, trend: Trend | None, least: float) -> Verdict:
    """Say in words how a quantity moves.

    Args:
        steps: ``[n]`` iterations.
        values: ``[n]``, finite.
        trend: its slope.
        least: a change over the whole range that is smaller than this does not matter.
    """
    if trend is None:
        return "too short"
    span = float(steps[-1] - steps[0]) / 1000
    if trend.sign and abs(trend.per_1000) * span >= least:
        return "rising" if trend.sign > 0 else "falling"
    quarter = max(1, len(values) // 4)
    moved = abs(float(np.median(values[-quarter:]) - np.median(values[:quarter])))
    if moved >= least:
        return "in steps" if _in_steps(values, moved) else "uneven"
    return "steady"


def _in_steps(values: Floats, moved: float) -> bool:
    """Whether the few largest changes between snapshots make up most of the whole change."""
    changes = np.diff(values)
    few = max(1, len(changes) // 20)
    largest = np.argsort(-np.abs(changes))[:few]
    return abs(float(changes[largest].sum())) >= 0.8 * moved


def startup(allocated: Floats, optimizer: Floats | None) -> int:
    """Return how many snapshots at the start are left out of slopes.

    Those before the optimizer's state exists, where the log knows it; and those before a jump within the first 5 %
    (at least two) of the snapshots that is larger than 5 % of the memory and ten times the usual change.
    """
    count = len(allocated)
    if count < 2 * LEAST:
        return 0
    before = 0
    if optimizer is not None and optimizer.any():
        before = int(np.argmax(optimizer > 0))
    head = max(2, count // 20)
    changes = np.abs(np.diff(allocated))
    usual = float(np.median(changes[head:]))
    level = float(np.median(allocated))
    jumps = np.flatnonzero(changes[:head] > max(10 * usual, 0.05 * level))
    before = max(before, int(jumps[-1]) + 1 if len(jumps) else 0)
    return before if before <= count // 2 else 0
