"""The comparison for a terminal: tables that fit 80 columns, for two runs as for twenty."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fieldwatch.base import number
from fieldwatch.report.compare.align import By
from fieldwatch.report.compare.comparison import ComparedMetric, Comparison
from fieldwatch.report.compare.comparison_text import DIGITS, printable, sentences, title
from fieldwatch.report.compare.difference import Divergence
from fieldwatch.report.compare.keys import ABSENT
from fieldwatch.report.compare.seeds import WHY

MOST_COLUMNS = 4
"""Number of runs above which each run has a row instead of a column, and only the first metrics are shown."""
MOST_METRICS = 14
MOST_KEYS = 20
MOST_FINDINGS = 3
MOST_TESTS = 40
AT_THE_END = "At the end: the mean of the last twentieth (at most 100) of 50 values or more, else the last value."
_NORMAL_STATES = ("finished", "running", "")
"""States that are not shown in red; the empty one is that of event files, which record no state."""
_COLORS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def tables(comparison: Comparison, by: By) -> Iterator[RenderableType]:
    """Yield the answer, then the tables behind it.

    Args:
        comparison: compared runs.
        by: alignment to show.
    """
    yield Text(printable(title(comparison), 400), "bold")
    yield from (_indented(printable(sentence, 600)) for sentence in sentences(comparison))
    yield _runs(comparison)
    yield from _findings(comparison)
    # Without a shared metric, the title has said so already.
    if comparison.metrics:
        yield _metrics(comparison)
        yield Text(AT_THE_END, "dim")
        yield from _aligned(comparison, by)
    yield from _keys("Config: what differs", comparison.config)
    yield from _keys("Code: what differs", comparison.code)
    yield from _keys("Environment: what differs", comparison.environment)
    yield from _differences(comparison.divergences)
    yield from _significance(comparison)


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))


def _table(caption: str) -> Table:
    return Table(title=caption, title_justify="left", title_style="bold", pad_edge=False)


def _runs(comparison: Comparison) -> Table:
    has_findings = any(side.findings for side in comparison.sides)
    table = _table("Runs" + ("; E/W/N: errors, warnings, notes" if has_findings else ""))
    # Without a minimum, rich would fold the names first to make room for the numbers.
    table.add_column("run", overflow="fold", min_width=min(24, max(map(len, comparison.names))))
    table.add_column("state", no_wrap=True)
    for name in ("last step", "seconds", "steps/s", "peak MiB", *(["E/W/N"] if has_findings else [])):
        table.add_column(name, justify="right")
    for side in comparison.sides:
        pace = comparison.paces[side.name]
        style = "" if side.state in _NORMAL_STATES else "red"
        # Plain numbers in one unit, so that the rows of a column can be compared at a glance.
        cells = (number(value, DIGITS) for value in (side.last, pace.seconds, pace.steps_per_second, pace.peak_MB))
        counts = [_counts(side.findings)] if has_findings else []
        table.add_row(Text(printable(side.name)), Text(side.state or "(events)", style), *cells, *counts)
    return table


def _counts(findings: Sequence[Mapping[str, Any]]) -> Text:
    """Return the numbers of errors, warnings and notes."""
    severities = [finding["severity"] for finding in findings]
    counts = {name: severities.count(name) for name in _COLORS}
    parts = [(str(count), _COLORS[name] if count else "dim") for name, count in counts.items()]
    return Text("/").join([Text(*part) for part in parts])


def _findings(comparison: Comparison) -> Iterator[Text]:
    """Yield the verdict, the worst findings and the notes of each run."""
    for side in comparison.sides:
        # With many runs, verdicts would push the tables off the screen.
        if side.verdict and len(comparison.sides) <= 2 * MOST_COLUMNS:
            yield Text(f"{printable(side.name)}: {printable(side.verdict, 160)}")
        for finding in side.findings[:MOST_FINDINGS]:
            if finding["severity"] != "note":
                line = f"  {finding['rule']} at step {finding['step']}: {printable(finding['message'], 200)}"
                yield Text.assemble(
                    (f"{printable(side.name)} {finding['severity']}", _COLORS[finding["severity"]]), line
                )
        yield from (Text(f"{printable(side.name)}: {printable(note, 300)}", "dim") for note in side.notes)


def _metrics(comparison: Comparison) -> Table:
    """Return the table of final and best values; the best run of a metric has a star."""
    if len(comparison.sides) > MOST_COLUMNS:
        return _metrics_per_run(comparison)
    listed = comparison.metrics[:MOST_METRICS]
    more = (
        f"; {len(comparison.metrics) - len(listed)} more with --metric or --json"
        if comparison.metrics[MOST_METRICS:]
        else ""
    )
    table = _table(f"At the end (best, at its step); * is better{more}")
    table.add_column("metric", overflow="fold")
    table.add_column("better")
    for name in comparison.names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    for metric in listed:
        cells = [_cell(metric, name) for name in comparison.names]
        table.add_row(Text(printable(metric.name)), _better(metric), *cells)
    return table


def _metrics_per_run(comparison: Comparison) -> Table:
    table = _table("At the end; * is best")
    table.add_column("run", overflow="fold")
    columns = comparison.metrics[:MOST_COLUMNS]
    for metric in columns:
        table.add_column(Text(f"{printable(metric.name, 30)} ({_better(metric)})"), justify="right", overflow="fold")
    for name in comparison.names:
        table.add_row(Text(printable(name)), *(_cell(metric, name, ever=False) for metric in columns))
    return table


def _better(metric: ComparedMetric) -> str:
    if metric.better not in ("higher", "lower"):
        return "?"
    return metric.better if metric.meaning.source == "declared" else f"{metric.better}, by name"


def _cell(metric: ComparedMetric, run: str, *, ever: bool = True) -> Text:
    figure = metric.figures.get(run)
    if figure is None:
        return Text("-")
    # "-" means not recorded; a run that ended with NaN must not look like that.
    final = "not finite" if figure.count and not figure.averaged else number(figure.final, DIGITS)
    text = Text(final + ("*" if run == metric.best_final else ""), "bold green" if run == metric.best_final else "")
    if ever and metric.better in ("higher", "lower"):
        star = "*" if run == metric.best_ever else ""
        text.append(f"\n({number(figure.best, DIGITS)}{star} at {figure.best_step:,})", "dim")
    return text


def _aligned(comparison: Comparison, by: By) -> Iterator[RenderableType]:
    points = comparison.points[by]
    if not points:
        yield Text(f"Aligned by {by}: {_why_not_aligned(by)}", "dim")
        return
    many = len(comparison.sides) > MOST_COLUMNS
    listed = {metric.name for metric in comparison.metrics[: 4 if many else 6]}
    table = _table(f"Aligned by {by}; * is better")
    table.add_column("metric", overflow="fold")
    table.add_column("at", overflow="fold")
    for name in ("best run", "lowest", "highest") if many else comparison.names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    previous = ""
    for point in (point for point in points if point.metric in listed):
        cells = [f"{number(point.values.get(n), DIGITS)}{'*' * (n == point.best)}" for n in comparison.names]
        if many:
            # Never empty, because a point exists only where a run has a row; that value may be NaN.
            known = sorted(value for value in point.values.values() if np.isfinite(value)) or [float("nan")]
            cells = [point.best or "-", number(known[0], DIGITS), number(known[-1], DIGITS)]
        # A name appears only in the first row of its points.
        metric = "" if point.metric == previous else point.metric
        table.add_row(Text(printable(metric)), Text(printable(point.at)), *(Text(printable(cell)) for cell in cells))
        previous = point.metric
    yield table


def _why_not_aligned(by: By) -> str:
    if by == "phase":
        return "no two runs have recorded the same phase"
    return "no range of steps or seconds is covered by two runs"


def _keys(caption: str, keys: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    if not keys:
        return
    more = f" (the first {MOST_KEYS} of {len(keys)}; all with --json)" if len(keys) > MOST_KEYS else ""
    runs = list(next(iter(keys.values())))
    table = _table(caption + more)
    table.add_column("key", overflow="fold")
    many = len(runs) > MOST_COLUMNS
    for name in ("values",) if many else runs:
        table.add_column(Text(printable(name)), overflow="fold")
    for key, values in list(keys.items())[:MOST_KEYS]:
        cells = [_value(values[run]) for run in runs]
        table.add_row(Text(printable(key)), *([_by_value(runs, cells)] if many else [Text(cell) for cell in cells]))
    yield table


def _by_value(runs: Sequence[str], cells: Sequence[str]) -> Text:
    """Return each value with the number of its runs, or with the name of the only one."""
    runs_by_value: dict[str, list[str]] = {}
    for run, cell in zip(runs, cells, strict=True):
        runs_by_value.setdefault(cell, []).append(run)
    parts = [
        f"{cell}: {printable(having[0]) if len(having) == 1 else f'{len(having)} runs'}"
        for cell, having in runs_by_value.items()
    ]
    return Text("; ".join(parts[:8]) + (f"; {len(parts) - 8} more" if len(parts) > 8 else ""))


def _value(value: object) -> str:
    return "-" if value is ABSENT else printable(value)


def _differences(divergences: Sequence[Divergence]) -> Iterator[RenderableType]:
    if not divergences:
        return
    yield Text("First step where they differ", "bold")
    unrelated = [pair.runs[1] for pair in divergences if not pair.compared]
    for pair in divergences:
        # Several runs without a shared metric get one line together.
        if pair.compared or len(unrelated) == 1:
            yield _indented(printable(pair.sentence, 500))
    if len(unrelated) > 1:
        yield _indented(f"{divergences[0].runs[0]} shares no metric with {', '.join(map(printable, unrelated))}")
    left_out = dict.fromkeys(name.split("/", 1)[0] for pair in divergences for name in pair.left_out)
    if left_out:
        yield _indented(f"metrics of clocks and machines are left out: {', '.join(map(printable, left_out))}", "dim")


def _significance(comparison: Comparison) -> Iterator[RenderableType]:
    if not comparison.significance:
        return
    table = _table("Between the experiments: more than chance?")
    for name in ("metric", "experiments (seeds)", "means", "difference, 95 %", "statement"):
        table.add_column(name, overflow="fold")
    for test in comparison.significance[:MOST_TESTS]:
        groups = " against ".join(
            f"{printable(name, 30)} ({count})" for name, count in zip(test.groups, test.counts, strict=True)
        )
        means = " / ".join(number(mean, DIGITS) for mean in test.means)
        low, high = test.interval
        difference = number(test.difference, DIGITS)
        # False for NaN: with one seed there is no interval.
        if low < high:
            difference += f"\n({number(low, DIGITS)} .. {number(high, DIGITS)})"
        table.add_row(Text(printable(test.metric)), Text(groups), means, difference, Text(test.statement))
    yield Lines(table, Text(WHY, "dim"))
