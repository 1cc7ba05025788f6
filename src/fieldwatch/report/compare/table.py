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
from fieldwatch.report.compare.difference import Divergence
from fieldwatch.report.compare.keys import ABSENT
from fieldwatch.report.compare.seeds import WHY
from fieldwatch.report.compare.sentences import DIGITS, printable, sentences, title

BESIDE = 4
"""With more runs than these each run has a row of its own, and only the first metrics a column."""
MOST_METRICS = 14
MOST_KEYS = 20
MOST_FINDINGS = 3
AT_THE_END = "At the end: the mean of the last twentieth (at most 100) of 50 values or more, else the last value."
_IN_ORDER = ("finished", "running", "")
"""States that need no look; the empty one is that of event files, which do not say."""
_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def tables(comparison: Comparison, by: By) -> Iterator[RenderableType]:
    """Yield the answer, then the tables that it rests on.

    Args:
        comparison: the runs.
        by: which alignment to show.
    """
    yield Text(printable(title(comparison), 400), "bold")
    yield from (_indented(printable(sentence, 600)) for sentence in sentences(comparison))
    yield _runs(comparison)
    yield from _findings(comparison)
    if comparison.metrics:
        yield _metrics(comparison)
        yield Text(AT_THE_END, "dim")
        yield from _aligned(comparison, by)
    yield from _keys("Config: what differs", comparison.config)
    yield from _keys("Environment: what differs", comparison.environment)
    yield from _differences(comparison.divergences)
    yield from _significance(comparison)


def _indented(text: str, style: str = "") -> Padding:
    return Padding(Text(text, style), (0, 0, 0, 2))


def _table(caption: str) -> Table:
    return Table(title=caption, title_justify="left", title_style="bold", pad_edge=False)


def _runs(comparison: Comparison) -> Table:
    told = any(side.findings for side in comparison.sides)
    table = _table("Runs" + ("; E/W/N: errors, warnings, notes" if told else ""))
    table.add_column("run", overflow="fold", min_width=min(24, max(map(len, comparison.names))))
    table.add_column("state", no_wrap=True)
    for name in ("last step", "seconds", "steps/s", "peak MiB", *(["E/W/N"] if told else [])):
        table.add_column(name, justify="right")
    for side in comparison.sides:
        pace = comparison.paces[side.name]
        style = "" if side.state in _IN_ORDER else "red"
        cells = (number(value, DIGITS) for value in (side.last, pace.seconds, pace.steps_per_second, pace.peak_MB))
        counts = [_counts(side.findings)] if told else []
        table.add_row(Text(printable(side.name)), Text(side.state or "(events)", style), *cells, *counts)
    return table


def _counts(findings: Sequence[Mapping[str, Any]]) -> Text:
    """Return how many errors, warnings and notes there are."""
    severities = [finding["severity"] for finding in findings]
    counts = {name: severities.count(name) for name in _COLOURS}
    parts = [(str(count), _COLOURS[name] if count else "dim") for name, count in counts.items()]
    return Text("/").join([Text(*part) for part in parts])


def _findings(comparison: Comparison) -> Iterator[Text]:
    """Yield the worst findings of each run, and what is to be known about its record."""
    for side in comparison.sides:
        if side.verdict and len(comparison.sides) <= 2 * BESIDE:
            yield Text(f"{printable(side.name)}: {printable(side.verdict, 160)}")
        for finding in side.findings[:MOST_FINDINGS]:
            if finding["severity"] != "note":
                line = f"  {finding['rule']} at step {finding['step']}: {printable(finding['message'], 200)}"
                yield Text.assemble(
                    (f"{printable(side.name)} {finding['severity']}", _COLOURS[finding["severity"]]), line
                )
        yield from (Text(f"{printable(side.name)}: {printable(note, 300)}", "dim") for note in side.notes)


