"""What a run's values of one metric come to: the value at the end, the best one, the value at any row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Better, Series

Floats = NDArray[np.float64]
DENSE = 50
"""From so many values on, one alone is taken for noise, and the mean of the last twentieth stands for it."""
MOST_AVERAGED = 100
EQUAL = 1e-6
"""Values that differ by less than this part of their size are equal: TensorBoard rounds to seven digits."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What the values of one metric in one run come to.

    Attributes:
        final: the value at the end: the mean of the last `averaged` values; NaN where the last one is not finite.
        averaged: how many values that mean is of.
        best: the best value, by which way is good (the last one where that is not known); NaN without a finite value.
        best_step: its step.
        last_step: the step of the last value.
        count: how many values there are.
        bad: how many of them are not finite.
    """

    final: float
    averaged: int
    best: float
    best_step: int
    last_step: int
    count: int
    bad: int


def figure_of(series: Series, better: Better, axis: Floats) -> Figure:
    """Return what a series comes to.

    Args:
        series: at least one value.
        better: which way is good.
        axis: ``[n]``, the steps to tell.
    """
    values = series.values
    finite = np.isfinite(values)
    place = _best(values, finite, better)
    final, averaged = value_after(values, len(values))
    return Figure(
        final=final,
        averaged=averaged,
        best=float(values[place]) if finite.any() else float("nan"),
        best_step=int(axis[place]),
        last_step=int(axis[-1]),
        count=len(values),
        bad=int((~finite).sum()),
    )


def value_after(values: Floats, rows: int) -> tuple[float, int]:
    """Return the value that stands after so many rows, and of how many values it is the mean.

    Of fewer than 50 rows that is the last one; of more the mean of the last twentieth, at most 100. Values that are not
    finite are left out of the mean; where the last one is not finite, neither is the answer. NaN without rows.
    """
    if not rows or not np.isfinite(values[rows - 1]):
        return float("nan"), 0
    window = values[rows - _width(rows) : rows]
    kept = window[np.isfinite(window)]
    return float(kept.mean()), len(kept)


def _width(rows: int) -> int:
    return 1 if rows < DENSE else max(1, min(MOST_AVERAGED, rows // 20))


def _best(values: Floats, finite: NDArray[np.bool_], better: Better) -> int:
    if not finite.any() or better not in ("higher", "lower"):
        return len(values) - 1
    if better == "higher":
        return int(np.argmax(np.where(finite, values, -np.inf)))
    return int(np.argmin(np.where(finite, values, np.inf)))


def winner(values: dict[str, float], better: Better) -> str:
    """Return whose value is the best; empty where nobody's is, or several are equal, or no way is good."""
    known = {name: value for name, value in values.items() if np.isfinite(value)}
    if better not in ("higher", "lower") or len(known) < 2:
        return ""
    best = max(known.values()) if better == "higher" else min(known.values())
    first = [name for name, value in known.items() if abs(value - best) <= EQUAL * max(abs(value), abs(best))]
    return first[0] if len(first) == 1 else ""
