"""From the lines of a journal to blocks: many at once where all of them are sound, one by one where they are not."""

from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.damage import DamageTally
from fieldwatch.record.journal import RowLayout, layout_of
from fieldwatch.record.lines import ALTERED, NO_JSON, LineReader, checksum_of, count, numbered, parse_line
from fieldwatch.record.row import Block
from fieldwatch.record.segments import Segment, segment_in

BLOCK_ROWS = 512
_HEAD = 5
_NUMBERS = frozenset((int, float))
_NAMED = frozenset(("nan", "inf", "-inf"))
_INT64 = 2**63


class RowReader:
    """Reads the lines of one journal in their order; knows the layouts that were declared so far.

    A damaged line is left out and counted, and so is a row whose layout is not known.

    Args:
        path: the journal, for messages.
        damage: counts the damaged lines.
        layouts: those that are known to be declared somewhere in the file.

    Attributes:
        part: the segment that the last block belongs to, as its layout says; 0 where that does not say.
    """

    def __init__(self, path: Path, damage: DamageTally, layouts: Mapping[int, RowLayout] | None = None) -> None:
        self._path = path
        self._damage = damage
        self._layouts = dict(layouts or {})
        self._marks = LineReader()
        self._known = 1
        self._last: int | None = None
        self._hurt = False
        self.part = 0

    def read(self, text: bytes, first: int) -> Iterator[tuple[int, Block | Segment]]:
        """Yield the number of the first line, and the block, of consecutive rows of one layout; and the segments.

        A segment whose own line is lost is yielded before its first row.

        Args:
            text: whole lines, each with the newline that ends it.
            first: 1-based number of the first of them.
        """
        if first == 1:
            self._marks.begin(text)
        for number, part in _stretches(text, first):
            if part.startswith(b"{"):
                yield from self._take_mark(number, part[:-1])
                continue
            for at, layout, block in self._blocks(part, number):
                if layout.part > self._known:
                    yield at, self._begun(Segment(number=layout.part, resume=layout.resume))
                self.part = layout.part
                self._count_lost(block)
                yield at, block

    def _blocks(self, text: bytes, first: int) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield the blocks of a text without marks."""
        rows = _parsed_at_once(text)
        tables = self._tables(rows, plain=True) if rows is not None else None
        if rows is not None and tables is not None and self._has_checksums(text, rows):
            yield from self._in_order(rows, tables, first)
            return
        pending = list[list[Any]]()
        start = first
        for number, line in numbered(text, first):
            row = cast("list[Any] | None", parse_line(line))
            problem = NO_JSON if row is None else self._problem(line, row)
            if row is not None and not problem:
                start = start if pending else number
                pending.append(row)
                continue
            yield from self._checked(pending, start)
            pending = []
            self._left_out(number, problem)
        yield from self._checked(pending, start)

    def _take_mark(self, number: int, line: bytes) -> Iterator[tuple[int, Segment]]:
        """Learn a layout, or yield the segment that begins."""
        value, problem = self._marks.read(line)
        if problem:
            self._left_out(number, problem)
        elif "layout" in value:
            try:
                layout = layout_of(value, with_checksum=self._marks.sealed)
            except (KeyError, TypeError, ValueError) as error:
                self._left_out(number, f"is not a layout ({error!r})")
                return
            self._layouts[layout.number] = layout
            if layout.part > self._known:
                yield number, self._begun(Segment(number=layout.part, resume=layout.resume))
        elif (segment := segment_of(value)) is not None:
            yield number, self._begun(segment)
        else:
            self._left_out(number, "is neither a layout, a row nor a segment")

    def _begun(self, segment: Segment) -> Segment:
        """Note that a segment begins."""
        self._known = max(self._known, segment.number)
        self._last = None if self._last is None else min(self._last, segment.resume - 1)
        return segment

    def _left_out(self, number: int, problem: str) -> None:
        self._damage.add(self._path, number, problem)
        self._hurt = True

    def _count_lost(self, block: Block) -> None:
        """Count the steps that have no row between the rows on both sides of damaged lines."""
        if block.axis != "step":
            return
        first = int(block.steps[0])
        if self._hurt:
            self._damage.lost(self._path, first - (-1 if self._last is None else self._last) - 1)
        self._hurt = False
        self._last = int(block.steps[-1])

    def _checked(self, rows: list[list[Any]], first: int) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield the blocks of rows that were looked at one by one, of consecutive lines from this number on."""
        tables = self._tables(rows, plain=False) if rows else None
        if tables is not None:
            yield from self._in_order(rows, tables, first)

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
            table = _plain(layout, some) if plain else _careful(layout, some)
            if table is None:
                return None
            tables[number] = table
        return tables

    def _has_checksums(self, text: bytes, rows: list[list[Any]]) -> bool:
        """Whether all rows have the checksums that their layouts promise; False where only some layouts do."""
        promised = {self._layouts[number].sealed for number in set(map(itemgetter(0), rows))}
        if promised == {False}:
            return True
        if promised != {True}:
            return False
        sums = [crc32(line[: line.rfind(b",")]) for line in text.split(b"\n")]  # `checksum_of` takes twice as long
        return sums[:-1] == [row[-1] for row in rows]

    def _in_order(
        self, rows: list[list[Any]], tables: Mapping[int, Block], first: int
    ) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield the blocks of consecutive rows of one layout, with the numbers of their first lines."""
        used = dict.fromkeys(tables, 0)
        for number, group in groupby(rows, itemgetter(0)):
            left = sum(1 for _ in group)
            while left:
                start = used[number]
                size = min(left, BLOCK_ROWS)
                yield first, self._layouts[number], tables[number].part(slice(start, start + size))
                used[number] = start + size
                first += size
                left -= size

    def _problem(self, line: bytes, row: Any) -> str:
        """Return why a line is not a row of a known layout, empty if it is one."""
        if not isinstance(row, list):
            return "is neither a layout, a row nor a segment"
        row = cast("list[Any]", row)
        layout = self._layouts.get(row[0]) if row and type(row[0]) is int else None
        if layout is None:
            return f"is a row of an undeclared layout ({str(row[:1])[:40]})"
        if len(row) != layout.width or not _is_head(row):
            return f"is not a row of layout {layout.number}: wanted {layout.width} entries"
        if layout.sealed and row[-1] != checksum_of(line):
            return ALTERED
        values = row[_HEAD:]
        if not set(map(type, values)) <= _NUMBERS and not all(type(one) in _NUMBERS or _is_name(one) for one in values):
            return "holds a value that is not a number"
        return ""


def segment_of(line: Mapping[str, Any]) -> Segment | None:
    """Return the segment that a line begins; None if it begins none, or names one that is not possible."""
    return segment_in(line) if "segment" in line else None


def _stretches(text: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the number of the first line, and the text, of each line that begins with a brace, and of what is between.

    Such lines are layouts and segments; the lines between them are rows.
    """
    if b"{" not in text:  # ten times as quick as the search for two characters below
        yield first, text
        return
    start = 0
    while start < len(text):
        if text.startswith(b"{", start):
            end = text.index(b"\n", start) + 1
        else:
            end = text.find(b"\n{", start) + 1 or len(text)
        yield first, text[start:end]
        first += count(text[start:end], b"\n")
        start = end


