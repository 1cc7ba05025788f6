"""From the lines of a journal to blocks: many at once where all of them are sound, one by one where they are not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.journal import Layout, layout_of
from fieldwatch.record.lines import corrupt, count, numbered, parse_line
from fieldwatch.record.row import Block

BLOCK_ROWS = 512
_HEAD = 5
_NUMBERS = frozenset((int, float))
_NAMED = frozenset(("nan", "inf", "-inf"))
_INT64 = 2**63


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


class RowReader:
    """Reads the lines of one journal in their order; knows the layouts that were declared so far.

    Args:
        path: the journal, for messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._layouts: dict[int, Layout] = {}

    def read(self, text: bytes, first: int) -> Iterator[tuple[int, Block | Segment]]:
        """Yield the number of the first line, and the block, of consecutive rows of one layout; and the segments.

        Args:
            text: whole lines, each with the newline that ends it.
            first: 1-based number of the first of them.

        Raises:
            CorruptRecord: a line is neither a layout, a row of a declared layout nor a segment.
        """
        rows = _parsed_at_once(text)
        tables = self._tables(rows, plain=True) if rows is not None else None
        if rows is not None and tables is not None:
            yield from _blocks(rows, tables, first)
            return
        pending = list[list[Any]]()
        number = first - 1
        for number, line in numbered(text, first):
            value = parse_line(line)
            if isinstance(value, list):
                pending.append(cast("list[Any]", value))
                continue
            yield from self._checked(pending, number - len(pending))
            pending = []
            if (segment := self._take_mark(number, value)) is not None:
                yield number, segment
        yield from self._checked(pending, number + 1 - len(pending))

    def _take_mark(self, number: int, value: Any) -> Segment | None:
        """Learn a layout, or return a segment."""
        if value is None:
            raise corrupt(self._path, number, "is not a line of JSON")
        if isinstance(value, dict) and "layout" in value:
            layout = declared(self._path, number, cast("dict[str, Any]", value))
            self._layouts[layout.number] = layout
            return None
        if isinstance(value, dict) and "segment" in value:
            return segment_of(self._path, number, cast("dict[str, Any]", value))
        raise corrupt(self._path, number, "is neither a layout, a row nor a segment")

    def _checked(self, rows: list[list[Any]], first: int) -> Iterator[tuple[int, Block]]:
        """Yield the blocks of rows that came from one line each, of which the first has this number."""
        if not rows:
            return
        tables = self._tables(rows, plain=False)
        if tables is None:
            for number, row in enumerate(rows, first):
                if problem := self._problem(row):
                    raise corrupt(self._path, number, problem)
            return
        yield from _blocks(rows, tables, first)

    def _tables(self, rows: list[list[Any]], *, plain: bool) -> dict[int, Block] | None:
        """Return all rows of each layout as one block; None where a row is not sound.

        Args:
            rows: the rows.
            plain: whether they were parsed at once, so that no value is anything that numpy takes for a number.
        """
        numbers = [row[0] if row else None for row in rows]
        if set(map(type, numbers)) != {int} or not self._layouts.keys() >= set(numbers):
            return None
        tables = dict[int, Block]()
        for number in dict.fromkeys(cast("list[int]", numbers)):
            layout = self._layouts[number]
            some = [row for row in rows if row[0] == number]
            table = _plain(layout, some) if plain else None
            if table is None and any(map(self._problem, some)):
                return None
            tables[number] = _careful(layout, some) if table is None else table
        return tables

    def _problem(self, row: list[Any]) -> str:
        """Return why it is not a row of a declared layout, empty if it is one."""
        layout = self._layouts.get(row[0]) if row and type(row[0]) is int else None
        if layout is None:
            return f"is a row of an undeclared layout ({str(row[:1])[:40]})"
        if len(row) != layout.width or not _is_head(row):
            return f"is not a row of layout {layout.number}: wanted {layout.width} entries"
        kinds = set(map(type, row[_HEAD:]))
        if not kinds <= _NUMBERS and not all(type(value) in _NUMBERS or _is_name(value) for value in row[_HEAD:]):
            return "holds a value that is not a number"
        return ""


def declared(path: Path, number: int, line: Mapping[str, Any]) -> Layout:
    """Return the layout that a line declares.

    Raises:
        CorruptRecord: it does not.
    """
    try:
        return layout_of(line)
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, number, f"is not a layout ({error!r})") from error


