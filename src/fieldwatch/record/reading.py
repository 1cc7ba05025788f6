"""Reading a run's folder back: what stands after every resume has voided what it went back over."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fieldwatch.record.events import EVENTS
from fieldwatch.record.history import History
from fieldwatch.record.journal import JOURNAL, Layout, layout_of
from fieldwatch.record.lines import corrupt, read_lines
from fieldwatch.record.manifest import holds_run, read_manifest
from fieldwatch.record.row import Block

_BLOCK_ROWS = 512
_NUMBERS = frozenset((int, float))
_NAMED = ("nan", "inf", "-inf")


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One start of the run's process.

    Attributes:
        number: 1 for the first start.
        resume: the step it went on from; 0 for the first.
        started: ISO 8601 time, empty for the first.
    """

    number: int
    resume: int = 0
    started: str = ""


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
        if not _is_mark(event) or not ("segment" in event or {"kind", "step"} <= event.keys()):
            raise corrupt(path, number, "is not an event (kind and step are missing)")
        if "segment" not in event and event["step"] < limits.of(number):
            yield event


def read_blocks(folder: Path | str) -> Iterator[Block]:
    """Yield the rows that stand, in blocks of at most 512, in order; memory stays flat.

    Raises:
        CorruptRecord: see :func:`read_history`.
    """
    path = Path(folder) / JOURNAL
    limits = _Limits(path)
    layouts: dict[int, Layout] = {}
    current, rows = -1, list[list[Any]]()
    for number, line in read_lines(path):
        if _is_row(line):
            layout = _layout_of_row(path, number, line, layouts)
            if rows and (line[0] != current or len(rows) == _BLOCK_ROWS):
                yield _block(layouts[current], rows)
                rows = []
            current = layout.number
            if line[1] < limits.of(number):
                rows.append(line)
        elif _is_mark(line) and "layout" in line:
            layout = _declared(path, number, line)
            layouts[layout.number] = layout
        elif not (_is_mark(line) and "segment" in line):
            raise corrupt(path, number, "is neither a layout, a row nor a segment")
    if rows:
        yield _block(layouts[current], rows)


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
        try:
            yield number, Segment(number=line["segment"], resume=int(line["resume"]), started=line["started"])
        except (KeyError, TypeError, ValueError) as error:
            raise corrupt(path, number, f"is not a segment marker ({error!r})") from error


def _is_row(line: Any) -> TypeGuard[list[Any]]:
    return isinstance(line, list)


def _is_mark(line: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(line, dict)


def _declared(path: Path, number: int, line: Mapping[str, Any]) -> Layout:
    try:
        return layout_of(line)
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, number, f"is not a layout ({error!r})") from error


def _layout_of_row(path: Path, number: int, line: list[Any], layouts: Mapping[int, Layout]) -> Layout:
    layout = layouts.get(line[0]) if line and isinstance(line[0], int) else None
    if layout is None:
        raise corrupt(path, number, f"is a row of an undeclared layout ({str(line[:1])[:40]})")
    if len(line) != layout.width or not all(isinstance(value, int | float) for value in line[1:4]):
        raise corrupt(path, number, f"is not a row of layout {layout.number}: wanted {layout.width} entries")
    kinds = set(map(type, line[5:]))
    if not kinds <= _NUMBERS and not all(type(value) in _NUMBERS or value in _NAMED for value in line[5:]):
        raise corrupt(path, number, "holds a value that is not a number")
    return layout


def _block(layout: Layout, rows: list[list[Any]]) -> Block:
    values = np.array([row[5:] for row in rows], np.float64)
    single = values[:, : layout.single]
    with np.errstate(over="ignore"):
        single[...] = single.astype(np.float32)
    steps, positions = (np.array([row[i] for row in rows], np.int64) for i in (1, 3))
    seconds = np.array([row[2] for row in rows], np.float64)
    samples = tuple(tuple(row[4]) for row in rows)
    return Block(
        axis=layout.axis,
        columns=layout.columns,
        steps=steps,
        seconds=seconds,
        positions=positions,
        values=values,
        samples=samples if any(samples) else (),
    )
