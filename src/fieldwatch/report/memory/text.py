"""Memory report for a terminal: the layout of the original analyzer, followed by further sections.

The original's part writes sizes as the original does (MB of 2**20 bytes), because other programs parse it. The further
sections use MiB.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fieldwatch.base import number, percent
from fieldwatch.report.memory.analysis import Analysis, Quantity, largest_jumps
from fieldwatch.report.memory.jumps import Jump, Link
from fieldwatch.report.memory.trace import LargestTensor, in_mib

# The first sections have the layout of the original analyzer, down to units and spaces: people have scripts that parse
# it, so sizes are "8073.4 MB" here and nowhere else.
RULE = "=" * 80
NOTHING = "-"
COLORS = {"rising": "yellow", "falling": "green", "in steps": "cyan", "uneven": "cyan"}
LEAK = {"suspected": "LEAK SUSPECTED", "none": "No leak suspected", "not known": "Leak: not known"}
IDLE = (
    "This is the idle fraction of the reserved memory, (reserved - allocated) / reserved. Most of it can be reused "
    "immediately; a high fraction alone is no reason to call empty_cache, after which the allocator has to request the "
    "same memory from the device again."
)


def report(analysis: Analysis, console: Console) -> None:
    """Print the report.

    Args:
        analysis: analysis of a run.
        console: terminal to print to.
    """
    for line in _lines(analysis):
        # Lines of the tables are not wrapped, so that scripts can read them at any width.
        console.print(line, soft_wrap=isinstance(line, Text), highlight=False)


def _lines(analysis: Analysis) -> Iterator[Text | Padding]:
    yield from _title("TENSOR PROFILING SUMMARY")
    yield from _summary(analysis)
    yield from _table("Tensor Categories (at end):", {q.name: q.end for q in analysis.categories})
    yield from _table("Data Types (at end):", analysis.dtypes)
    yield from _large(analysis)
    yield from _account(analysis)
    yield from _trends(analysis)
    yield from _fragmentation(analysis)
    yield from _jumps(analysis)
    yield from _timeline(analysis)
    if analysis.trace.notes:
        yield from _heading("NOTES")
        yield from (_paragraph(sanitized(note, 400)) for note in analysis.trace.notes)
    yield Text()


def _title(text: str) -> Iterator[Text]:
    yield from (Text(RULE), Text(text, "bold"), Text(RULE), Text())


def _heading(text: str, about: str = "") -> Iterator[Text]:
    yield Text()
    yield Text.assemble((text, "bold"), f"  {about}" if about else "")


def _paragraph(text: Text | str) -> Padding:
    """Return an indented paragraph that is wrapped to the width of the terminal."""
    return Padding(text if isinstance(text, Text) else Text(text), (0, 0, 0, 2))


def _summary(analysis: Analysis) -> Iterator[Text]:
    trace = analysis.trace
    yield Text(f"Iteration Range: {trace.steps[0]} - {trace.steps[-1]}")
    dropped = f" ({trace.dropped} more damaged or truncated, skipped)" if trace.dropped else ""
    replaced = f" ({trace.replaced} more replaced after a resume)" if trace.replaced else ""
    yield Text(f"Total Snapshots: {len(trace)}{dropped}{replaced}")
    yield Text()
    names = {"allocated": "Memory Allocated", "reserved": "Memory Reserved"}
    names |= {"fragmentation": "Fragmentation", "tensors": "Total Tensors"}
    for quantity in analysis.totals:
        start, end = (_original_amount(value, quantity.unit) for value in (quantity.start, quantity.end))
        yield Text(f"{names[quantity.name] + ':':<25} Start: {start}  →  End: {end}")


def amount(value: float, unit: str) -> str:
    """Format a quantity of the trace: memory, a percentage or a count; ``-`` if it is not finite."""
    if not np.isfinite(value):
        return NOTHING
    return in_mib(value) if unit == "MiB" else percent(value / 100) if unit == "%" else f"{value:.0f}"


def _original_amount(value: float, unit: str) -> str:
    return _original_size(value) if unit == "MiB" else amount(value, unit)


def _original_size(value: float, digits: int = 1) -> str:
    """Format a size as the original profiler's summary does, whose readers parse it: ``8073.4 MB``, of 2**20 bytes."""
    return f"{value:.{digits}f} MB" if np.isfinite(value) else NOTHING


def _table(title: str, sizes: Mapping[str, float]) -> Iterator[Text]:
    total = sum(sizes.values())
    used = {name: size for name, size in sizes.items() if size}
    if not used:
        return
    yield Text()
    yield Text(title)
    for name, size in sorted(used.items(), key=lambda pair: -pair[1]):
        share = f"({percent(size / total):>6})" if total > 0 else ""
        yield Text(f"  {sanitized(name, 40):<15}: {_original_size(size):>11}  {share}")


def _large(analysis: Analysis) -> Iterator[Text]:
    trace = analysis.trace
    if not np.isfinite(trace.large_counts[-1]):
        return
    yield Text()
    yield Text(f"Large Tensors (>{trace.large_threshold}MB): {trace.large_counts[-1]:.0f}")
    if trace.largest:
        yield Text(f"Top {len(trace.largest)} largest:")
        yield from map(_large_tensor_line, trace.largest)


def _large_tensor_line(tensor: LargestTensor) -> Text:
    size = _original_size(tensor.size, 2)
    line = f"  {size:>14} | shape={sanitized(tensor.shape, 60)} | dtype={sanitized(tensor.dtype, 20)}"
    owner = f" | {sanitized(tensor.owner, 60)}" if tensor.owner else ""
    return Text(line + owner + (f" | {tensor.views} views" if tensor.views > 1 else ""))


