"""Sink that writes a run's progress as greppable ``key=value`` lines."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from fieldwatch.record.disk.backlog import WriteBacklog
from fieldwatch.record.metric import visible_columns
from fieldwatch.record.row import Block
from fieldwatch.record.sinks.digest import Digest, Report
from fieldwatch.record.sinks.text_file import TextFile

# Text that needs no quoting: it has no whitespace, double quote or equals sign.
_BARE = re.compile(r"[^\s\"=]+")


class Log:
    """Writes one line of ``key=value`` pairs for each report, each row of the epoch axis and each event.

    Example: ``2026-11-21T02:03:04Z step=400 phase=coarse loss=0.012 loss_trend=-1.0% pixel=0.01 pixel_share=83.0%
    pixel_trend=-3.2% grad_norm=0.41``. Unknown values (such as trends in the first steps) are omitted; non-finite ones
    are written as nan or inf. Texts with spaces are quoted as in JSON. Tags ``Statistics/...`` follow without their
    prefix: ``samples_per_ray=3.1``.

    Args:
        path: path of the file, such as ``runs/bear/log.txt``.
        every: number of steps between two reports.
        window: number of values in each of the two windows that a trend compares.
        clock: returns seconds since 1970.

    Raises:
        ValueError: if ``every`` or ``window`` is not positive.
    """

    def __init__(
        self, path: Path | str, *, every: int = 100, window: int = 100, clock: Callable[[], float] = time.time
    ) -> None:
        if every < 1:
            raise ValueError(f"Log: every must be at least 1 step, got {every}")
        self._digest = Digest(window)
        self._file = TextFile(Path(path))
        self._every = every
        self._next = 0
        self._clock = clock

    def __call__(self, block: Block) -> None:
        """Add a block, and write a line at every row at which a report is due."""
        self.extend((block,))

    def extend(self, blocks: Sequence[Block]) -> None:
        """Add several blocks, and write the lines that are due."""
        lines = [self._line(fields) for block in blocks if len(block) for fields in self._due(block)]
        if lines:
            self._file.append("".join(lines))

    def _due(self, block: Block) -> Iterator[Mapping[str, Any]]:
        """Add a block, and yield the fields of every line that is due."""
        if block.axis == "epoch":
            for row in block.rows():
                visible = {name: _number(row.values[name]) for name in visible_columns(block.columns)}
                yield {"step": row.step, "epoch": row.position} | visible
            return
        # Reports are due at multiples of `every`, regardless of block boundaries.
        start = 0
        while self._digest.covers(block) and (due := int(block.steps.searchsorted(self._next))) < len(block):
            part = _cut(block, slice(start, due + 1))
            self._digest.add(part)
            yield _fields(self._digest.report(part))
            self._next = (int(block.steps[due]) // self._every + 1) * self._every
            start = due + 1
        self._digest.add(_cut(block, slice(start, None)) if start else block)

    def event(self, event: Mapping[str, Any]) -> None:
        """Write a line for a finding, a refusal, a phase or any other event."""
        self._digest.event(event)
        # Kind and step come first in the line; the line's time stamp replaces the seconds.
        rest = {key: value for key, value in event.items() if key not in ("kind", "step", "seconds")}
        self._file.append(self._line({"step": event["step"], "event": event["kind"]} | rest))

    def defer_to(self, backlog: WriteBacklog) -> None:
        """Queue lines in a backlog while the disk is full."""
        self._file.queue.attach(backlog)

    def mark(self) -> dict[str, Any]:
        """Return the size of the file in bytes, by file name."""
        return self._file.mark()

    def rewind(self, mark: Mapping[str, Any] | None) -> None:
        """Truncate the file to the mark; with None, empty it."""
        # Trends must not mix values from before and after the resume.
        self._file.rewind(mark)
        self._digest.clear()
        self._next = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, fields: Mapping[str, Any]) -> str:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pairs = [f"{key}={_text(value)}" for key, value in fields.items()]
        return " ".join([now, *pairs]) + "\n"


def _cut(block: Block, part: slice) -> Block:
    return replace(
        block,
        steps=block.steps[part],
        seconds=block.seconds[part],
        positions=block.positions[part],
        values=block.values[part],
        samples=block.samples[part],
    )


def _fields(report: Report) -> dict[str, Any]:
    fields: dict[str, Any] = {"step": report.step}
    if report.phase:
        fields["phase"] = report.phase
    fields["loss"] = _number(report.total)
    fields |= _percent("loss_trend", report.total_trend, sign="+")
    for term in report.terms:
        fields[term.name] = _number(term.value)
        fields |= _percent(f"{term.name}_share", term.share)
        fields |= _percent(f"{term.name}_trend", term.trend, sign="+")
    fields["grad_norm"] = _number(report.gradient)
    return fields | {name: _number(value) for name, value in report.statistics.items()}


def _percent(name: str, value: float, sign: str = "") -> dict[str, str]:
    """Format a fraction as a percentage, keyed by name; an empty dict if it is unknown (NaN)."""
    return {} if value != value else {name: f"{100 * value:{sign}.1f}%"}  # noqa: PLR0124  only NaN differs from itself


def _number(value: float) -> str:
    return f"{value:.4g}"


def _text(value: Any) -> str:
    text = (
        value
        if isinstance(value, str)
        else orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    )
    return text if _BARE.fullmatch(text) else orjson.dumps(text).decode() if isinstance(value, str) else text
