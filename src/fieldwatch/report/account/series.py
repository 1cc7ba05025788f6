"""Every recorded metric as a line that can be drawn: few points, nothing hidden, what it means beside it."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Catalogue, History, Metric, Series, tags
from fieldwatch.report.account.thinning import chosen_points, fair_shares

Floats = NDArray[np.float64]
"""Columns that so start are bookkeeping of the batch: the table of samples tells them."""
POINT_BYTES = 19
"""A point's step and value in JSON, about."""
HEAD_BYTES = 400
"""What stands around the points of a series: its name, unit, meaning, extremes."""
LEAST_POINTS = 16
MOST_BAD = 200


def all_series(history: History, catalogue: Catalogue, budget: int) -> dict[str, dict[str, Any]]:
    """Return every metric of a history, thinned so that all together take about ``budget`` bytes of JSON."""
    names = [name for name in history.names() if tags.kind(name) != tags.SAMPLE]
    lengths = [len(history[name]) for name in names]
    # Many metrics may use the budget up with their heads alone: points keep a quarter of it.
    room = max(budget - HEAD_BYTES * len(names), budget // 4)
    shares = fair_shares(lengths, room // POINT_BYTES, LEAST_POINTS)
    return {
        name: one_series(history[name], catalogue.find(name), most) for name, most in zip(names, shares, strict=True)
    }


def one_series(series: Series, metric: Metric | None, most: int) -> dict[str, Any]:
    """Return one metric: its points (at most about ``most``), its extremes, and every step that was not finite.

    The steps stand on the axis; where a metric was recorded by epoch, ``epochs`` holds those of the points.
    """
    by_epoch = (metric is None or metric.axis == "epoch") and bool((series.positions != series.steps).any())
    # Several epochs can end in one step (an evaluation before training): the axis is then the epoch.
    again = by_epoch and bool((np.diff(series.steps) <= 0).any())
    axis = series.positions if again else series.steps
    kept = chosen_points(series.values, most)
    seen = series.values[kept]
    places = axis[kept]
    bad = np.flatnonzero(~np.isfinite(series.values))
    known = {
        "unit": metric.unit if metric else "",
        "meaning": metric.meaning if metric else "",
        "better": metric.better if metric and metric.better in ("lower", "higher") else "",
        "axis": "epoch" if again else "step",
        "rows": len(series),
        "x": places.astype(np.int64).tolist(),
        "y": rounded(seen),
        "bad": axis[bad[:MOST_BAD]].astype(np.int64).tolist(),
        "thinned": len(kept) < len(series),
        "last": number(series.values[-1]) if len(series) else None,
        "min": _extreme(seen, places, np.nanargmin),
        "max": _extreme(seen, places, np.nanargmax),
    }
    if by_epoch and not again:
        known["epochs"] = series.positions[kept].astype(np.int64).tolist()
    if len(bad):
        known |= {"bad_count": len(bad), "bad_first": int(axis[bad[0]]), "bad_last": int(axis[bad[-1]])}
    return known


def matching(names: Iterable[str], *starts: str) -> list[str]:
    """Return the names that start with one of some texts, in their order."""
    return [name for name in names if name.startswith(starts)]


def short_labels(names: Iterable[str], *families: tags.Family) -> dict[str, str]:
    """Return for each name its part in the first family that it belongs to; the whole name if it belongs to none."""
    return {name: next(filter(None, (family.part(name) for family in families)), name) for name in names}


def derived(x: Floats, y: Floats, meaning: str, unit: str = "") -> dict[str, Any]:
    """Return a series that no metric holds, such as the sizes of the ledger; all its points stay."""
    metric = Metric(name="derived", unit=unit, meaning=meaning)
    return one_series(Series(steps=x, seconds=x, positions=x, values=y), metric, len(x))


def rounded(values: Floats) -> list[float | None]:
    """Return numbers with six digits; None for what is not finite."""
    return [float(f"{value:.6g}") if -np.inf < value < np.inf else None for value in values.tolist()]


def number(value: float) -> float | None:
    """Return one number with six digits, None if it is not finite."""
    return rounded(np.array([value], np.float64))[0]


def _extreme(values: Floats, axis: Floats, pick: Callable[[Floats], Any]) -> list[float | int | None]:
    """Return an extreme and where it stands; the points that are kept hold those of the whole series."""
    finite = np.where(np.isfinite(values), values, np.nan)
    if not len(values) or np.isnan(finite).all():
        return [None, None]
    place = int(pick(finite))
    return [number(values[place]), int(axis[place])]
