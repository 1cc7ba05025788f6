"""Tables of the comparison page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fieldwatch.base import number
from fieldwatch.report.compare.comparison import Comparison
from fieldwatch.report.compare.comparison_text import DIGITS, printable, why_no_test
from fieldwatch.report.compare.keys import ABSENT
from fieldwatch.report.compare.seeds import WHY

Panel = dict[str, Any]
MOST_COLUMNS = 8
"""Number of runs above which each run has a row instead of a column."""
MOST_METRICS = 200
MOST_ALIGNED = 12
"""Maximum number of metrics if each of them has a column."""
AT_THE_END = (
    "With 50 values or more, the final value is the mean of the last twentieth, at most 100 values; a star marks the "
    "best run."
)


def account_tables(comparison: Comparison) -> list[Panel]:
    """Return the tables in reading order."""
    return [
        _runs(comparison),
        _metrics(comparison),
        _aligned(comparison),
        _difference(comparison),
        _chance(comparison),
        _keys("config", "Config: what differs", comparison.config, "No key differs between the known configs."),
        _keys("code", "Code: what differs", comparison.code, "No line differs, or the source of a run is not known."),
        _keys("environment", "Environment: what differs", comparison.environment, "No known difference."),
        _not_shared(comparison),
    ]


def _table(
    key: str, title: str, columns: Sequence[tuple[str, str, bool]], rows: list[dict[str, Any]], about: str
) -> Panel:
    heads = [{"key": name, "title": printable(text, 80), "number": is_number} for name, text, is_number in columns]
    return {"id": key, "title": title, "about": about, "kind": "table", "columns": heads, "rows": rows}


def _finite(value: float) -> float | None:
    # JSON has no NaN; the page shows null as "-".
    return float(value) if np.isfinite(value) else None


def _runs(comparison: Comparison) -> Panel:
    rows: list[dict[str, Any]] = []
    for side in comparison.sides:
        pace = comparison.paces[side.name]
        severities = [finding["severity"] for finding in side.findings]
        counts = [f"{n} {name}" for name in ("error", "warning", "note") if (n := severities.count(name))]
        rows.append(
            {
                "run": side.name,
                "state": side.state or "(event files)",
                "last": side.last,
                "seconds": _finite(pace.seconds),
                "rate": _finite(pace.steps_per_second),
                "peak": _finite(pace.peak_MB),
                "findings": ", ".join(counts),
            }
        )
    columns = [
        ("run", "run", False), ("state", "state", False), ("last", "last step", True), ("seconds", "seconds", True),
        ("rate", "steps/s", True), ("peak", "peak MiB", True), ("findings", "findings", False),
    ]  # fmt: skip
    facts = [
        {"name": side.name, "value": ". ".join(filter(None, (side.verdict, *side.notes, str(side.folder))))}
        for side in comparison.sides
    ]
    parts = [
        _table("runs-table", "", columns, rows, "Speed includes evaluation and saving."),
        {"id": "runs-facts", "title": "How they went, and where they are", "kind": "facts", "facts": facts},
    ]
    return {"id": "runs", "title": "Runs", "kind": "group", "parts": parts}


def _metrics(comparison: Comparison) -> Panel:
    if not comparison.metrics:
        why = "No metric is in two or more of the runs: choose metrics with --metric."
        return {"id": "metrics", "title": "At the end", "kind": "empty", "why": why}
    many = len(comparison.sides) > MOST_COLUMNS
    rows = _metrics_by_run(comparison) if many else _runs_by_metric(comparison)
    # Columns are numbered, because a run may be called "metric" or "best".
    runs = [(f"r{place}", name, True) for place, name in enumerate(comparison.names)]
    metrics = [(f"m{place}", metric.name, True) for place, metric in enumerate(comparison.metrics[:MOST_ALIGNED])]
    columns = [("run", "run", False), *metrics] if many else [("metric", "metric", False), *runs, *_LAST]
    return _table("metrics", "At the end", columns, rows, AT_THE_END)


_LAST = [("best", "better run", False), ("ever", "best value at any step", False), ("better", "better is", False)]


def _runs_by_metric(comparison: Comparison) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for metric in comparison.metrics[:MOST_METRICS]:
        values = {
            f"r{place}": _cell(metric.finals, name, metric.best_final) for place, name in enumerate(comparison.names)
        }
        figure = metric.figures.get(metric.best_ever)
        ever = f"{number(figure.best, DIGITS)} of {metric.best_ever} at {figure.best_step:,}" if figure else ""
        known = metric.better in ("higher", "lower")
        better = f"{metric.better} ({metric.meaning.source})" if known else "not known"
        rows.append({"metric": metric.name, **values, "best": metric.best_final, "ever": ever, "better": better})
    return rows


def _metrics_by_run(comparison: Comparison) -> list[dict[str, Any]]:
    metrics = comparison.metrics[:MOST_ALIGNED]
    return [
        {"run": name}
        | {f"m{place}": _cell(metric.finals, name, metric.best_final) for place, metric in enumerate(metrics)}
        for name in comparison.names
    ]


def _cell(values: Mapping[str, float], run: str, best: str) -> float | str | None:
    """Return the value as a number, which the page can sort; the best one as text with a star."""
    value = values.get(run)
    if value is None:
        return None
    if not np.isfinite(value):
        return "not finite"
    return f"{number(value, DIGITS)} ★" if run == best else float(value)


def _aligned(comparison: Comparison) -> Panel:
    why = {
        "step": "No two runs have a metric and a step in common.",
        "time": "No two runs have a metric and a second in common.",
        "phase": "No two runs have recorded the same phase.",
    }
    titles = {
        "step": "At the same step",
        "time": "After the same seconds of training",
        "phase": "At the end of a phase",
    }
    parts: list[Panel] = []
    for by, points in comparison.points.items():
        key = f"aligned-{by}"
        title = titles[by]
        rows = [
            {"metric": p.metric, "at": p.at}
            | {f"r{place}": _cell(p.values, name, p.best) for place, name in enumerate(comparison.names)}
            for p in points
        ]
        runs = [(f"r{place}", name, True) for place, name in enumerate(comparison.names)]
        columns = [("metric", "metric", False), ("at", "at", False), *runs]
        empty = {"id": key, "title": title, "kind": "empty", "why": why[by]}
        parts.append(_table(key, title, columns, rows, "") if rows else empty)
    about = "Value at that point, averaged like the final value over the rows up to it."
    return {"id": "aligned", "title": "Aligned", "about": about, "kind": "group", "parts": parts}


def _difference(comparison: Comparison) -> Panel:
    title = "First step where they differ"
    rows = [
        {
            "pair": f"{divergence.runs[0]} and {divergence.runs[1]}",
            "equal": divergence.equal_rows,
            "step": first.step if (first := next(iter(divergence.first), None)) else None,
            "metric": first.metric if first else "",
            "relative": _finite(first.relative) if first else None,
            "sentence": divergence.sentence,
        }
        for divergence in comparison.divergences
    ]
    # By prefix: a run has dozens of metrics below Time/ and Machine/.
    left_out = dict.fromkeys(name.split("/", 1)[0] for pair in comparison.divergences for name in pair.left_out)
    about = "Every shared metric, compared bitwise row by row with the first run. " + (
        f"Metrics of clocks and machines are left out: {', '.join(left_out)}." if left_out else ""
    )
    columns = [
        ("pair", "runs", False), ("equal", "equal steps", True), ("step", "first differing step", True),
        ("metric", "metric", False), ("relative", "relative difference", True), ("sentence", "in words", False),
    ]  # fmt: skip
    if not rows:
        return {"id": "difference", "title": title, "kind": "empty", "why": "Fewer than two of the runs have rows."}
    return _table("difference", title, columns, rows, about)


def _chance(comparison: Comparison) -> Panel:
    title = "More than chance?"
    if not comparison.significance:
        return {"id": "chance", "title": title, "kind": "empty", "why": why_no_test(comparison)}
    rows = [
        {
            "metric": test.metric,
            "groups": " against ".join(f"{name} ({n} seeds)" for name, n in zip(test.groups, test.counts, strict=True)),
            "first": _finite(test.means[0]),
            "second": _finite(test.means[1]),
            "interval": " .. ".join(number(end, DIGITS) for end in test.interval if np.isfinite(end)),
            "p": _finite(test.p),
            "statement": test.statement,
        }
        for test in comparison.significance
    ]
    columns = [
        ("metric", "metric", False), ("groups", "experiments", False), ("first", "first mean", True),
        ("second", "second mean", True), ("interval", "difference, 95 %", False), ("p", "p", True),
        ("statement", "", False),
    ]  # fmt: skip
    return _table("chance", title, columns, rows, WHY)


def _keys(key: str, title: str, keys: Mapping[str, Mapping[str, Any]], none: str) -> Panel:
    if not keys:
        return {"id": key, "title": title, "kind": "empty", "why": none}
    runs = list(next(iter(keys.values())))
    rows = [
        {"name": name} | {f"r{place}": _text(values[run]) for place, run in enumerate(runs)}
        for name, values in keys.items()
    ]
    return _table(
        key, title, [("name", "key", False), *((f"r{i}", run, False) for i, run in enumerate(runs))], rows, ""
    )


def _text(value: Any) -> str | None:
    # An absent key is an empty cell, while a value of None is the text "None".
    return None if value is ABSENT else printable(value, 200)


def _not_shared(comparison: Comparison) -> Panel:
    title = "Metrics missing in some runs"
    if not comparison.partly:
        why = f"All {len(comparison.shared):,} metrics are in every run with rows."
        return {"id": "not-shared", "title": title, "kind": "empty", "why": why}
    rows = [{"metric": name, "runs": ", ".join(runs)} for name, runs in comparison.partly.items()]
    about = f"{len(comparison.shared):,} metrics are in every run with rows."
    return _table("not-shared", title, [("metric", "metric", False), ("runs", "in", False)], rows, about)
