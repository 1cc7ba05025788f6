"""The comparison in the form of an account, which the report's script draws; each series is a metric of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Series
from fieldwatch.report.account import chosen_points, fair_shares
from fieldwatch.report.compare.align import axis_of
from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.panels import account_tables
from fieldwatch.report.compare.sentences import printable, sentences, title

Panel = dict[str, Any]
BUDGET = 2_000_000
"""Approximate limit for the JSON of all series, in bytes."""
_POINT_BYTES = 19
_LEAST_POINTS = 16
_CURVES = 12
_OVER_TIME = 6
_MOST_BAD = 200
_PACE = ("Time/step", "Memory/peak_MB", "Memory/allocated_MB", "Model/size")
_SEVERITIES = ("error", "warning")


def comparison_account(comparison: Comparison, *, budget: int = BUDGET) -> dict[str, Any]:
    """Return the comparison in the form of a run's account, for `fieldwatch.draw`.

    Args:
        comparison: compared runs.
        budget: approximate limit for the JSON of all series, in bytes.
    """
    names = [metric.name for metric in comparison.metrics]
    also = [name for name in _PACE if sum(name in side.series for side in comparison.sides) > 1]
    series, steps, times = _all_series(comparison, [*names[:_CURVES], *also], names[:_OVER_TIME], budget)
    tables = account_tables(comparison)
    charts = [
        _charts(("curves", "Over steps", "One line per run."), names[:_CURVES], steps, series),
        _charts(
            ("time", "Over time", "The same metrics over the seconds of training."), names[:_OVER_TIME], times, series
        ),
        _charts(("pace", "Speed and memory", "Time and memory of a step."), also, steps, series),
    ]
    firsts = [side.first for side in comparison.sides if side.first is not None]
    lasts = [side.last for side in comparison.sides if side.last is not None]
    return {
        "format": 1,
        "run": {
            "name": _heading(comparison),
            "said": [_counted(comparison), f"made {datetime.now(UTC).isoformat(timespec='minutes')}"],
            "folder": "",
            "pipeline": None,
            "state": "",
            "first_step": min(firsts, default=0),
            "last_step": max(lasts, default=None),
            "steps_planned": None,
            "rows": sum(side.rows for side in comparison.sides),
            "seconds": sum(side.seconds for side in comparison.sides),
            "started": "",
            "updated": "",
            "segments": [],
            "resume": "",
        },
        "verdict": {
            "level": "notes",
            "label": "Comparison",
            "title": title(comparison),
            "detail": " ".join(sentences(comparison)),
        },
        "findings": list(_findings(comparison)),
        "crash": None,
        "phases": _phases(comparison),
        "marks": _marks(comparison),
        "series": series,
        "panels": [*tables[:2], *charts, *tables[2:]],
        "json_of": f"fieldwatch {metadata.version('fieldwatch')}, {datetime.now(UTC).isoformat(timespec='seconds')}",
    }


def _heading(comparison: Comparison) -> str:
    names = [printable(name, 40) for name in comparison.names]
    return " against ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more runs"


def _counted(comparison: Comparison) -> str:
    return f"{len(comparison.sides)} runs, {len(comparison.metrics)} metrics compared"


def _all_series(
    comparison: Comparison, names: Sequence[str], over_time: Sequence[str], budget: int
) -> tuple[dict[str, Any], dict[str, list[tuple[str, str]]], dict[str, list[tuple[str, str]]]]:
    """Return all series by key, and for each metric its keys with the run names, over steps and over seconds."""
    wanted = [
        (f"{place}:{name}{' (s)' if timed else ''}", side.name, name, series, timed)
        for timed, chosen in ((False, names), (True, over_time))
        for name in chosen
        for place, side in enumerate(comparison.sides)
        if (series := side.series.get(name)) is not None
    ]
    shares = fair_shares([len(series) for _, _, _, series, _ in wanted], budget // _POINT_BYTES, _LEAST_POINTS)
    found: dict[str, Any] = {}
    steps: dict[str, list[tuple[str, str]]] = {}
    times: dict[str, list[tuple[str, str]]] = {}
    better = {metric.name: metric.better for metric in comparison.metrics}
    for (key, run, name, series, timed), most in zip(wanted, shares, strict=True):
        axis = series.seconds if timed else axis_of(series, positions=comparison.positions)
        found[key] = account_series(series, axis, most) | {
            "meaning": f"{name} of {run}",
            "better": better.get(name, "") if better.get(name) in ("higher", "lower") else "",
            "axis": "second" if timed else "step",
        }
        (times if timed else steps).setdefault(name, []).append((key, run))
    return found, steps, times


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
    ends = [[None, None], [None, None]]
    if finite.any():
        places = (int(np.nanargmin(values)), int(np.nanargmax(values)))
        ends = [[_number(values[place]), _number(axis[place])] for place in places]
    return {
        "unit": "",
        "rows": len(series),
        "x": [_number(x) for x in axis[kept]],
        "y": [_number(value) for value in values[kept]],
        "bad": [_number(x) for x in bad[:_MOST_BAD]],
        "bad_count": len(bad),
        "thinned": len(kept) < len(series),
        "last": _number(values[-1]),
        "min": ends[0],
        "max": ends[1],
    }


def _number(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
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
            "series": [one for one, _ in keys_by_metric[name]],
            "labels": {one: printable(run) for one, run in keys_by_metric[name]},
            "log": _wide([series[one] for one, _ in keys_by_metric[name]]),
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
    lows = [one["min"][0] for one in series if one["min"][0] is not None]
    highs = [one["max"][0] for one in series if one["max"][0] is not None]
    return bool(lows) and min(lows) > 0 and max(highs) > 100 * min(lows)


def _findings(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for side in comparison.sides:
        for finding in side.findings:
            if finding["severity"] in _SEVERITIES:
                yield {**finding, "rule": f"{printable(side.name)}: {finding['rule']}"}


def _phases(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the phases if all runs have the same ones."""
    phases = [side.phases for side in comparison.sides if side.series]
    if not phases or comparison.positions or any(each != phases[0] for each in phases):
        return []
    return [{"name": phase.name, "first": phase.first, "last": phase.last} for phase in phases[0]]


def _marks(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {"kind": "first difference", "step": each.first[0].step, "text": each.sentence}
        for each in comparison.divergences
        if each.first
    ]
