"""Recorded metrics as series for charts: thinned without hiding spikes, with unit and meaning."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Catalogue, History, Metric, Series, tags
from fieldwatch.report.account.thinning import chosen_points, fair_shares

Floats = NDArray[np.float64]
POINT_BYTES = 19
"""Approximate size in JSON of a point: its step and its value."""
HEAD_BYTES = 400
"""Approximate size in JSON of the rest of a series: name, unit, meaning, extremes."""
LEAST_POINTS = 16
"""Minimum number of points of a series, however many series share the budget."""
MOST_BAD = 200
"""Maximum number of listed steps with non-finite values; more are counted."""


def all_series(history: History, catalogue: Catalogue, budget: int) -> dict[str, dict[str, Any]]:
    """Return every metric of a history, thinned so that all series take about ``budget`` bytes of JSON."""
    names = [name for name in history.names() if tags.kind(name) != tags.SAMPLE]
    lengths = [len(history[name]) for name in names]
    # With many metrics the heads alone may exceed the budget: a quarter of it is reserved for points.
    point_budget = max(budget - HEAD_BYTES * len(names), budget // 4)
    shares = fair_shares(lengths, point_budget // POINT_BYTES, LEAST_POINTS)
    return {
        name: one_series(history[name], catalogue.find(name), most) for name, most in zip(names, shares, strict=True)
    }


def one_series(series: Series, metric: Metric | None, most: int) -> dict[str, Any]:
    """Return one metric: at most about ``most`` points, its extremes, and the steps with values that are not finite.

    The axis has steps; for metrics recorded by epoch, ``epochs`` has the epochs of the points.
    """
    by_epoch = (metric is None or metric.axis == "epoch") and bool((series.positions != series.steps).any())
    # Several epochs can end in one step (an evaluation before training): the axis is then the epoch.
    steps_repeat = by_epoch and bool((np.diff(series.steps) <= 0).any())
    axis = series.positions if steps_repeat else series.steps
    kept = chosen_points(series.values, most)
    values = series.values[kept]
    places = axis[kept]
    # Found in all rows: thinning keeps only the first non-finite value of each bucket.
    bad = np.flatnonzero(~np.isfinite(series.values))
    answer = {
        "unit": metric.unit if metric else "",
        "meaning": metric.meaning if metric else "",
        "better": metric.better if metric and metric.better in ("lower", "higher") else "",
        "axis": "epoch" if steps_repeat else "step",
        "rows": len(series),
        "x": places.astype(np.int64).tolist(),
        "y": rounded(values),
        "bad": axis[bad[:MOST_BAD]].astype(np.int64).tolist(),
        "thinned": len(kept) < len(series),
        "last": number(series.values[-1]) if len(series) else None,
        "min": _extreme(values, places, np.nanargmin),
        "max": _extreme(values, places, np.nanargmax),
    }
    if by_epoch and not steps_repeat:
        answer["epochs"] = series.positions[kept].astype(np.int64).tolist()
    if len(bad):
        answer |= {"bad_count": len(bad), "bad_first": int(axis[bad[0]]), "bad_last": int(axis[bad[-1]])}
    return answer


def matching(names: Iterable[str], *starts: str) -> list[str]:
    """Return the names that start with any of ``starts``, in their order."""
    return [name for name in names if name.startswith(starts)]


def short_labels(names: Iterable[str], *families: tags.Family) -> dict[str, str]:
    """Map each name to its part within the first family that it belongs to; names without a family stay whole."""
    return {name: next(filter(None, (family.part(name) for family in families)), name) for name in names}


def derived(x: Floats, y: Floats, meaning: str, unit: str = "") -> dict[str, Any]:
    """Return a series computed from other data, such as the sizes in the ledger, with all its points."""
    metric = Metric(name="derived", unit=unit, meaning=meaning)
    # `most` is the length: derived series are short already.
    return one_series(Series(steps=x, seconds=x, positions=x, values=y), metric, len(x))


def rounded(values: Floats) -> list[float | None]:
    """Round to six significant digits; values that are not finite become None, as JSON has no NaN."""
    # Through text, since rounding to decimals would lose small values; six digits are finer than a pixel.
    return [float(f"{value:.6g}") if -np.inf < value < np.inf else None for value in values.tolist()]


def number(value: float) -> float | None:
    """Round to six significant digits; None if the value is not finite."""
    return rounded(np.array([value], np.float64))[0]


def _extreme(values: Floats, axis: Floats, pick: Callable[[Floats], Any]) -> list[float | int | None]:
    """Return an extreme value and its place on the axis; thinning keeps the extremes of the whole series."""
    finite = np.where(np.isfinite(values), values, np.nan)
    if not len(values) or np.isnan(finite).all():
        return [None, None]
    place = int(pick(finite))
    return [number(values[place]), int(axis[place])]