def segment_of(path: Path, number: int, line: Mapping[str, Any]) -> Segment:
    """Return the segment that a line begins.

    Raises:
        CorruptRecord: it does not.
    """
    try:
        return Segment(number=line["segment"], resume=int(line["resume"]), started=line["started"])
    except (KeyError, TypeError, ValueError) as error:
        raise corrupt(path, number, f"is not a segment marker ({error!r})") from error


def _parsed_at_once(text: bytes) -> list[list[Any]] | None:
    """Parse all lines by one call; None unless each is a list, whose texts are samples and names of numbers.

    The newlines stay, so that a text that one line leaves open cannot be closed by the next one; and what stands
    between the lines, which no line holds, has to be seen again between the values, so that a list cannot either.
    """
    if b"tru" in text or b"fals" in text or b"nul" in text:  # rare ends: found in a tenth of the time
        return None
    lines = count(text, b"\n")
    values = parse_line(b"[%b]" % text[:-1].replace(b"\n", b"\n,null,"))
    if values is None or len(values) != 2 * lines - 1 or values[1::2].count(None) != lines - 1:
        return None
    rows = values[::2]
    return rows if set(map(type, rows)) == {list} and _holds_no_other_text(text, rows) else None


def _holds_no_other_text(text: bytes, rows: list[list[Any]]) -> bool:
    """Whether all rows have samples, and every text besides these is the name of a number, by counting the quotes."""
    if min(map(len, rows)) < _HEAD:
        return False
    samples = [row[_HEAD - 1] for row in rows]
    if set(map(type, samples)) != {list}:
        return False
    names = list(chain.from_iterable(samples))
    if not set(map(type, names)) <= {str} or not _NAMED.isdisjoint(names):
        return False
    quotes = count(text, b'"') - 2 * len(names)
    return not quotes or quotes == 2 * sum(text.count(b',"%b"' % name.encode()) for name in _NAMED)


def _blocks(rows: list[list[Any]], tables: Mapping[int, Block], first: int) -> Iterator[tuple[int, Block]]:
    """Yield the blocks of consecutive rows of one layout, and the numbers of their first lines."""
    used = dict.fromkeys(tables, 0)
    for layout, group in groupby(rows, itemgetter(0)):
        left = sum(1 for _ in group)
        while left:
            start, count = used[layout], min(left, BLOCK_ROWS)
            yield first, tables[layout].part(slice(start, start + count))
            used[layout], first, left = start + count, first + count, left - count


def _is_name(value: Any) -> bool:
    """Whether a value is the name of a non-finite number."""
    return type(value) is str and value in _NAMED


def _is_head(row: list[Any]) -> bool:
    """Whether step, seconds, position and samples of a row are what they should be."""
    _, step, seconds, position, samples, *_ = row
    return (
        type(step) is type(position) is int
        and max(abs(step), abs(position)) < _INT64
        and type(seconds) in _NUMBERS
        and type(samples) is list
        and all(type(name) is str for name in cast("list[Any]", samples))
    )


def _plain(layout: Layout, rows: list[list[Any]]) -> Block | None:
    """Return rows that were parsed at once as one block; None unless each is a row of this layout."""
    if set(map(len, rows)) != {layout.width}:
        return None
    steps, seconds, positions = ([row[i] for row in rows] for i in (1, 2, 3))
    if set(map(type, steps + positions)) != {int} or not set(map(type, seconds)) <= _NUMBERS:
        return None
    at = np.array([steps, positions])
    try:
        values = np.array([row[_HEAD:] for row in rows], np.float64)
    except (TypeError, ValueError):  # lists or mappings among the numbers
        return None
    if at.dtype != np.int64 or values.ndim != 2:
        return None
    return _block(layout, at, seconds, [row[_HEAD - 1] for row in rows], values)


def _careful(layout: Layout, rows: list[list[Any]]) -> Block:
    """Return rows that have been checked one by one as one block."""
    at = np.array([[row[1] for row in rows], [row[3] for row in rows]], np.int64)
    values = np.array([row[_HEAD:] for row in rows], np.float64)
    return _block(layout, at, [row[2] for row in rows], [row[4] for row in rows], values)


def _block(
    layout: Layout, at: NDArray[np.int64], seconds: list[float], samples: list[list[str]], values: NDArray[np.float64]
) -> Block:
    """Put a block together; the leading columns of its layout are float32 numbers."""
    single = values[:, : layout.single]
    with np.errstate(over="ignore"):
        single[...] = single.astype(np.float32)
    return Block(
        axis=layout.axis,
        columns=layout.columns,
        steps=at[0],
        seconds=np.array(seconds, np.float64),
        positions=at[1],
        values=values,
        samples=tuple(map(tuple, samples)) if any(samples) else (),
    )