def _metrics(comparison: Comparison) -> Table:
    """Return the values at the end and the best ones; what is best bears a star."""
    if len(comparison.sides) > BESIDE:
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
    columns = comparison.metrics[:BESIDE]
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
    listed = {metric.name for metric in comparison.metrics[: 4 if len(comparison.sides) > BESIDE else 6]}
    table = _table(f"Aligned by {by}; * is better")
    table.add_column("metric", overflow="fold")
    table.add_column("at", overflow="fold")
    many = len(comparison.sides) > BESIDE
    for name in ("best run", "lowest", "highest") if many else comparison.names:
        table.add_column(Text(printable(name)), justify="right", overflow="fold")
    previous = ""
    for point in (point for point in points if point.metric in listed):
        cells = [f"{number(point.values.get(n), DIGITS)}{'*' * (n == point.best)}" for n in comparison.names]
        if many:
            known = sorted(value for value in point.values.values() if np.isfinite(value)) or [float("nan")]
            cells = [point.best or "-", number(known[0], DIGITS), number(known[-1], DIGITS)]
        metric = "" if point.metric == previous else point.metric
        table.add_row(Text(printable(metric)), Text(printable(point.at)), *(Text(printable(cell)) for cell in cells))
        previous = point.metric
    yield table


def _why_not_aligned(by: By) -> str:
    if by == "phase":
        return "no phase is on record that two of the runs share"
    return "the runs have no part in common in which they could be compared"


def _keys(caption: str, keys: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    if not keys:
        return
    more = f" (the first {MOST_KEYS} of {len(keys)}; all with --json)" if len(keys) > MOST_KEYS else ""
    runs = list(next(iter(keys.values())))
    table = _table(caption + more)
    table.add_column("key", overflow="fold")
    many = len(runs) > BESIDE
    for name in ("values",) if many else runs:
        table.add_column(Text(printable(name)), overflow="fold")
    for key, values in list(keys.items())[:MOST_KEYS]:
        cells = [_value(values[run]) for run in runs]
        table.add_row(Text(printable(key)), *([_by_value(runs, cells)] if many else [Text(cell) for cell in cells]))
    yield table


def _by_value(runs: Sequence[str], cells: Sequence[str]) -> Text:
    """Return for many runs each value with how many have it."""
    held = {cell: [run for run, own in zip(runs, cells, strict=True) if own == cell] for cell in dict.fromkeys(cells)}
    parts = [f"{cell}: {printable(own[0]) if len(own) == 1 else f'{len(own)} runs'}" for cell, own in held.items()]
    return Text("; ".join(parts[:8]) + (f"; {len(parts) - 8} more" if len(parts) > 8 else ""))


def _value(value: object) -> str:
    return "-" if value is ABSENT else printable(value)


def _differences(divergences: Sequence[Divergence]) -> Iterator[RenderableType]:
    if not divergences:
        return
    yield Text("First step where they differ", "bold")
    strangers = [each.runs[1] for each in divergences if not each.compared]
    for each in divergences:
        if each.compared or len(strangers) == 1:
            yield _indented(printable(each.sentence, 500))
    if len(strangers) > 1:
        yield _indented(f"{divergences[0].runs[0]} shares no metric with {', '.join(map(printable, strangers))}")
    left_out = dict.fromkeys(name.split("/", 1)[0] for each in divergences for name in each.left_out)
    if left_out:
        yield _indented(f"clocks and machines are left out: {', '.join(map(printable, left_out))}", "dim")


def _significance(comparison: Comparison) -> Iterator[RenderableType]:
    if not comparison.significance:
        return
    table = _table("Between the experiments: more than chance?")
    for name in ("metric", "experiments (seeds)", "means", "difference, 95 %", "statement"):
        table.add_column(name, overflow="fold")
    for test in comparison.significance[:40]:
        who = " against ".join(f"{printable(name, 30)} ({n})" for name, n in zip(test.groups, test.counts, strict=True))
        means = " / ".join(number(mean, DIGITS) for mean in test.means)
        low, high = test.interval
        between = number(test.difference, DIGITS)
        if low < high:
            between += f"\n({number(low, DIGITS)} .. {number(high, DIGITS)})"
        table.add_row(Text(printable(test.metric)), Text(who), means, between, Text(test.statement))
    yield Lines(table, Text(WHY, "dim"))
