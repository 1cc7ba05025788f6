"""Comparison of the memory of several runs."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fieldwatch.report.memory.analysis import Analysis, Quantity
from fieldwatch.report.memory.text import amount, rate, sanitized


def rows(analyses: Sequence[Analysis]) -> list[tuple[str, list[str]]]:
    """Return the rows of the comparison: a name and one text per run."""
    table = [
        ("iterations", [f"{a.trace.steps[0]} - {a.trace.steps[-1]}" for a in analyses]),
        ("snapshots", [str(len(a.trace)) for a in analyses]),
    ]
    totals = [{quantity.name: quantity for quantity in a.totals} for a in analyses]
    for name, unit in (("allocated", "MiB"), ("reserved", "MiB"), ("fragmentation", "%"), ("tensors", "")):
        table.append((f"{name}, end", [_cell(total.get(name), "end", unit) for total in totals]))
        if name != "tensors":
            table.append((f"{name}, highest", [_cell(total.get(name), "highest", unit) for total in totals]))
    table.append(("allocated, slope", [_slope(total.get("allocated")) for total in totals]))
    parts = [{quantity.name: quantity for quantity in a.categories} for a in analyses]
    # The union of all categories: logs of different profilers have different ones.
    names = dict.fromkeys(name for part in parts for name in part)
    table += [
        (f"{sanitized(name, 40)}, end", [_cell(part.get(name), "end", "MiB") for part in parts]) for name in names
    ]
    table.append(("jumps", [str(len(a.jumps)) for a in analyses]))
    table.append(("leak", [a.leak.verdict for a in analyses]))
    return table


def comparison(analyses: Sequence[Analysis]) -> Table:
    """Return the comparison as a table for a terminal, with one column per run."""
    table = Table(title="MEMORY SIDE BY SIDE", title_justify="left", title_style="bold")
    table.add_column("")
    for analysis in analyses:
        table.add_column(Text(sanitized(analysis.trace.label, 60)), justify="right", overflow="fold")
    for name, cells in rows(analyses):
        table.add_row(Text(name), *map(Text, cells))
    return table


def _cell(quantity: Quantity | None, attribute: str, unit: str) -> str:
    value = float(getattr(quantity, attribute)) if quantity is not None else float("nan")
    return amount(value, unit)


def _slope(quantity: Quantity | None) -> str:
    if quantity is None or quantity.trend is None:
        return "-"
    trend = quantity.trend
    return f"{rate(trend.per_1000)} MiB/1000\n({rate(trend.low)} .. {rate(trend.high)})"
