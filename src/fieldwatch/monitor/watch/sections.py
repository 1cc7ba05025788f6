"""The parts of the picture: each is some lines, and every line has a rank: the lower, the sooner it is shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text

from fieldwatch.monitor.age import age
from fieldwatch.monitor.readings import CRITICAL, HIGH
from fieldwatch.monitor.run_state import StateWord
from fieldwatch.monitor.watch.canvas import Part, Pen
from fieldwatch.monitor.watch.run_view import Curve, View
from fieldwatch.monitor.watch.text_format import clock, mebibytes, number, share
from fieldwatch.record import tags

STATE_COLOURS: Final[dict[StateWord, str]] = {
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
_MANY: Final = 40
_LEAST_SPARK: Final = 5
_QUALITIES: Final = 14


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the picture.

    Attributes:
        rank: the lower, the more it matters.
        text: what it shows.
    """

    rank: int
    text: Text


def heading(view: View, pen: Pen) -> Iterator[Line]:
    """Which run it is, how it stands, why, and what to do."""
    state = view.state
    name = pen.tail("/".join(view.folder.parts[-3:]), max(12, pen.width - 40))
    told = view.time.astimezone().strftime("%H:%M:%S")
    process = f"pid {state.pid}" if state.pid is not None and not state.ended else ""
    parts = [(state.word.upper(), STATE_COLOURS[state.word]), (name, "bold"), (pen.text(view.pipeline), "cyan")]
    yield Line(rank=0, text=pen.line([*parts, (told, "dim"), (process, "dim"), (_where(view, pen), "dim")]))
    told_why = pen.wrapped(state.detail, pen.width - 2, 3) if state.detail else []
    for place, words in enumerate(told_why):
        yield Line(rank=2 + place, text=Text(f"  {words}", STATE_COLOURS[state.word], no_wrap=True))
    if state.remedy:
        yield Line(rank=5, text=pen.line([("  -> " + pen.text(state.remedy), "")]))
    if view.reading:
        yield Line(rank=3, text=pen.line([(f"  reading the record: {view.rows:,} rows so far", "cyan")]))
    if view.trouble:
        for place, words in enumerate(pen.wrapped(view.trouble, pen.width - 2, 2)):
            yield Line(rank=3 + place, text=Text(f"  {words}", "bold red", no_wrap=True))


