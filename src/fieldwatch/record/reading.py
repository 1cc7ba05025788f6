"""Reading a run's folder back: what stands after every resume has voided what it went back over."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from fieldwatch.record.events import EVENTS
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL
from fieldwatch.record.lines import corrupt, read_in_parts, read_lines
from fieldwatch.record.manifest import holds_run, read_manifest
from fieldwatch.record.row import Block
from fieldwatch.record.rows import RowReader, Segment, segment_of


def read_history(folder: Path | str, capacity: int | None = None) -> History:
    """Read journal and events of a run's folder into a history.

    A missing file counts as empty, a torn last line as not written.

    Raises:
        FileNotFoundError: the folder does not exist.
        CorruptRecord: a line before the last cannot be read; the message names file and line.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"no run folder at {folder}: wanted the folder that holds {JOURNAL}")
    history = History(capacity)
    if holds_run(Path(folder)):
        for term, (first, last) in read_manifest(folder).windows.items():
            history.windows[term] = (first or 0, sys.maxsize if last is None else last)
    for block in read_blocks(folder):
        history.extend(block)
    for event in read_events(folder):
        history.add_event(event)
    return history


def read_segments(folder: Path | str) -> list[Segment]:
    """Return the starts of the run, the first included.

    Raises:
        CorruptRecord: see :func:`read_history`.
    """
    return [Segment(number=1), *(segment for _, segment in _segments(Path(folder) / JOURNAL))]


def read_events(folder: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the events that stand, in order.

    Raises:
        CorruptRecord: see :func:`read_history`.
    """
    path = Path(folder) / EVENTS
    limits = _Limits(path)
    for number, event in read_lines(path):
        checked_event(path, number, event)
        if "segment" not in event and event["step"] < limits.of(number):
            yield event


def checked_event(path: Path, number: int, event: Any) -> None:
    """Raise CorruptRecord unless a line is an event or a segment."""
    found = cast("dict[str, Any]", event) if isinstance(event, dict) else {}
    if "segment" not in found and not {"kind", "step"} <= found.keys():
        raise corrupt(path, number, "is not an event (kind and step are missing)")
    if "segment" not in found and type(found["step"]) is not int:
        raise corrupt(path, number, f"is an event whose step is {str(found['step'])[:40]!r}, not a whole number")


def read_blocks(folder: Path | str) -> Iterator[Block]:
    """Yield the rows that stand, in blocks of at most 512, in order; memory stays flat.

    Raises:
        CorruptRecord: see :func:`read_history`.
    """
    path = Path(folder) / JOURNAL
    limits, rows = _Limits(path), RowReader(path)
    for first, text in read_in_parts(path):
        for number, block in rows.read(text, first):
            if isinstance(block, Block):
                standing = block.before(limits.of(number))
                if len(standing):
                    yield standing


class _Limits:
    """Per line, the step from which on a later resume has voided it."""

    def __init__(self, path: Path) -> None:
        self._resumes = [(number, segment.resume) for number, segment in _segments(path)]

    def of(self, number: int) -> float:
        """Return the limit for a line; lines are asked for in ascending order."""
        while self._resumes and self._resumes[0][0] <= number:
            self._resumes.pop(0)
        return min((resume for _, resume in self._resumes), default=float("inf"))


def _segments(path: Path) -> Iterator[tuple[int, Segment]]:
    for number, line in read_lines(path, prefix=b'{"segment"'):
        yield number, segment_of(path, number, line)
