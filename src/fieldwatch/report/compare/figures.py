"""Summary of a metric's values in one run: final value, best value, and the value after any row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Better, Series

Floats = NDArray[np.float64]
DENSE = 50
"""Number of values from which the final value is the mean of the last twentieth, since single values are noisy."""
MOST_AVERAGED = 100
"""Maximum number of values in that mean: of a long run, a twentieth would reach too far back."""
EQUAL = 1e-6
"""Relative tolerance below which values count as equal: TensorBoard's float32 has seven digits."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Summary of the values of one metric in one run.

    Attributes:
        final: final value, the mean of the last `averaged` values; NaN if the last value is not finite.
        averaged: number of values in that mean.
        best: best value (the last one if the better direction is unknown); NaN without a finite value.
        best_step: step of the best value.
        last_step: step of the last value.
        count: number of values.
        bad: number of values that are not finite.
    """

    final: float
    averaged: int
    best: float
    best_step: int
    last_step: int
    count: int
    bad: int


def figure_of(series: Series, better: Better, axis: Floats) -> Figure:
    """Summarize a series.

    Args:
        series: series with at least one value.
        better: better direction of the metric.
        axis: ``[n]`` steps to report.
    """
    values = series.values
    finite = np.isfinite(values)
    place = _best_row(values, finite, better)
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
    """Return the value after a number of rows, and the number of values that it averages.

    Below 50 rows this is the last value, otherwise the mean of the last twentieth, at most 100 values. Values that are
    not finite are left out of the mean. The result is NaN without rows and if the last value is not finite.
    """
    if not rows or not np.isfinite(values[rows - 1]):
        return float("nan"), 0
    # A mean over a window: the last value of a noisy curve is one draw, and would decide by chance.
    window = values[rows - _width(rows) : rows]
    # Never empty, because the last value is finite.
    kept = window[np.isfinite(window)]
    return float(kept.mean()), len(kept)


def _width(rows: int) -> int:
    return 1 if rows < DENSE else max(1, min(MOST_AVERAGED, rows // 20))


def _best_row(values: Floats, finite: NDArray[np.bool_], better: Better) -> int:
    """Return the row of the best value; the last one if none is finite or the better direction is unknown."""
    if not finite.any() or better not in ("higher", "lower"):
        return len(values) - 1
    if better == "higher":
        return int(np.argmax(np.where(finite, values, -np.inf)))
    return int(np.argmin(np.where(finite, values, np.inf)))


def winner(values: dict[str, float], better: Better) -> str:
    """Return the run with the best value; empty if several are equal or the better direction is unknown."""
    known = {name: value for name, value in values.items() if np.isfinite(value)}
    if better not in ("higher", "lower") or len(known) < 2:
        return ""
    best = max(known.values()) if better == "higher" else min(known.values())
    # A tie has no winner: the order of the arguments must not decide.
    tied = [name for name, value in known.items() if abs(value - best) <= EQUAL * max(abs(value), abs(best))]
    return tied[0] if len(tied) == 1 else ""
