"""Memory report in the form of a run's account, which the page's script draws."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.report.account import derived
from fieldwatch.report.memory.analysis import Analysis, Quantity, largest_jumps
from fieldwatch.report.memory.compare import rows
from fieldwatch.report.memory.jumps import Jump, all_events
from fieldwatch.report.memory.text import IDLE, LEAK, amount, rate, sanitized
from fieldwatch.report.memory.thinning import thinned
from fieldwatch.report.memory.trace import Floats, MemoryHistory, in_mib
from fieldwatch.report.page import Panel, document, facts, group, lines, stack, table, text

PLACES = {
    "parameters": 0, "gradients": 1, "optimizer": 2, "data": 3, "activations": 4, "saved": 4, "buffers": 5,
    "workspace": 7, "unattributed": 6, "other": 6, "rounding": 6,
}  # fmt: skip
"""Place of each category's color in the palette, the same in every chart; 6 is gray."""
_GRAY = 6
_MOST_AREAS = 9
_MOST_MARKS = 400
_QUANTITIES = (
    ("name", "", False),
    ("start", "start", True),
    ("end", "end", True),
    ("lowest", "lowest", True),
    ("highest", "highest", True),
    ("slope", "MiB per 1000 iterations", True),
    ("interval", "95 % interval", True),
    ("verdict", "verdict", False),
)


def memory_account(analyses: Sequence[Analysis]) -> dict[str, Any]:
    """Return the memory report of one or more runs in the form of a run's account, for `write_page`.

    Args:
        analyses: analyses of the runs; their names and notes are untrusted.
    """
    alone = len(analyses) == 1
    series: dict[str, dict[str, Any]] = {}
    panels: list[Panel] = [] if alone else [_side_by_side(analyses)]
    for place, analysis in enumerate(analyses):
        made = list(_panels(analysis, f"{place}:", series))
        title = "In detail" if alone else _name(analysis.trace.label)
        # The panels of a single run stand on their own in the contents; those of several are one panel per run.
        panels += made if alone else [group(f"run-{place}", title, _about(analysis.trace), made, "")]
    findings = [
        finding.as_event() | {"rule": finding.rule if alone else f"{_name(analysis.trace.label)}: {finding.rule}"}
        for analysis in analyses
        for finding in analysis.findings
    ]
    names = ", ".join(_name(analysis.trace.label) for analysis in analyses)
    return document(
        f"Memory: {names}",
        facts=[_about(analyses[0].trace)] if alone else [f"{len(analyses)} runs"],
        label="Memory",
        level="findings" if findings else "healthy",
        headline=_headline(analyses),
        detail="\n".join(_leak(analysis, alone=alone) for analysis in analyses),
        findings=findings,
        marks=[mark for analysis in analyses for mark in _marks(analysis.trace, alone=alone)],
        series=series,
        steps=(
            min(int(analysis.trace.steps[0]) for analysis in analyses),
            max(int(analysis.trace.steps[-1]) for analysis in analyses),
        ),
        panels=panels,
    )


def _headline(analyses: Sequence[Analysis]) -> str:
    count = sum(len(analysis.findings) for analysis in analyses)
    return f"{count} finding{'s' * (count > 1)} about the memory" if count else "No finding about the memory"


def _leak(analysis: Analysis, *, alone: bool) -> str:
    where = "" if alone else f"{_name(analysis.trace.label)}: "
    return f"{where}{LEAK[analysis.leak.verdict]}: {_name(analysis.leak.why, 600)}."


def _about(trace: MemoryHistory) -> str:
    when = f", {trace.began} to {trace.ended}" if trace.began and trace.ended else ""
    dropped = f", {trace.dropped} damaged or truncated and skipped" if trace.dropped else ""
    files = ", ".join(_name(str(path), 120) for path in trace.files[:4])
    steps = f"{trace.steps[0]} to {trace.steps[-1]}"
    return f"{trace.kind}: {len(trace)} snapshots of iterations {steps}{when}{dropped}. {files}"


