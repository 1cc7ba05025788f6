"""Sections of the live view; each yields lines with a rank, and lines of low rank are shown first if space is short."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from fieldwatch.base import mebibytes, nbytes, number
from fieldwatch.monitor.age import age
from fieldwatch.monitor.readings import CRITICAL, HIGH
from fieldwatch.monitor.run_state import StateWord
from fieldwatch.monitor.watch.canvas import Canvas, StyledText
from fieldwatch.monitor.watch.run_view import MetricCurve, RunView
from fieldwatch.monitor.watch.text_format import clock, measured, share
from fieldwatch.record import tags

STATE_COLORS: Final[dict[StateWord, str]] = {
    "not started": "cyan",
    "running": "bold green",
    "silent": "bold yellow",
    "hung": "bold red",
    "killed": "bold red",
    "finished": "bold green",
    "interrupted": "bold yellow",
    "failed": "bold red",
    "diverged": "bold red",
}
SEVERITIES: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}
_MESSAGE_LINES: Final = 4
# Lines after this many in a section share one rank.
_MANY: Final = 40
# Minimum width of a sparkline in cells.
_LEAST_SPARK: Final = 5
# Maximum number of quality metrics.
_QUALITIES: Final = 14


@dataclass(frozen=True, kw_only=True)
class RankedLine:
    """One line of the view.

    Attributes:
        rank: rank of importance, lower is more important.
        text: contents of the line.
    """

    rank: int
    text: Text


def heading(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the state and name of the run, the reason for its state, and the remedy."""
    state = view.state
    name = canvas.end_of("/".join(view.folder.parts[-3:]), max(12, canvas.width - 40))
    clock_time = view.time.astimezone().strftime("%H:%M:%S")
    process = f"pid {state.pid}" if state.pid is not None and not state.ended else ""
    pieces = [(state.word.upper(), STATE_COLORS[state.word]), (name, "bold"), (canvas.text(view.pipeline), "cyan")]
    yield RankedLine(
        rank=0, text=canvas.line([*pieces, (clock_time, "dim"), (process, "dim"), (_where(view, canvas), "dim")])
    )
    detail_lines = canvas.wrapped(state.detail, canvas.width - 2, 3) if state.detail else []
    for index, text in enumerate(detail_lines):
        yield RankedLine(rank=2 + index, text=Text(f"  {text}", STATE_COLORS[state.word], no_wrap=True))
    if state.remedy:
        yield RankedLine(rank=5, text=canvas.line([("  -> " + canvas.text(state.remedy), "")]))
    if view.reading:
        yield RankedLine(rank=3, text=canvas.line([(f"  reading the record: {view.rows:,} rows so far", "cyan")]))
    if view.trouble:
        for index, text in enumerate(canvas.wrapped(view.trouble, canvas.width - 2, 2)):
            yield RankedLine(rank=3 + index, text=Text(f"  {text}", "bold red", no_wrap=True))


