"""The comparison in the form of an account, which the report's script draws; each series is a metric of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Series
from fieldwatch.report.account import chosen_points, fair_shares
from fieldwatch.report.compare.align import axis_of
from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.comparison_text import printable, sentences, title
from fieldwatch.report.compare.panels import account_tables
from fieldwatch.report.page import document

Panel = dict[str, Any]
BUDGET = 2_000_000
"""Approximate limit for the JSON of all series, in bytes."""
_POINT_BYTES = 19
"""Approximate size in JSON of a point."""
_LEAST_POINTS = 16
_CURVES = 12
"""Maximum number of metrics with a chart over steps."""
_OVER_TIME = 6
"""Maximum number of metrics that also have a chart over time."""
_MOST_BAD = 200
_PACE = ("Time/step", "Memory/peak_MB", "Memory/allocated_MB", "Model/size")
_SEVERITIES = ("error", "warning")
"""Findings that the page repeats; the notes of many runs would hide them."""


def comparison_account(comparison: Comparison, *, budget: int = BUDGET) -> dict[str, Any]:
    """Return the comparison in the form of a run's account, for `fieldwatch.draw`.

    Args:
        comparison: compared runs.
        budget: approximate limit for the JSON of all series, in bytes.
    """
    names = [metric.name for metric in comparison.metrics]
    pace_names = [name for name in _PACE if sum(name in side.series for side in comparison.sides) > 1]
    series, steps, times = _all_series(comparison, [*names[:_CURVES], *pace_names], names[:_OVER_TIME], budget)
    tables = account_tables(comparison)
    charts = [
        _charts(("curves", "Over steps", "One line per run."), names[:_CURVES], steps, series),
        _charts(
            ("time", "Over time", "The same metrics over the seconds of training."), names[:_OVER_TIME], times, series
        ),
        _charts(("pace", "Speed and memory", "Time and memory of a step."), pace_names, steps, series),
    ]
    firsts = [side.first for side in comparison.sides if side.first is not None]
    lasts = [side.last for side in comparison.sides if side.last is not None]
    return document(
        _heading(comparison),
        facts=[_counted(comparison)],
        label="Comparison",
        # "notes" has a neutral color: a comparison is neither healthy nor failed.
        level="notes",
        headline=title(comparison),
        detail=" ".join(sentences(comparison)),
        findings=list(_findings(comparison)),
        phases=_phases(comparison),
        marks=_marks(comparison),
        series=series,
        steps=(min(firsts, default=0), max(lasts)) if lasts else None,
        # Runs and final values come before the charts, the details after them.
        panels=[*tables[:2], *charts, *tables[2:]],
    )


def _heading(comparison: Comparison) -> str:
    names = [printable(name, 40) for name in comparison.names]
    return " against ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more runs"


def _counted(comparison: Comparison) -> str:
    return f"{len(comparison.sides)} runs, {len(comparison.metrics)} metrics compared"


def _all_series(
    comparison: Comparison, names: Sequence[str], over_time: Sequence[str], budget: int
) -> tuple[dict[str, Any], dict[str, list[tuple[str, str]]], dict[str, list[tuple[str, str]]]]:
    """Return all series by key, and for each metric its keys with the run names, over steps and over seconds."""
    # Keys start with the position of the run, since names of runs may be equal to names of metrics.
    requests = [
        (f"{place}:{name}{' (s)' if timed else ''}", side.name, name, series, timed)
        for timed, chosen in ((False, names), (True, over_time))
        for name in chosen
        for place, side in enumerate(comparison.sides)
        if (series := side.series.get(name)) is not None
    ]
    shares = fair_shares([len(series) for _, _, _, series, _ in requests], budget // _POINT_BYTES, _LEAST_POINTS)
    all_series: dict[str, Any] = {}
    steps: dict[str, list[tuple[str, str]]] = {}
    times: dict[str, list[tuple[str, str]]] = {}
    better = {metric.name: metric.better for metric in comparison.metrics}
    for (key, run, name, series, timed), most in zip(requests, shares, strict=True):
        axis = series.seconds if timed else axis_of(series, positions=comparison.positions)
        all_series[key] = account_series(series, axis, most) | {
            "meaning": f"{name} of {run}",
            "better": better.get(name, "") if better.get(name) in ("higher", "lower") else "",
            "axis": "second" if timed else "step",
        }
        (times if timed else steps).setdefault(name, []).append((key, run))
    return all_series, steps, times


def account_series(series: Series, axis: NDArray[np.float64], most: int) -> dict[str, Any]:
    """Return a series in the form of the account: thinned, with all spikes, and the steps of non-finite values.

    Args:
        series: series with at least one value.
        axis: ``[n]`` steps or seconds of the values.
        most: approximate maximum number of points.
    """
    kept = chosen_points(series.values, max(most, _LEAST_POINTS))
    # uPlot requires strictly ascending x; of repeated steps the last value is kept.
    kept = kept[np.append(np.diff(axis[kept]) > 0, True)]
    finite = np.isfinite(series.values)
    bad = axis[~finite]
    values = np.where(finite, series.values, np.nan)
    extremes = [[None, None], [None, None]]
    # nanargmin raises if all values are NaN.
    if finite.any():
        places = (int(np.nanargmin(values)), int(np.nanargmax(values)))
        extremes = [[_number(values[place]), _number(axis[place])] for place in places]
    return {
        "unit": "",
        "rows": len(series),
        "x": [_number(x) for x in axis[kept]],
        "y": [_number(value) for value in values[kept]],
        "bad": [_number(x) for x in bad[:_MOST_BAD]],
        "bad_count": len(bad),
        "thinned": len(kept) < len(series),
        "last": _number(values[-1]),
        "min": extremes[0],
        "max": extremes[1],
    }


def _number(value: float) -> float | int | None:
    """Return a number in as few characters as JSON allows; None if it is not finite."""
    if not np.isfinite(value):
        return None
    # Beyond 2**53, a browser could not read the integer exactly.
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(f"{value:.7g}")


def _charts(
    head: tuple[str, str, str],
    names: Iterable[str],
    keys_by_metric: Mapping[str, Sequence[tuple[str, str]]],
    series: Mapping[str, Mapping[str, Any]],
) -> Panel:
    """Return a group of charts, one per metric.

    Args:
        head: id, title and description.
        names: names of the metrics.
        keys_by_metric: for each metric the keys of its series, each with the name of its run.
        series: series by key.
    """
    key, caption, about = head
    parts = [
        {
            "id": f"{key}-{place}",
            "title": printable(name, 80),
            "kind": "lines",
            "series": [series_key for series_key, _ in keys_by_metric[name]],
            "labels": {series_key: printable(run) for series_key, run in keys_by_metric[name]},
            "log": _wide([series[series_key] for series_key, _ in keys_by_metric[name]]),
        }
        for place, name in enumerate(names)
        if name in keys_by_metric
    ]
    panel: Panel = {"id": key, "title": caption, "about": about}
    if not parts:
        return panel | {"kind": "empty", "why": "No such metric is in two or more of the runs."}
    return panel | {"kind": "group", "parts": parts}


def _wide(series: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the values need a logarithmic scale: all positive, with a range of more than 1 to 100."""
    lows = [curve["min"][0] for curve in series if curve["min"][0] is not None]
    highs = [curve["max"][0] for curve in series if curve["max"][0] is not None]
    return bool(lows) and min(lows) > 0 and max(highs) > 100 * min(lows)


def _findings(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for side in comparison.sides:
        for finding in side.findings:
            if finding["severity"] in _SEVERITIES:
                yield {**finding, "rule": f"{printable(side.name)}: {finding['rule']}"}


def _phases(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the phases if all runs have the same ones."""
    phases = [side.phases for side in comparison.sides if side.series]
    # Phases have steps; on the axis of event files they would be drawn at the wrong places.
    if not phases or comparison.positions or any(each != phases[0] for each in phases):
        return []
    return [{"name": phase.name, "first": phase.first, "last": phase.last} for phase in phases[0]]


def _marks(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {"kind": "first difference", "step": each.first[0].step, "text": each.sentence}
        for each in comparison.divergences
        if each.first
    ]