def _account(analysis: Analysis) -> Iterator[Text]:
    parts = {name: float(values[-1]) for name, values in analysis.trace.account.items()}
    if not parts:
        return
    yield from _heading("ACCOUNT", "at the last snapshot, by owner")
    for name, size in parts.items():
        yield Text(f"  {sanitized(name, 40):<15}: {in_mib(size):>11}")
    missing = float(analysis.trace.allocated[-1]) - sum(parts.values())
    # The parts of our own census sum exactly to the allocated memory, those of other logs may not.
    if abs(missing) > 1e-3:
        yield Text(f"  {'unaccounted':<15}: {in_mib(missing):>13}", "bold yellow")
    yield Text(f"  {'= allocated':<15}: {in_mib(analysis.trace.allocated[-1]):>13}")


def _trends(analysis: Analysis) -> Iterator[Text | Padding]:
    count = len(analysis.trace) - analysis.startup
    excluded = f", {analysis.startup} of the start-up excluded" if analysis.startup else ""
    yield from _heading("TREND ANALYSIS", f"per 1000 iterations, over {count} snapshots{excluded}")
    yield Text(f"  {'':<24} {'slope':>12}   {'95 % interval':^23}   verdict", "dim")
    yield from map(_trend, analysis.totals)
    for title, quantities in (("category", analysis.categories), ("component", analysis.components)):
        used = [quantity for quantity in quantities if quantity.highest > 0]
        if used:
            yield Text(f"  by {title}", "dim")
            yield from map(_trend, used)
    leak = analysis.leak
    color = {"suspected": "bold yellow", "none": "green"}.get(leak.verdict, "")
    yield _paragraph(Text.assemble((LEAK[leak.verdict], color), f": {leak.why}."))


def _trend(quantity: Quantity) -> Text:
    name = f"  {sanitized(quantity.name, 24):<24} "
    verdict = (quantity.verdict, COLORS.get(quantity.verdict, "dim"))
    if quantity.trend is None:
        return Text.assemble(name, f"{'':>12}   {'':^23}   ", verdict)
    unit = f" {quantity.unit}".rstrip()
    trend = quantity.trend
    interval = f"{rate(trend.low)} .. {rate(trend.high)}"
    return Text.assemble(name, f"{rate(trend.per_1000) + unit:>12}   {interval:^23}   ", verdict)


def rate(value: float) -> str:
    """Return a slope with three digits and its sign; 0 below 0.0005."""
    return number(0 if abs(value) < 0.0005 else value, 3, signed=True)


def _fragmentation(analysis: Analysis) -> Iterator[Text | Padding]:
    idle = analysis.total("fragmentation")
    if idle is None:
        return
    yield from _heading("FRAGMENTATION", f"mean {percent(idle.mean / 100)}, highest {percent(idle.highest / 100)}")
    for name, values in analysis.trace.fragments.items():
        yield Text(f"  {sanitized(name, 40):<15}: {in_mib(values[-1]):>11} at the end, at most {in_mib(values.max())}")
    yield _paragraph(IDLE)


def _jumps(analysis: Analysis) -> Iterator[Text | Padding]:
    jumps = analysis.jumps
    if not jumps:
        # Said, because the absence of a section could also mean that nobody looked.
        yield from _heading("JUMPS", "none: no unusual change between two snapshots")
        return
    listed = largest_jumps(jumps)
    more = f", the largest {len(listed)} shown" if len(listed) < len(jumps) else ""
    yield from _heading("JUMPS", f"{len(jumps)} unusual changes{more}")
    yield from map(_jump, listed)
    yield from map(_link, analysis.links)


def _jump(jump: Jump) -> Text:
    part = f"  {sanitized(jump.parts[0][0], 20)} {in_mib(jump.parts[0][1], 0, signed=True)}" if jump.parts else ""
    near = f"  [{sanitized(', '.join(jump.near), 60)}]" if jump.near else ""
    # A single jump after a long plateau is more suspicious than one of many.
    quiet = f"  first in {jump.quiet} snapshots" if jump.quiet >= 20 else ""
    size = f"{in_mib(jump.change, signed=True)} ({percent(jump.share, signed=True)})"
    return Text(f"  {jump.step:>9}  {jump.shape:<5} {size:<19}{part}{near}{quiet}")


def _link(link: Link) -> Padding:
    together = f"{link.together} of {link.jumps} with an event '{sanitized(link.kind, 30)}' since the previous snapshot"
    return _paragraph(
        f"{together} ({link.events} such events; {number(link.expected, 2)} by chance, p = {number(link.chance, 2)})"
    )


def _timeline(analysis: Analysis) -> Iterator[Text]:
    trace = analysis.trace
    yield from _heading("MEMORY TIMELINE", f"{len(analysis.timeline)} of {len(trace)} snapshots")
    yield Text(f"  {'iteration':>10} {'allocated':>13} {'reserved':>13} {'fragm.':>8} {'tensors':>9}", "dim")
    for row in analysis.timeline:
        cells = (trace.allocated[row], "MiB", 13), (trace.reserved[row], "MiB", 13), (trace.fragmentation[row], "%", 8)
        line = " ".join(
            f"{amount(value, unit):>{width}}" for value, unit, width in (*cells, (trace.tensors[row], "", 9))
        )
        yield Text(f"  {trace.steps[row]:>10} {line}")


def sanitized(text: str, most: int) -> str:
    """Return a name from a file without control characters, truncated to ``most`` characters."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
