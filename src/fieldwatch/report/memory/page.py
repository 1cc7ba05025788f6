"""The report as one page that needs nothing else: no network, no server, no other file."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fieldwatch.base import whole_file
from fieldwatch.health import Finding
from fieldwatch.report.memory.analysis import Analysis, Quantity, largest_jumps
from fieldwatch.report.memory.charts import ChartArea, ChartLine, chart
from fieldwatch.report.memory.compare import rows
from fieldwatch.report.memory.jumps import Jump, all_events
from fieldwatch.report.memory.text import IDLE, LEAK, rate, sanitized
from fieldwatch.report.memory.thinning import thinned
from fieldwatch.report.memory.trace import Floats, MemoryHistory

COLOURS = {
    "parameters": "c0", "gradients": "c1", "optimizer": "c2", "activations": "c4", "saved": "c4", "data": "c3",
    "buffers": "c6", "workspace": "c7", "unattributed": "c8", "other": "c8", "rounding": "c5",
}  # fmt: skip
"""One colour per category, the same in every chart; c8 is grey."""
_FREE = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_page(analyses: Sequence[Analysis], path: Path) -> None:
    """Write the page in one piece.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path) as draft:
        draft.write_text(page(analyses), encoding="utf-8")


def page(analyses: Sequence[Analysis]) -> str:
    """Return the page."""
    here = files("fieldwatch.report.memory")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    title = "Memory: " + ", ".join(_name(analysis.trace.label) for analysis in analyses)
    body = "".join(_section(analysis, number) for number, analysis in enumerate(analyses))
    beside = _beside(analyses) if len(analyses) > 1 else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main><h1>Tensor memory</h1>"
        f"<p class=quiet>MB means 2<sup>20</sup> bytes. Made by <code>fieldwatch memory</code>.</p>"
        f"{beside}{body}</main><script>{script}</script></body></html>\n"
    )


def _section(analysis: Analysis, number: int) -> str:
    trace = analysis.trace
    rows_drawn = _rows(analysis)
    events = {_name(kind): told for kind, told in all_events(trace).items()}
    parts = [
        f"<section id=run{number}><h2>{escape(_name(trace.label))}</h2>",
        f"<p class=quiet>{escape(_about(trace))}</p>",
        _findings(analysis.findings),
        _tiles(analysis),
        _memory_chart(trace, rows_drawn, events),
        _idle_chart(trace, rows_drawn, events),
        *_tables(analysis),
        _jump_table(analysis),
        _timeline(analysis),
        _notes(trace),
        f'<script type="application/json" class="data">{_embedded(trace, rows_drawn, events)}</script></section>',
    ]
    return "".join(parts)


def _about(trace: MemoryHistory) -> str:
    when = f", {trace.began} to {trace.ended}" if trace.began and trace.ended else ""
    dropped = f", {trace.dropped} damaged or cut off and left out" if trace.dropped else ""
    return (
        f"{trace.kind}: {len(trace)} snapshots of iterations {trace.steps[0]} to {trace.steps[-1]}{when}{dropped}. "
        f"{', '.join(_name(str(path), 120) for path in trace.files[:4])}"
    )


def _rows(analysis: Analysis) -> np.ndarray:
    steps = [jump.step for jump in largest_jumps(analysis.jumps)]
    return thinned(analysis.trace.allocated, np.searchsorted(analysis.trace.steps, steps).astype(np.intp))


def _memory_chart(trace: MemoryHistory, drawn: np.ndarray, events: Mapping[str, Any]) -> str:
    areas = [ChartArea(name=_name(name), colour=c, values=values[drawn]) for name, c, values in _layers(trace)]
    lines = [ChartLine(name="allocated", colour="ink", values=trace.allocated[drawn])]
    if np.isfinite(trace.reserved).any():
        lines.append(ChartLine(name="reserved", colour="ink soft", values=trace.reserved[drawn]))
    title = "Memory by owner" if trace.account else "Memory by category" if areas else "Memory"
    return chart(title, "MB", trace.steps[drawn], areas=areas, lines=lines, marks=events)


def _layers(trace: MemoryHistory) -> Iterator[tuple[str, str, Floats]]:
    """Yield name, colour and values, the largest first; beyond nine the smallest are one grey layer."""
    used = [(name, values) for name, values in trace.stack.items() if values.any()]
    used.sort(key=lambda pair: -float(np.nanmean(pair[1])))
    taken = {COLOURS[name] for name, _ in used if name in COLOURS}
    free = [colour for colour in _FREE if colour not in taken]
    alone = len(used) if len(used) <= 9 else 8
    rest = [values for _, values in used[alone:]]
    for name, values in used[:alone]:
        yield name, COLOURS.get(name) or (free.pop(0) if free else "c8"), values
    if rest:
        yield f"{len(rest)} more", "c8", np.sum(rest, axis=0)


def _idle_chart(trace: MemoryHistory, drawn: np.ndarray, events: Mapping[str, Any]) -> str:
    if not np.isfinite(trace.fragmentation).any():
        return ""
    line = ChartLine(name="fragmentation", colour="ink", values=trace.fragmentation[drawn])
    plot = chart("Fragmentation", "% of the reserved memory", trace.steps[drawn], lines=[line], marks=events)
    return f"{plot}<p class=quiet>{escape(IDLE)}</p>"


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return "<p class=fine>Nothing stands out.</p>"
    shown_all = "".join(
        f"<li class={escape(f.severity)}><b>{escape(f.rule)}</b> at iteration {f.step}: "
        f"{escape(_name(f.message, 600))} "
        f"<em>{escape(f.remedy)}</em></li>"
        for f in findings
    )
    return f"<ul class=findings>{shown_all}</ul>"


