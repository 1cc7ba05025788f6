"""Alignment of runs at the same step, after the same training time, and at the end of the same phase."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import duration
from fieldwatch.record import Better, Series
from fieldwatch.report.compare.figures import value_after, winner
from fieldwatch.report.compare.side import RunPhase, Side

By = Literal["step", "time", "phase"]
Floats = NDArray[np.float64]
PARTS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of the common range at which runs are compared."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One metric of all runs at one point of the training.

    Attributes:
        metric: name of the metric.
        at: description of the point: ``step 512``, ``2 min 3 s``, ``end of "warm-up"``.
        place: step or seconds; NaN for a phase.
        values: value of each run after that point; NaN if it has none.
        best: run with the best value; empty if there is none.
    """

    metric: str
    at: str
    place: float
    values: Mapping[str, float]
    best: str


def axis_of(series: Series, *, positions: bool) -> Floats:
    """Return the steps of a series, or its positions on its axis (TensorBoard's steps)."""
    return series.positions if positions else series.steps


def at_points(sides: Sequence[Side], metric: str, better: Better, by: By, *, positions: bool) -> list[Point]:
    """Return one metric at the quarters of the range that all runs cover, or at the end of each shared phase.

    Args:
        sides: runs; those without the metric are left out.
        metric: name of the metric.
        better: better direction of the metric.
        by: what the runs are aligned by.
        positions: whether to use positions on the metric's axis instead of steps.
    """
    having = {side.name: side for side in sides if metric in side.series}
    if len(having) < 2:
        return []
    if by == "phase":
        return _at_phases(having, metric, better)
    axes = {
        name: side.series[metric].seconds if by == "time" else axis_of(side.series[metric], positions=positions)
        for name, side in having.items()
    }
    # The range that all runs cover: beyond it, a longer run would be ahead of itself only.
    start = max(float(axis[0]) for axis in axes.values())
    end = min(float(axis[-1]) for axis in axes.values())
    places = [start + part * (end - start) for part in PARTS]
    if by == "step":
        places = [float(round(place)) for place in places]
    points: list[Point] = []
    # Without duplicates: rounded steps of a short range coincide. An empty range has no points.
    for place in dict.fromkeys(place for place in places if start <= place <= end):
        values = {name: _value_at(having[name].series[metric], axis, place) for name, axis in axes.items()}
        text = duration(place) if by == "time" else f"step {place:,.0f}"
        points.append(Point(metric=metric, at=text, place=place, values=values, best=winner(values, better)))
    return points


def shared_phases(sides: Sequence[Side]) -> list[str]:
    """Return the names of the phases that two or more runs have, in order."""
    names = [phase.name for side in sides for phase in side.phases]
    return [name for name in dict.fromkeys(names) if sum(_phase(side, name) is not None for side in sides) > 1]


def _at_phases(having: Mapping[str, Side], metric: str, better: Better) -> list[Point]:
    points: list[Point] = []
    for name in shared_phases(list(having.values())):
        values = {run: _in_phase(side, metric, phase) for run, side in having.items() if (phase := _phase(side, name))}
        if any(np.isfinite(value) for value in values.values()):
            at = f'end of "{name}"'
            # A phase may end at another step in each run, so the point has no place.
            points.append(Point(metric=metric, at=at, place=float("nan"), values=values, best=winner(values, better)))
    return points


def _phase(side: Side, name: str) -> RunPhase | None:
    return next((phase for phase in side.phases if phase.name == name), None)


def _in_phase(side: Side, metric: str, phase: RunPhase) -> float:
    """Return the value after the last row of a phase; NaN if the phase has no rows."""
    series = side.series[metric]
    first = int(np.searchsorted(series.steps, phase.first))
    last = len(series) if phase.last is None else int(np.searchsorted(series.steps, phase.last, side="right"))
    # Only rows of the phase: a mean that reached into the phase before would mix two objectives.
    return value_after(series.values[first:last], last - first)[0]


def _value_at(series: Series, axis: Floats, place: float) -> float:
    # searchsorted needs an ascending axis; that of a resumed run may step back.
    order = axis if bool((np.diff(axis) >= 0).all()) else np.maximum.accumulate(axis)
    return value_after(series.values, int(np.searchsorted(order, place, side="right")))[0]