def _parsed_at_once(text: bytes) -> list[list[Any]] | None:
    """Parse all lines by one call; None unless each is a list, whose texts are samples and names of numbers.

    The newlines stay, so that a text that one line leaves open cannot be closed by the next one; and what stands
    between the lines, which no line holds, has to be seen again between the values, so that a list cannot either.
    """
    if (b"u" in text or b"l" in text) and (b"tru" in text or b"fals" in text or b"nul" in text):
        return None  # single characters are found in a twentieth of the time, and numbers have none of these two
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


def _plain(layout: RowLayout, rows: list[list[Any]]) -> Block | None:
    """Return rows that were parsed at once as one block; None unless each is a row of this layout."""
    if set(map(len, rows)) != {layout.width}:
        return None
    steps, seconds, positions = ([row[i] for row in rows] for i in (1, 2, 3))
    if set(map(type, steps + positions)) != {int} or not set(map(type, seconds)) <= _NUMBERS:
        return None
    at = np.array([steps, positions])
    try:
        values = np.array([row[_HEAD : _HEAD + len(layout.columns)] for row in rows], np.float64)
    except (TypeError, ValueError):  # lists or mappings among the numbers
        return None
    if at.dtype != np.int64 or values.ndim != 2:
        return None
    return _block(layout, at, seconds, [row[_HEAD - 1] for row in rows], values)


def _careful(layout: RowLayout, rows: list[list[Any]]) -> Block:
    """Return rows that have been checked one by one as one block."""
    at = np.array([[row[1] for row in rows], [row[3] for row in rows]], np.int64)
    values = np.array([row[_HEAD : _HEAD + len(layout.columns)] for row in rows], np.float64)
    return _block(layout, at, [row[2] for row in rows], [row[4] for row in rows], values)


def _block(
    layout: RowLayout,
    at: NDArray[np.int64],
    seconds: list[float],
    samples: list[list[str]],
    values: NDArray[np.float64],
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
