"""A run as the output of a cell: state, progress, losses and findings, from what `fieldwatch watch` reads as well."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import duration, mebibytes, number, percent
from fieldwatch.base.cell import Html, Level, card, curve, paragraphs, sparkline, table
from fieldwatch.health import Finding, explain
from fieldwatch.monitor.watch import RunView
from fieldwatch.monitor.watch.run_view import MetricCurve

MOST_METRICS = 10
MOST_FINDINGS = 5
_SEVERITIES: Final = ("error", "warning", "note")


def run_card(view: RunView) -> Html:
    """Return a run as HTML.

    Args:
        view: state of the run, from a `Watcher`.
    """
    return card(
        view.folder.resolve().name,
        level=level_of(view),
        label=view.state.word,
        headline=", ".join(_progress(view)),
        facts=[text for text in (view.pipeline, str(view.folder)) if text],
        parts=_parts(view),
    )


def run_line(view: RunView) -> str:
    """Return a run in a line of plain text: folder, state, progress, loss, findings."""
    loss = [f"{view.total.name} {number(view.total.last)}"] if view.total is not None else []
    return f"{view.folder}: {', '.join([view.state.word, *_progress(view), *loss])}"


def level_of(view: RunView) -> Level:
    """Return the color of a run: whether it is well."""
    if view.state.broken or view.state.word == "hung":
        return "failed"
    if view.counts.get("error") or view.counts.get("warning") or view.state.word == "silent":
        return "findings"
    if view.state.word == "not started":
        return "empty"
    return "healthy" if view.state.ended else "running"


def _progress(view: RunView) -> Iterator[str]:
    now = view.progress
    if view.state.word == "not started":
        yield "no run in this folder yet"
        return
    planned = f" of {now.planned:,}" if now.planned is not None else ""
    yield f"{now.done:,}{planned} steps" + (f" ({percent(now.share, 0)})" if now.share is not None else "")
    yield f"{duration(now.seconds)} of training"
    if now.eta is not None:
        yield f"{duration(now.eta)} left"
    counts = [(view.counts.get(name, 0), name) for name in _SEVERITIES]
    found = ", ".join(f"{count:,} {name}{'s' if count > 1 else ''}" for count, name in counts if count)
    yield found or "no findings"


def _parts(view: RunView) -> Iterator[Html]:
    yield paragraphs([view.state.detail, view.trouble, "The record is still being read." if view.reading else ""])
    if view.total is not None and view.total.trend.shape[1] > 1:
        yield curve(view.total.name, *_drawn(view.total), last=view.total.last)
    metrics = [term.curve for term in view.terms if term.active] + list(view.qualities)
    if view.gradient is not None:
        metrics.append(view.gradient)
    if metrics:
        rows = [
            (each.name, number(each.last), each.unit, f"{each.step:,}", sparkline(each.name, *_drawn(each)))
            for each in metrics[:MOST_METRICS]
        ]
        yield table(("metric", "last", "", "at step", ""), rows, numeric=(1, 3))
    yield paragraphs([". ".join(_machine(view))])
    if view.findings:
        yield findings_table(explain(view.findings))
    if view.state.remedy:
        yield paragraphs([f"Go on with: {view.state.remedy}, or run the cell again"])


def _machine(view: RunView) -> Iterator[str]:
    if view.progress.now is not None:
        yield f"{number(view.progress.now, 3)} steps/s"
    memory = view.memory
    used = max((value for value in (memory.peak, memory.allocated) if value is not None), default=None)
    if used is not None:
        yield f"{'GPU memory' if memory.device else 'Memory'}: {mebibytes(used)}"
    if memory.forecast:
        yield memory.forecast
    if view.saved is not None:
        yield f"Last checkpoint: step {view.saved.step:,}"


def findings_table(findings: tuple[Finding, ...]) -> Html:
    """Return findings as a table: the causes first, then the most severe."""
    ordered = sorted(findings, key=lambda one: (bool(one.because_of), _SEVERITIES.index(one.severity)))
    rows = [(one.severity, one.label, f"{one.message} {one.remedy}") for one in ordered[:MOST_FINDINGS]]
    rest = len(ordered) - len(rows)
    more = paragraphs([f"and {rest:,} more: `fieldwatch health` lists them all" if rest else ""])
    return Html(table(("finding", "", ""), rows) + more)


def _drawn(shown: MetricCurve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return steps and values that draw the lowest and highest value of each bucket, with gaps for non-finite ones."""
    lows, highs, bad = shown.trend
    # A bucket without a record is no gap: evaluations are rare.
    recorded = np.flatnonzero(np.isfinite(lows) | (bad > 0))
    values = np.stack([lows, highs], axis=1)[recorded].ravel()
    steps = np.repeat(recorded, 2).astype(np.float64) * (shown.step / max(len(lows) - 1, 1))
    return steps, values