def _tiles(analysis: Analysis) -> str:
    tiles = "".join(
        f"<div><small>{escape(q.name)}</small><b>{_amount(q.end, q.unit)}</b><span>from {_amount(q.start, q.unit)}, "
        f"{escape(q.verdict)}</span></div>"
        for q in analysis.totals
    )
    return f"<div class=tiles>{tiles}</div>"


def _tables(analysis: Analysis) -> Iterator[str]:
    head = ("", "start", "end", "lowest", "highest", "per 1000 iterations", "95 % interval", "verdict")
    for title, group in (
        ("Totals", analysis.totals),
        ("Categories", analysis.categories),
        ("Components", analysis.components),
    ):
        body = [_quantity(quantity) for quantity in group if quantity.highest > 0]
        if body:
            yield _table(title, head, body)
    yield f"<p><b>{LEAK[analysis.leak.verdict]}</b>: {escape(analysis.leak.why)}.</p>"
    whole = sum(analysis.dtypes.values())
    if whole > 0:
        sizes = [
            (_name(name), _amount(size, "MB"), f"{100 * size / whole:.1f}%") for name, size in analysis.dtypes.items()
        ]
        yield _table("Data types at the end", ("", "size", "share"), sizes)
    if analysis.trace.largest:
        large = [
            (_name(o.owner) or "-", _amount(o.size, "MB"), _name(o.shape), _name(o.dtype))
            for o in analysis.trace.largest
        ]
        yield _table("Largest tensors at the end", ("owner", "size", "shape", "dtype"), large)


def _quantity(quantity: Quantity) -> tuple[str, ...]:
    values = (quantity.start, quantity.end, quantity.lowest, quantity.highest)
    trend = quantity.trend
    slope = ("-", "-") if trend is None else (rate(trend.per_1000), f"{rate(trend.low)} .. {rate(trend.high)}")
    return (_name(quantity.name), *(_amount(value, quantity.unit) for value in values), *slope, quantity.verdict)


def _jump_table(analysis: Analysis) -> str:
    if not analysis.jumps:
        return ""
    head = ("iteration", "", "change", "share", "mostly", "with")
    links = "".join(
        f"<li>{link.together} of {link.jumps} with an event <b>{escape(_name(link.kind))}</b> since the "
        f"snapshot before ({link.events} such events; {link.expected:.1f} by chance, p = {link.chance:.2g})</li>"
        for link in analysis.links
    )
    table = _table(f"Jumps ({len(analysis.jumps)})", head, [_jump(jump) for jump in largest_jumps(analysis.jumps)])
    return table + (f"<ul>{links}</ul>" if links else "")


def _jump(jump: Jump) -> tuple[str, ...]:
    mostly = _name(jump.parts[0][0]) if jump.parts else "-"
    change = f"{jump.change:+,.1f} MB"
    return (str(jump.step), jump.shape, change, f"{100 * jump.share:+.1f}%", mostly, _name(", ".join(jump.near)) or "-")


def _timeline(analysis: Analysis) -> str:
    trace = analysis.trace
    head = ("iteration", "allocated", "reserved", "fragmentation", "tensors")
    columns = ((trace.allocated, "MB"), (trace.reserved, "MB"), (trace.fragmentation, "%"), (trace.tensors, ""))
    body = [(str(trace.steps[i]), *(_amount(float(v[i]), unit) for v, unit in columns)) for i in analysis.timeline]
    return _table("Timeline", head, body)


def _notes(trace: MemoryHistory) -> str:
    notes = "".join(f"<li>{escape(_name(note, 400))}</li>" for note in trace.notes)
    return f"<h3>Notes</h3><ul>{notes}</ul>" if notes else ""


def _beside(analyses: Sequence[Analysis]) -> str:
    head = ("", *(_name(analysis.trace.label) for analysis in analyses))
    return _table("Side by side", head, [(name, *cells) for name, cells in rows(analyses)])


def _table(title: str, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<h3>{escape(title)}</h3><div class=wide><table><tr>{top}</tr>{lines}</table></div>"


def _embedded(trace: MemoryHistory, drawn: np.ndarray, events: Mapping[str, Any]) -> str:
    """Return what is drawn, as JSON that cannot end its script element."""
    columns = {"allocated": trace.allocated, "reserved": trace.reserved, "fragmentation": trace.fragmentation}
    names = {name: values for name, values in columns.items() if np.isfinite(values).any()}
    data = {
        "steps": trace.steps[drawn].tolist(),
        "totals": {name: np.round(values[drawn], 2).tolist() for name, values in names.items()},
        "parts": {_name(name): np.round(values[drawn], 2).tolist() for name, _, values in _layers(trace)},
        "events": {kind: told.tolist()[:2000] for kind, told in events.items()},
    }
    return orjson.dumps(data).decode().replace("<", "\\u003c")


def _amount(value: float, unit: str) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:,.1f} {unit}" if unit else f"{value:,.0f}"


def _name(text: str, most: int = 60) -> str:
    return sanitized(text, most)