def _marks(trace: MemoryHistory, *, alone: bool) -> Iterator[dict[str, Any]]:
    """Yield the events of a run as marks; of many events of a kind, evenly spaced ones."""
    where = "" if alone else _name(trace.label)
    for kind, steps in all_events(trace).items():
        every = -(-len(steps) // _MOST_MARKS)
        yield from ({"kind": _name(kind), "step": int(step), "text": where} for step in steps[::every])


def _panels(analysis: Analysis, key: str, series: dict[str, dict[str, Any]]) -> Iterator[Panel]:
    """Yield the panels of a run, and add their series under names that start with ``key``."""
    trace = analysis.trace
    steps = [jump.step for jump in largest_jumps(analysis.jumps)]
    drawn = thinned(trace.allocated, np.searchsorted(trace.steps, steps).astype(np.intp))
    yield facts("In short", [(_name(q.name), _span(q)) for q in analysis.totals], "At the end of the run.")
    yield _by_owner(trace, drawn, key, series)
    if np.isfinite(trace.fragmentation).any():
        name = f"{key}fragmentation"
        series[name] = _series(trace, drawn, trace.fragmentation, "Idle share of the reserved memory.", "%")
        yield lines("Fragmentation", [name], IDLE, labels={name: "fragmentation"})
    for title, quantities in (
        ("Totals", analysis.totals),
        ("Categories", analysis.categories),
        ("Components", analysis.components),
    ):
        body = [_quantity(quantity) for quantity in quantities if quantity.highest > 0]
        if body:
            yield table(
                title, _QUANTITIES, body, "From the first snapshot to the last; the slope is that after the start-up."
            )
    yield from _sizes(analysis)
    if analysis.jumps:
        yield _jumps(analysis)
    yield _timeline(analysis)
    if trace.notes:
        yield text("Notes", [_name(note, 400) for note in trace.notes])


def _span(quantity: Quantity) -> str:
    start = amount(quantity.start, quantity.unit)
    return f"{amount(quantity.end, quantity.unit)}, from {start}, {quantity.verdict}"


def _by_owner(trace: MemoryHistory, drawn: np.ndarray, key: str, series: dict[str, dict[str, Any]]) -> Panel:
    """Return the stacked chart of memory by owner, with the allocated and the reserved memory as lines over it."""
    layers = list(_layers(trace))
    for name, values in layers:
        series[f"{key}part {name}"] = _series(trace, drawn, values, f"Memory of {name}.")
    totals = {"allocated": trace.allocated, "reserved": trace.reserved}
    known = [name for name, values in totals.items() if np.isfinite(values).any()]
    for name in known:
        series[key + name] = _series(trace, drawn, totals[name], f"All {name} memory.")
    title = "Memory by owner" if trace.account else "Memory by category" if layers else "Memory"
    over = [key + name for name in known]
    labels = {f"{key}part {name}": name for name, _ in layers} | {key + name: name for name in known}
    if not layers:
        return lines(title, over, "Allocated by tensors, and reserved by the allocator.", labels=labels)
    return stack(
        title,
        [f"{key}part {name}" for name, _ in layers],
        "The areas add up to the memory that tensors hold. The lines are the allocated and the reserved memory.",
        over=over,
        labels=labels,
        colors=_colors([name for name, _ in layers], key),
    )


def _colors(names: Sequence[str], key: str) -> dict[str, int]:
    """Return the place in the palette of each layer: fixed for known categories, the free ones for others."""
    taken = {PLACES[name] for name in names if name in PLACES}
    free = [place for place in range(8) if place not in taken and place != _GRAY]
    colors: dict[str, int] = {}
    for name in names:
        place = PLACES.get(name)
        colors[f"{key}part {name}"] = place if place is not None else free.pop(0) if free else _GRAY
    return colors


def _layers(trace: MemoryHistory) -> Iterator[tuple[str, Floats]]:
    """Yield name and values of each layer, largest first; beyond nine, the smallest are one layer."""
    used = [(_name(name), values) for name, values in trace.stack.items() if values.any()]
    used.sort(key=lambda pair: -float(np.nanmean(pair[1])))
    alone = len(used) if len(used) <= _MOST_AREAS else _MOST_AREAS - 1
    yield from used[:alone]
    rest = [values for _, values in used[alone:]]
    if rest:
        yield f"{len(rest)} more", np.sum(rest, axis=0)


def _series(trace: MemoryHistory, drawn: np.ndarray, values: Floats, meaning: str, unit: str = "MiB") -> dict[str, Any]:
    return derived(trace.steps[drawn].astype(np.float64), np.round(values[drawn], 2), meaning, unit)


def _quantity(quantity: Quantity) -> dict[str, Any]:
    trend = quantity.trend
    slope = (
        {} if trend is None else {"slope": rate(trend.per_1000), "interval": f"{rate(trend.low)} .. {rate(trend.high)}"}
    )
    values = {name: amount(getattr(quantity, name), quantity.unit) for name in ("start", "end", "lowest", "highest")}
    return {"name": _name(quantity.name), **values, **slope, "verdict": quantity.verdict}


def _sizes(analysis: Analysis) -> Iterator[Panel]:
    whole = sum(analysis.dtypes.values())
    if whole > 0:
        sizes = [
            {"dtype": _name(name), "size": amount(size, "MiB"), "share": percent(size / whole)}
            for name, size in analysis.dtypes.items()
        ]
        columns = (("dtype", "", False), ("size", "size", True), ("share", "share", True))
        yield table("Data types at the end", columns, sizes, "")
    if analysis.trace.largest:
        tensors = [
            {"owner": _name(o.owner), "size": amount(o.size, "MiB"), "shape": _name(o.shape), "dtype": _name(o.dtype)}
            for o in analysis.trace.largest
        ]
        names = (
            ("owner", "owner", False),
            ("size", "size", True),
            ("shape", "shape", False),
            ("dtype", "dtype", False),
        )
        yield table("Largest tensors at the end", names, tensors, "")


def _jumps(analysis: Analysis) -> Panel:
    columns = (
        ("step", "iteration", True),
        ("shape", "shape", False),
        ("change", "change", True),
        ("share", "share", True),
        ("mostly", "mostly", False),
        ("with", "with", False),
    )
    links = [
        f"{link.together} of {link.jumps} with an event {_name(link.kind)} since the snapshot before "
        f"({link.events} such events; {number(link.expected, 2)} by chance, p = {number(link.chance, 2)})"
        for link in analysis.links
    ]
    body = [_jump(jump) for jump in largest_jumps(analysis.jumps)]
    return table(f"Jumps ({len(analysis.jumps)})", columns, body, "; ".join(links))


def _jump(jump: Jump) -> dict[str, Any]:
    return {
        "step": jump.step,
        "shape": jump.shape,
        "change": in_mib(jump.change, signed=True),
        "share": percent(jump.share, signed=True),
        "mostly": _name(jump.parts[0][0]) if jump.parts else "",
        "with": _name(", ".join(jump.near)),
    }


def _timeline(analysis: Analysis) -> Panel:
    trace = analysis.trace
    columns = (("allocated", "MiB"), ("reserved", "MiB"), ("fragmentation", "%"), ("tensors", ""))
    body = [
        {"step": int(trace.steps[row])}
        | {name: amount(float(getattr(trace, name)[row]), unit) for name, unit in columns}
        for row in analysis.timeline
    ]
    heads = (("step", "iteration", True), *((name, name, True) for name, _ in columns))
    return table("Timeline", heads, body, "About twenty snapshots, evenly spaced.")


def _side_by_side(analyses: Sequence[Analysis]) -> Panel:
    keys = [f"run-{place}" for place in range(len(analyses))]
    columns = [("name", "", False), *((key, _name(a.trace.label), True) for key, a in zip(keys, analyses, strict=True))]
    body = [{"name": name} | dict(zip(keys, cells, strict=True)) for name, cells in rows(analyses)]
    return table("Side by side", columns, body, "")


def _name(name: str, most: int = 60) -> str:
    return sanitized(name, most)