def progress(view: View, pen: Pen) -> Iterator[Line]:
    """How far it is: steps, time left, phase."""
    if view.state.word == "not started":
        return
    now = view.progress
    of = f" of {now.planned:,}" if now.planned is not None else ""
    left = f"ETA {clock(now.eta)}" if now.eta is not None else ""
    steps = f"step {now.done:,}{of}"
    passed = f"{clock(now.seconds)} so far"
    fixed = [(steps, "bold"), (share(now.share), ""), (left, "bold"), (passed, "")]
    used = sum(len(words) + 2 for words, _ in fixed if words)
    line = pen.line(fixed[:2])
    cells = min(40, pen.width - used)
    if now.share is not None and cells >= 5:
        line.append("  ")
        _append_bar(line, pen.bar(now.share, cells), "green")
    rest = pen.line(fixed[2:], width=pen.width - line.cell_len - 2)
    line.append("  " if rest else "")
    yield Line(rank=1, text=line.append_text(rest))
    if now.phase:
        last = now.phase_last
        name = pen.cut(now.phase, max(10, pen.width // 2))
        span = f"steps {now.phase_first:,} to {last:,}" if last is not None else f"from step {now.phase_first:,}"
        inside = now.done - now.phase_first
        far = share(min(1.0, inside / (last - now.phase_first + 1))) if last is not None and inside >= 0 else ""
        yield Line(rank=8, text=pen.line([(f"phase {name}", ""), (span, ""), (f"{far} of it" if far else "", "")]))


def losses(view: View, pen: Pen) -> Iterator[Line]:
    """The loss, its terms, and what part of it each one is."""
    if view.total is not None:
        yield Line(rank=6, text=_row(pen, view.total, extra="    ", style="bold"))
    active = [term for term in view.terms if term.active and term.share is not None]
    for place, term in enumerate(view.terms):
        mark = pen.fill(active.index(term)) if term in active else (" ", "")
        extra = share(term.share) if term.active else "off"
        row = _row(pen, term.curve, extra=f"{extra:>4}", mark=mark, style="" if term.active else "dim")
        yield Line(rank=17 + 2 * min(place, _MANY), text=row)
    bar = pen.stack([term.share or 0.0 for term in active], pen.width - _begin(pen) - 1)
    if bar and len(active) > 1:
        line = Text(no_wrap=True).append("share of the loss".ljust(_begin(pen))[: _begin(pen)], "dim")
        for words, style in bar:
            line.append(words, style)
        yield Line(rank=19, text=line)


def gradients(view: View, pen: Pen) -> Iterator[Line]:
    """Norms of the gradients, and what was refused."""
    if view.gradient is not None:
        yield Line(rank=15, text=_row(pen, replace(view.gradient, label="gradients"), extra="    ", style="bold"))
    if view.refused:
        far = view.refused / max(1, view.rows)
        words = f"  {view.refused:,} updates refused" + (f" ({share(far)} of the steps)" if far >= 0.01 else "")
        yield Line(rank=9, text=Text(words, "bold red", no_wrap=True))
    for place, group in enumerate(view.groups):
        yield Line(rank=26 + 2 * min(place, _MANY), text=_row(pen, group, extra="    ", mark=(" ", "")))


def qualities(view: View, pen: Pen) -> Iterator[Line]:
    """What the pipeline has: PSNR, held-out quality, samples per ray, size."""
    for place, curve in enumerate(view.qualities[:_QUALITIES]):
        rank = 12 + 5 * place if place < 3 else 25 + 2 * min(place, _MANY)
        yield Line(rank=rank, text=_row(pen, curve, extra="    ", style="" if place else "bold"))


def memory(view: View, pen: Pen) -> Iterator[Line]:
    """How full it is, and when it will be."""
    told = view.memory
    held = max((value for value in (told.peak, told.allocated, told.reserved) if value is not None), default=None)
    name = "GPU memory" if told.device else "memory"
    percent = None if told.share is None else 100 * told.share
    colour = "bold red" if (percent or 0) > CRITICAL else "yellow" if (percent or 0) > HIGH else "green"
    if held is not None:
        of = f"{mebibytes(held)} of {mebibytes(told.capacity)}" if told.capacity else mebibytes(held)
        cells = min(24, pen.width - len(name) - len(of) - 12)
        line = Text(f"{name}  ", no_wrap=True)
        if percent is not None and cells >= 5:
            _append_bar(line, pen.bar(told.share, cells), colour)
            line.append("  ")
        parts = [(of, ""), (share(told.share), colour), (_parts_of(view), "dim")]
        line.append_text(pen.line(parts, width=pen.width - line.cell_len))
        yield Line(rank=10, text=line)
    for place, words in enumerate(pen.wrapped(told.forecast, pen.width - 2, 3) if told.forecast else []):
        yield Line(rank=11 + place, text=Text(f"  {words}", "bold yellow", no_wrap=True))


def speed(view: View, pen: Pen) -> Iterator[Line]:
    """Steps a second, and where the time of a step goes."""
    now = view.progress
    steps = [span for span in view.spans if span.label == "step"]
    spans = [span for span in view.spans if span.label != "step"]
    mean = number(now.mean)
    parts = [
        (f"{number(now.now)} steps/s" if now.now is not None else "", "bold"),
        ("" if now.mean is None else f"{mean} mean" if now.now is not None else f"{mean} steps/s on the mean", ""),
        (f"{number(steps[0].last)} ms a step" if steps else "", ""),
        (f"CPU {round(view.process.cpu_percent)}%" if view.process and view.process.cpu_percent else "", ""),
    ]
    if any(words for words, _ in parts):
        yield Line(rank=13, text=pen.line([("speed", "bold"), *parts]))
    whole = steps[0].last if steps and steps[0].last > 0 else sum(span.last for span in spans)
    for place, span in enumerate(spans):
        filled, _ = pen.bar(span.last / whole if whole > 0 else None, max(5, pen.width - _begin(pen) - 2))
        line = Text(f"  {pen.padded(span.label, _label(pen) - 2)} {number(span.last):>9} ", no_wrap=True)
        line.append(f"{share(span.last / whole if whole > 0 else None):>4} ")
        line.append(filled, "blue")
        yield Line(rank=28 + 3 * min(place, _MANY), text=line)


def machine(view: View, pen: Pen) -> Iterator[Line]:
    """The GPUs; where there are none the machine's processor, as recorded."""
    for gpu in view.gpus:
        heat = f"{number(gpu.temperature_celsius)} C" if gpu.temperature_celsius is not None else ""
        used = gpu.memory_used_bytes / 2**20 if gpu.memory_used_bytes is not None else None
        total = gpu.memory_total_bytes / 2**20 if gpu.memory_total_bytes is not None else None
        parts = [
            (f"GPU {gpu.index}", "bold"),
            (f"busy {number(gpu.utilisation_percent)}%" if gpu.utilisation_percent is not None else "", ""),
            (f"{mebibytes(used)} of {mebibytes(total)}" if used is not None else "", ""),
            (f"{number(gpu.power_watts)} W" if gpu.power_watts is not None else "", ""),
            (heat, ""),
            (pen.text(f"slowed by {', '.join(gpu.limited_by)}") if gpu.throttled and gpu.limited_by else "", "red"),
            (pen.text(gpu.name or ""), "dim"),
        ]
        yield Line(rank=14, text=pen.line(parts))
    recorded = [curve for curve in view.machine if tags.PROCESSOR_READING.part(curve.name) is None]
    for curve in recorded if not view.gpus else ():
        yield Line(rank=30, text=_row(pen, curve, extra="    "))


def saved(view: View, pen: Pen) -> Iterator[Line]:
    """The last checkpoint, and how old it is."""
    last = view.saved
    if last is None:
        if view.rows:
            yield Line(rank=24, text=pen.line([("no checkpoint yet", "dim")]))
        return
    ago = f"{age(last.ago)} ago" if last.ago is not None else "its folder is gone"
    ranked = ", ".join(f"{name} {number(value)}" for name, value in last.metrics.items() if isinstance(value, float))
    parts = [
        (f"checkpoint  step {last.step:,}", ""),
        (ago, ""),
        (f"{last.count} kept" if last.count else "", ""),
        (pen.text(ranked), ""),
    ]
    yield Line(rank=16, text=pen.line(parts))
    if last.failures:
        yield Line(rank=9, text=Text(f"  {last.failures} saves failed", "bold red", no_wrap=True))


def findings(view: View, pen: Pen) -> Iterator[Line]:
    """What the rules found: the gravest first, of equal ones the last."""
    order = list(SEVERITIES)
    told = sorted(view.findings, key=lambda finding: (order.index(finding.severity), -finding.step))
    counts = [(_counted(view.counts[word], word), SEVERITIES[word]) for word in order if view.counts.get(word)]
    if not told and view.state.word != "not started":
        yield Line(rank=12, text=pen.line([("no findings", "green" if view.rows else "dim")]))
    if not told:
        return
    yield Line(rank=7, text=pen.line([("findings", "bold"), *counts]))
    for place, finding in enumerate(told):
        base = (20 if finding.severity == "note" else 10) + 9 * place
        about = f"{finding.rule} ({finding.subject})" if finding.subject else finding.rule
        head: list[Part] = [
            (finding.severity, SEVERITIES[finding.severity]),
            (f"step {finding.step:,}", ""),
            (pen.cut(about, max(10, pen.width - 24)), "bold"),
        ]
        yield Line(rank=base, text=pen.line(head))
        for at, words in enumerate(pen.wrapped(finding.message, pen.width - 2, _MESSAGE_LINES)):
            yield Line(rank=base + 1 + at, text=Text(f"  {words}", no_wrap=True))
        for at, words in enumerate(pen.wrapped(f"-> {finding.remedy}", pen.width - 2, _MESSAGE_LINES)):
            yield Line(rank=base + 12 + at, text=Text(f"  {words}", "dim", no_wrap=True))


def events(view: View, pen: Pen) -> Iterator[Line]:
    """What else happened, the last first."""
    for place, (step, kind, words) in enumerate(reversed(view.events)):
        base = 29 + 4 * place
        line = pen.line([(f"step {step:,}", ""), (pen.cut(kind, max(10, pen.width // 3)), "bold")])
        line.append("  " + pen.wrapped(words, max(4, pen.width - line.cell_len - 2), 1)[0])
        yield Line(rank=base, text=line)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count > 1 else ''}"


def _where(view: View, pen: Pen) -> str:
    return pen.text(f"on {view.state.host}") if view.state.host and not view.state.ended else ""


def _parts_of(view: View) -> str:
    told = view.memory
    parts = list[str]()
    if told.device and told.allocated is not None and told.reserved is not None:
        parts.append(f"tensors {mebibytes(told.allocated)}, reserved {mebibytes(told.reserved)}")
    if view.process is not None and view.process.resident is not None and told.device:
        parts.append(f"process {mebibytes(view.process.resident)}")
    return ", ".join(parts)


def _label(pen: Pen) -> int:
    return min(30, max(12, pen.width // 4 + 2))


def _begin(pen: Pen) -> int:
    """Where the sparkline of a row begins."""
    return _label(pen) + 1 + 9 + 1 + 4 + 1


def _row(pen: Pen, curve: Curve, *, extra: str, mark: Part = ("", ""), style: str = "") -> Text:
    """A label, the last value, a short field, and the past as a sparkline; in little room only the first two."""
    narrow = pen.width < _begin(pen) + _LEAST_SPARK
    width = (max(4, pen.width - 10) if narrow else _label(pen)) - (2 if mark[0] else 0)
    line = Text(no_wrap=True)
    if mark[0]:
        line.append(mark[0] + " ", mark[1])
    line.append(pen.padded(curve.label, width), style)
    bad = curve.last != curve.last or abs(curve.last) == float("inf")
    line.append(f" {number(curve.last):>9}", "bold red" if bad else style)
    if narrow:
        return line
    unit = curve.unit if curve.unit and not extra.strip() and len(curve.unit) <= 4 else extra
    line.append(f" {unit:<4} " if not extra.strip() else f" {extra} ", style)
    for words, colour in pen.spark(curve.trend, pen.width - line.cell_len - 1):
        line.append(words, colour if style != "dim" else "dim")
    return line


def _append_bar(line: Text, bar: Sequence[str], colour: str) -> None:
    line.append(bar[0], colour)
    line.append(bar[1], "dim")