def progress(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the progress: steps, remaining time, phase."""
    if view.state.word == "not started":
        return
    now = view.progress
    of = f" of {now.planned:,}" if now.planned is not None else ""
    time_left = f"ETA {clock(now.eta)}" if now.eta is not None else ""
    steps = f"step {now.done:,}{of}"
    passed = f"{clock(now.seconds)} in all" if view.state.ended else f"{clock(now.seconds)} so far"
    fixed = [(steps, "bold"), (share(now.share), ""), (time_left, "bold"), (passed, "")]
    # The bar takes the columns that the texts leave, if there are enough of them.
    used = sum(len(text) + 2 for text, _ in fixed if text)
    line = canvas.line(fixed[:2])
    # A bar below five cells is not readable and is omitted.
    cells = min(40, canvas.width - used)
    if now.share is not None and cells >= 5:
        line.append("  ")
        _append_bar(line, canvas.bar(now.share, cells), "green")
    rest = canvas.line(fixed[2:], width=canvas.width - line.cell_len - 2)
    line.append("  " if rest else "")
    yield RankedLine(rank=1, text=line.append_text(rest))
    if now.phase:
        last = now.phase_last
        name = canvas.truncated(now.phase, max(10, canvas.width // 2))
        span = f"steps {now.phase_first:,} to {last:,}" if last is not None else f"from step {now.phase_first:,}"
        inside = now.done - now.phase_first
        phase_share = share(min(1.0, inside / (last - now.phase_first + 1))) if last is not None and inside >= 0 else ""
        yield RankedLine(
            rank=8,
            text=canvas.line([(f"phase {name}", ""), (span, ""), (f"{phase_share} of it" if phase_share else "", "")]),
        )


def losses(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the total loss, its terms, and their fractions of the total."""
    if view.total is not None:
        yield RankedLine(rank=6, text=_row(canvas, view.total, extra="    ", style="bold"))
    active = [term for term in view.terms if term.active and term.share is not None]
    for position, term in enumerate(view.terms):
        mark = canvas.fill(active.index(term)) if term in active else (" ", "")
        extra = share(term.share) if term.active else "off"
        row = _row(canvas, term.curve, extra=f"{extra:>4}", mark=mark, style="" if term.active else "dim")
        yield RankedLine(rank=17 + 2 * min(position, _MANY), text=row)
    bar = canvas.stacked_bar([term.share or 0.0 for term in active], canvas.width - _sparkline_column(canvas) - 1)
    if bar and len(active) > 1:
        line = Text(no_wrap=True).append(
            "share of the loss".ljust(_sparkline_column(canvas))[: _sparkline_column(canvas)], "dim"
        )
        for text, style in bar:
            line.append(text, style)
        yield RankedLine(rank=19, text=line)


def gradients(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the gradient norms and the number of refused updates."""
    if view.gradient is not None:
        yield RankedLine(
            rank=15, text=_row(canvas, replace(view.gradient, label="gradients"), extra="    ", style="bold")
        )
    if view.refused:
        refused_share = view.refused / max(1, view.rows)
        text = f"  {view.refused:,} updates refused" + (
            f" ({share(refused_share)} of the steps)" if refused_share >= 0.01 else ""
        )
        yield RankedLine(rank=9, text=Text(text, "bold red", no_wrap=True))
    for position, group in enumerate(view.groups):
        yield RankedLine(rank=26 + 2 * min(position, _MANY), text=_row(canvas, group, extra="    ", mark=(" ", "")))


def qualities(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield quality metrics: PSNR, held-out quality, samples per ray, size."""
    for position, curve in enumerate(view.qualities[:_QUALITIES]):
        # The first three metrics are as important as speed and memory.
        rank = 12 + 5 * position if position < 3 else 25 + 2 * min(position, _MANY)
        yield RankedLine(rank=rank, text=_row(canvas, curve, extra="    ", style="" if position else "bold"))


def memory(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the memory usage and its forecast."""
    use = view.memory
    used = max((value for value in (use.peak, use.allocated, use.reserved) if value is not None), default=None)
    name = "GPU memory" if use.device else "memory"
    percent = None if use.share is None else 100 * use.share
    color = "bold red" if (percent or 0) > CRITICAL else "yellow" if (percent or 0) > HIGH else "green"
    if used is not None:
        of = f"{mebibytes(used)} of {mebibytes(use.capacity)}" if use.capacity else mebibytes(used)
        cells = min(24, canvas.width - len(name) - len(of) - 12)
        line = Text(f"{name}  ", no_wrap=True)
        if percent is not None and cells >= 5:
            _append_bar(line, canvas.bar(use.share, cells), color)
            line.append("  ")
        pieces = [(of, ""), (share(use.share), color), (_memory_details(view), "dim")]
        line.append_text(canvas.line(pieces, width=canvas.width - line.cell_len))
        yield RankedLine(rank=10, text=line)
    for position, text in enumerate(canvas.wrapped(use.forecast, canvas.width - 2, 3) if use.forecast else []):
        yield RankedLine(rank=11 + position, text=Text(f"  {text}", "bold yellow", no_wrap=True))


def speed(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the steps per second, and the time per span of a step."""
    now = view.progress
    steps = [span for span in view.spans if span.label == "step"]
    spans = [span for span in view.spans if span.label != "step"]
    mean = number(now.mean, 3)
    pieces = [
        (f"{number(now.now, 3)} steps/s" if now.now is not None else "", "bold"),
        ("" if now.mean is None else f"{mean} mean" if now.now is not None else f"{mean} steps/s on average", ""),
        (f"{number(steps[0].last, 3)} ms/step" if steps else "", ""),
        (f"CPU {round(view.process.cpu_percent)}%" if view.process and view.process.cpu_percent else "", ""),
    ]
    if any(text for text, _ in pieces):
        yield RankedLine(rank=13, text=canvas.line([("speed", "bold"), *pieces]))
    whole = steps[0].last if steps and steps[0].last > 0 else sum(span.last for span in spans)
    for position, span in enumerate(spans):
        filled, _ = canvas.bar(
            span.last / whole if whole > 0 else None, max(5, canvas.width - _sparkline_column(canvas) - 2)
        )
        line = Text(f"  {canvas.padded(span.label, _label_width(canvas) - 2)} {number(span.last, 3):>9} ", no_wrap=True)
        line.append(f"{share(span.last / whole if whole > 0 else None):>4} ")
        line.append(filled, "blue")
        yield RankedLine(rank=28 + 3 * min(position, _MANY), text=line)


def machine(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the current state of the GPUs, or recorded metrics of the machine if there are none."""
    for gpu in view.gpus:
        heat = f"{number(gpu.temperature_celsius, 3)} C" if gpu.temperature_celsius is not None else ""
        memory = f"{nbytes(gpu.memory_used_bytes)} of {nbytes(gpu.memory_total_bytes)}"
        pieces = [
            (f"GPU {gpu.index}", "bold"),
            (f"busy {number(gpu.utilisation_percent, 3)}%" if gpu.utilisation_percent is not None else "", ""),
            (memory if gpu.memory_used_bytes is not None else "", ""),
            (f"{number(gpu.power_watts, 3)} W" if gpu.power_watts is not None else "", ""),
            (heat, ""),
            (canvas.text(f"slowed by {', '.join(gpu.limited_by)}") if gpu.throttled and gpu.limited_by else "", "red"),
            (canvas.text(gpu.name or ""), "dim"),
        ]
        yield RankedLine(rank=14, text=canvas.line(pieces))
    recorded = [curve for curve in view.machine if tags.PROCESSOR_READING.part(curve.name) is None]
    # The live GPU lines already contain these values.
    for curve in recorded if not view.gpus else ():
        yield RankedLine(rank=30, text=_row(canvas, curve, extra="    "))


def saved(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the last checkpoint and its age."""
    last = view.saved
    if last is None:
        if view.rows:
            yield RankedLine(rank=24, text=canvas.line([("no checkpoint yet", "dim")]))
        return
    ago = f"{age(last.ago)} ago" if last.ago is not None else "its folder is gone"
    ranked = ", ".join(f"{name} {measured(value)}" for name, value in last.metrics.items() if isinstance(value, float))
    pieces = [
        (f"checkpoint  step {last.step:,}", ""),
        (ago, ""),
        (f"{last.count} kept" if last.count else "", ""),
        (canvas.text(ranked), ""),
    ]
    yield RankedLine(rank=16, text=canvas.line(pieces))
    if last.failures:
        yield RankedLine(rank=9, text=Text(f"  {last.failures} saves failed", "bold red", no_wrap=True))


def findings(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield the findings: the most severe first, and the latest first among equals."""
    order = list(SEVERITIES)
    ordered = sorted(view.findings, key=lambda finding: (order.index(finding.severity), -finding.step))
    counts = [(_counted(view.counts[name], name), SEVERITIES[name]) for name in order if view.counts.get(name)]
    if not ordered and view.state.word != "not started":
        yield RankedLine(rank=12, text=canvas.line([("no findings", "green" if view.rows else "dim")]))
    if not ordered:
        return
    yield RankedLine(rank=7, text=canvas.line([("findings", "bold"), *counts]))
    for position, finding in enumerate(ordered):
        # Message lines come directly after the heading; remedies rank lower than the next finding's message.
        base = (20 if finding.severity == "note" else 10) + 9 * position
        title = f"{finding.rule} ({finding.subject})" if finding.subject else finding.rule
        head: list[StyledText] = [
            (finding.severity, SEVERITIES[finding.severity]),
            (f"step {finding.step:,}", ""),
            (canvas.truncated(title, max(10, canvas.width - 24)), "bold"),
        ]
        yield RankedLine(rank=base, text=canvas.line(head))
        for at, text in enumerate(canvas.wrapped(finding.message, canvas.width - 2, _MESSAGE_LINES)):
            yield RankedLine(rank=base + 1 + at, text=Text(f"  {text}", no_wrap=True))
        for at, text in enumerate(canvas.wrapped(f"-> {finding.remedy}", canvas.width - 2, _MESSAGE_LINES)):
            yield RankedLine(rank=base + 12 + at, text=Text(f"  {text}", "dim", no_wrap=True))


def events(view: RunView, canvas: Canvas) -> Iterator[RankedLine]:
    """Yield other events, the latest first."""
    for position, (step, kind, text) in enumerate(reversed(view.events)):
        base = 29 + 4 * position
        line = canvas.line([(f"step {step:,}", ""), (canvas.truncated(kind, max(10, canvas.width // 3)), "bold")])
        line.append("  " + canvas.wrapped(text, max(4, canvas.width - line.cell_len - 2), 1)[0])
        yield RankedLine(rank=base, text=line)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count > 1 else ''}"


def _where(view: RunView, canvas: Canvas) -> str:
    return canvas.text(f"on {view.state.host}") if view.state.host and not view.state.ended else ""


def _memory_details(view: RunView) -> str:
    use = view.memory
    parts = list[str]()
    if use.device and use.allocated is not None and use.reserved is not None:
        parts.append(f"tensors {mebibytes(use.allocated)}, reserved {mebibytes(use.reserved)}")
    if view.process is not None and view.process.resident is not None and use.device:
        parts.append(f"process {mebibytes(view.process.resident)}")
    return ", ".join(parts)


def _label_width(canvas: Canvas) -> int:
    return min(30, max(12, canvas.width // 4 + 2))


def _sparkline_column(canvas: Canvas) -> int:
    """Return the column at which the sparkline of a row begins."""
    # Label, value of 9 characters and extra field of 4, each followed by a space.
    return _label_width(canvas) + 1 + 9 + 1 + 4 + 1


def _row(canvas: Canvas, curve: MetricCurve, *, extra: str, mark: StyledText = ("", ""), style: str = "") -> Text:
    """Return a row with a label, the last value, a short field and a sparkline; if narrow, only the first two."""
    narrow = canvas.width < _sparkline_column(canvas) + _LEAST_SPARK
    width = (max(4, canvas.width - 10) if narrow else _label_width(canvas)) - (2 if mark[0] else 0)
    line = Text(no_wrap=True)
    if mark[0]:
        line.append(mark[0] + " ", mark[1])
    line.append(canvas.padded(curve.label, width), style)
    # NaN is the only value that differs from itself.
    bad = curve.last != curve.last or abs(curve.last) == float("inf")
    line.append(f" {measured(curve.last):>9}", "bold red" if bad else style)
    if narrow:
        return line
    unit = curve.unit if curve.unit and not extra.strip() and len(curve.unit) <= 4 else extra
    line.append(f" {unit:<4} " if not extra.strip() else f" {extra} ", style)
    for text, color in canvas.sparkline(curve.trend, canvas.width - line.cell_len - 1):
        line.append(text, color if style != "dim" else "dim")
    return line


def _append_bar(line: Text, bar: Sequence[str], color: str) -> None:
    line.append(bar[0], color)
    line.append(bar[1], "dim")
