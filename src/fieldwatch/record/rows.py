"""Parse journal lines into blocks: in bulk if a whole chunk is valid, else line by line."""

from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record.damage import DamageTally
from fieldwatch.record.derive import derive_block
from fieldwatch.record.journal import RowLayout, layout_of
from fieldwatch.record.lines import ALTERED, NO_JSON, LineReader, checksum_of, count, numbered, parse_line
from fieldwatch.record.packing import MOST_ROWS, PACKED, PackedRows, layout_number, numbers_of, seconds_of, unpack
from fieldwatch.record.row import Block
from fieldwatch.record.segments import Segment, segment_in

BLOCK_ROWS = MOST_ROWS
# Index of the first value in a row, after layout, step, seconds, position and samples.
_FIRST_VALUE = 5
_NUMBER_TYPES = frozenset((int, float))
_NON_FINITE = frozenset(("nan", "inf", "-inf"))
_INT64 = 2**63


class RowReader:
    """Reads the lines of one journal in order and keeps track of the layouts declared so far.

    Damaged lines and rows of an unknown layout are skipped and counted.

    Args:
        path: path of the journal, for messages.
        damage: counter of damaged lines.
        layouts: layouts that are declared anywhere in the file, if known in advance.

    Attributes:
        segment_number: number of the segment that the last block belongs to; 0 if its layout does not record one.
    """

    def __init__(self, path: Path, damage: DamageTally, layouts: Mapping[int, RowLayout] | None = None) -> None:
        self._path = path
        self._damage = damage
        self._layouts = dict(layouts or {})
        self._marks = LineReader()
        self._current_segment = 1
        self._last_step: int | None = None
        self._damage_since_last_block = False
        self.segment_number = 0

    def read(self, text: bytes, first: int) -> Iterator[tuple[int, Block | Segment]]:
        """Yield ``(line number, item)``: a block for each run of rows with one layout, and a segment where one begins.

        The line number is that of the block's first row. If a segment's own line is lost, the segment is yielded before
        its first row.

        Args:
            text: whole lines, each terminated by a newline.
            first: 1-based number of the first line.
        """
        if first == 1:
            self._marks.check_first_line(text)
        group = _PackedGroup()
        for number, lines in _split_at_marks(text, first):
            if lines.startswith(PACKED):
                yield from self._take_packed(group, number, lines[:-1])
                continue
            yield from self._finish(group)
            if lines.startswith(b"{"):
                yield from self._take_mark(number, lines[:-1])
                continue
            for at, layout, block in self._blocks(lines, number):
                yield from self._found(at, layout, block)
        yield from self._finish(group)

    def _found(self, at: int, layout: RowLayout, block: Block) -> Iterator[tuple[int, Block | Segment]]:
        """Yield a block with its derived columns, after the segment that it begins."""
        if layout.segment_number > self._current_segment:
            yield at, self._begin_segment(Segment(number=layout.segment_number, resume=layout.resume))
        self.segment_number = layout.segment_number
        self._count_lost(block)
        yield at, derive_block(block)

    def _take_packed(self, group: "_PackedGroup", number: int, line: bytes) -> Iterator[tuple[int, Block | Segment]]:
        """Add a packed line to the group of those before it; yield the group first if it does not belong to it."""
        value, problem = self._marks.read(line)
        layout = None if problem else self._layouts.get(layout_number(value), None)
        contents = None if layout is None else unpack(value, layout.float32_count, layout.float64_count)
        if layout is None or contents is None:
            # Rows before the damage come first, since their last step tells how many are lost.
            yield from self._finish(group)
            self._skip_line(number, problem or "does not hold the rows of a declared layout")
            return
        if not group.takes(layout, contents.rows):
            yield from self._finish(group)
        group.add(number, layout, contents)

    def _finish(self, group: "_PackedGroup") -> Iterator[tuple[int, Block | Segment]]:
        if group.layout is not None:
            at, layout, block = group.take()
            yield from self._found(at, layout, block)

    def _blocks(self, text: bytes, first: int) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield the blocks of a text that contains rows only."""
        rows = _parse_at_once(text)
        blocks = self._blocks_by_layout(rows, unchecked=True) if rows is not None else None
        # Fast path: one parse and one checksum pass for the whole chunk. On any doubt, fall through to the slow path.
        if rows is not None and blocks is not None and self._has_checksums(text, rows):
            yield from self._in_order(rows, blocks, first)
            return
        # Slow path, line by line: good rows collect in `pending`, and a bad line ends the block before it.
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
            self._skip_line(number, problem)
        yield from self._checked(pending, start)

    def _take_mark(self, number: int, line: bytes) -> Iterator[tuple[int, Segment]]:
        """Register a declared layout, or yield the segment that the line begins."""
        value, problem = self._marks.read(line)
        if problem:
            self._skip_line(number, problem)
        elif "layout" in value:
            try:
                layout = layout_of(value, with_checksum=self._marks.has_checksums)
            except (KeyError, TypeError, ValueError) as error:
                self._skip_line(number, f"is not a layout ({error!r})")
                return
            self._layouts[layout.number] = layout
            if layout.segment_number > self._current_segment:
                yield number, self._begin_segment(Segment(number=layout.segment_number, resume=layout.resume))
        elif (segment := segment_of(value)) is not None:
            yield number, self._begin_segment(segment)
        else:
            self._skip_line(number, "is neither a layout, a row nor a segment")

    def _begin_segment(self, segment: Segment) -> Segment:
        """Update the state for the start of a segment and return it."""
        self._current_segment = max(self._current_segment, segment.number)
        # A new segment may repeat steps. They are not lost, so counting restarts at its first step.
        self._last_step = None if self._last_step is None else min(self._last_step, segment.resume - 1)
        return segment

    def _skip_line(self, number: int, problem: str) -> None:
        self._damage.add(self._path, number, problem)
        self._damage_since_last_block = True

    def _count_lost(self, block: Block) -> None:
        """Count the steps missing between the last row before damaged lines and the first row after them."""
        if block.axis != "step":
            return
        first = int(block.steps[0])
        if self._damage_since_last_block:
            self._damage.lost(self._path, first - (-1 if self._last_step is None else self._last_step) - 1)
        self._damage_since_last_block = False
        self._last_step = int(block.steps[-1])

    def _checked(self, rows: list[list[Any]], first: int) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield the blocks of rows that passed the line-by-line check; ``first`` is the line number of the first."""
        blocks = self._blocks_by_layout(rows, unchecked=False) if rows else None
        if blocks is not None:
            yield from self._in_order(rows, blocks, first)

    def _blocks_by_layout(self, rows: list[list[Any]], *, unchecked: bool) -> dict[int, Block] | None:
        """Return one block per layout with all of its rows, or None if a row is invalid.

        Args:
            rows: parsed rows.
            unchecked: whether the rows come from the bulk parse, which has already ruled out values (such as booleans)
                that numpy would silently convert to numbers.
        """
        # `type` instead of `isinstance`: a bool is an int, so JSON's true would pass for layout number 1.
        numbers = [row[0] if row else None for row in rows]
        if set(map(type, numbers)) != {int} or not self._layouts.keys() >= set(numbers):
            return None
        blocks = dict[int, Block]()
        for number in dict.fromkeys(cast("list[int]", numbers)):
            layout = self._layouts[number]
            rows_of_layout = [row for row in rows if row[0] == number]
            block = (
                _block_of_unchecked(layout, rows_of_layout) if unchecked else _block_of_checked(layout, rows_of_layout)
            )
            if block is None:
                return None
            blocks[number] = block
        return blocks

    def _has_checksums(self, text: bytes, rows: list[list[Any]]) -> bool:
        """Whether all rows carry the checksums that their layouts require; False if only some layouts require them."""
        expected = {self._layouts[number].has_checksums for number in set(map(itemgetter(0), rows))}
        # Layouts written by old versions have no checksums to verify. A mixture is left to the slow path.
        if expected == {False}:
            return True
        if expected != {True}:
            return False
        # Inlined: calling `checksum_of` for each line takes twice as long.
        sums = [crc32(line[: line.rfind(b",")]) for line in text.split(b"\n")]
        return sums[:-1] == [row[-1] for row in rows]

    def _in_order(
        self, rows: list[list[Any]], blocks: Mapping[int, Block], first: int
    ) -> Iterator[tuple[int, RowLayout, Block]]:
        """Yield blocks in file order, each with the number of its first line and at most `BLOCK_ROWS` rows."""
        # Rows of several layouts may alternate: cut each layout's block wherever the layout changes.
        next_row = dict.fromkeys(blocks, 0)
        for number, group in groupby(rows, itemgetter(0)):
            remaining = sum(1 for _ in group)
            while remaining:
                start = next_row[number]
                size = min(remaining, BLOCK_ROWS)
                yield first, self._layouts[number], blocks[number].part(slice(start, start + size))
                next_row[number] = start + size
                first += size
                remaining -= size

    def _problem(self, line: bytes, row: Any) -> str:
        """Return why a line is not a valid row of a known layout; an empty string if it is one."""
        if not isinstance(row, list):
            return "is neither a layout, a row nor a segment"
        row = cast("list[Any]", row)
        layout = self._layouts.get(row[0]) if row and type(row[0]) is int else None
        if layout is None:
            return f"is a row of an undeclared layout ({str(row[:1])[:40]})"
        if len(row) != layout.width or not _is_head(row):
            return f"is not a row of layout {layout.number}: expected {layout.width} entries"
        if layout.has_checksums and row[-1] != checksum_of(line):
            return ALTERED
        values = row[_FIRST_VALUE:]
        if not set(map(type, values)) <= _NUMBER_TYPES and not all(
            type(value) in _NUMBER_TYPES or _is_non_finite_name(value) for value in values
        ):
            return "holds a value that is not a number"
        return ""


class _PackedGroup:
    """Consecutive packed lines of one layout, which become one block: a few large blocks are read faster than many.

    Attributes:
        layout: their layout; None if there are none.
    """

    def __init__(self) -> None:
        self.layout: RowLayout | None = None
        self._at = 0
        self._rows = 0
        self._contents: list[PackedRows] = []

    def takes(self, layout: RowLayout, rows: int) -> bool:
        """Whether rows of a layout can be added."""
        return self.layout is None or (self.layout is layout and self._rows + rows <= BLOCK_ROWS)

    def add(self, number: int, layout: RowLayout, contents: PackedRows) -> None:
        """Add the contents of a line."""
        if self.layout is None:
            self.layout = layout
            self._at = number
        self._rows += contents.rows
        self._contents.append(contents)

    def take(self) -> tuple[int, RowLayout, Block]:
        """Return the number of the first line, the layout and the block of all lines, and begin anew."""
        layout = self.layout
        contents = self._contents
        assert layout is not None  # noqa: S101  the caller has checked
        self.layout = None
        self._contents = []
        self._rows = 0
        # Usually all lines but the last have the same number of rows.
        parts = [
            numbers_of(list(lines), layout.float32_count, layout.float64_count)
            for _, lines in groupby(contents, attrgetter("rows"))
        ]
        integers = parts[0][0] if len(parts) == 1 else np.concatenate([part for part, _ in parts], axis=1)
        values = parts[0][1] if len(parts) == 1 else np.concatenate([part for _, part in parts])
        samples: tuple[tuple[str, ...], ...] = ()
        if any(line.samples for line in contents):
            samples = tuple(chain.from_iterable(line.samples or ((),) * line.rows for line in contents))
        block = Block(
            axis=layout.axis,
            columns=layout.columns,
            steps=integers[1],
            seconds=seconds_of(integers[0]),
            positions=integers[2],
            values=values,
            samples=samples,
        )
        return self._at, layout, block


def segment_of(line: Mapping[str, Any]) -> Segment | None:
    """Return the segment that a line begins, or None if it begins none or is invalid."""
    return segment_in(line) if "segment" in line else None


def _split_at_marks(text: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Split a text at its marks (lines that begin with a brace) and yield each part with its first line number.

    Marks declare layouts and segments and are yielded one by one; the lines between two marks are rows.
    """
    if b"{" not in text:  # ten times faster than the two-character search below
        yield first, text
        return
    start = 0
    while start < len(text):
        mark = text.startswith(b"{", start)
        end = text.index(b"\n", start) + 1 if mark else text.find(b"\n{", start) + 1 or len(text)
        yield first, text[start:end]
        first += 1 if mark else count(text[start:end], b"\n")
        start = end


def _parse_at_once(text: bytes) -> list[list[Any]] | None:
    """Parse all lines with a single JSON call.

    Return None unless every line is a list whose strings are only sample names and names of non-finite numbers.
    """
    # Booleans and nulls are left to the slow path. Each of them contains "u" or "l", numbers contain neither, and
    # searching for one character takes a twentieth of the time.
    if (b"u" in text or b"l" in text) and (b"tru" in text or b"fals" in text or b"nul" in text):
        return None
    lines = count(text, b"\n")
    # A damaged line must not merge with the next one. The newlines are kept, since JSON strings may not contain them:
    # an open quote is an error. The nulls between the lines, which no line contains, expose an open bracket.
    values = parse_line(b"[%b]" % text[:-1].replace(b"\n", b"\n,null,"))
    if values is None or len(values) != 2 * lines - 1 or values[1::2].count(None) != lines - 1:
        return None
    rows = values[::2]
    return rows if set(map(type, rows)) == {list} and _holds_no_other_text(text, rows) else None


def _holds_no_other_text(text: bytes, rows: list[list[Any]]) -> bool:
    """Whether sample names and names of non-finite numbers are the only strings, determined by counting quotes."""
    if min(map(len, rows)) < _FIRST_VALUE:
        return False
    samples = [row[_FIRST_VALUE - 1] for row in rows]
    if set(map(type, samples)) != {list}:
        return False
    names = list(chain.from_iterable(samples))
    if not set(map(type, names)) <= {str} or not _NON_FINITE.isdisjoint(names):
        return False
    # Every string has two quotes. All quotes that do not belong to sample names must belong to names of non-finite
    # numbers, which follow a comma; otherwise there is another string among the values.
    quotes = count(text, b'"') - 2 * len(names)
    return not quotes or quotes == 2 * sum(text.count(b',"%b"' % name.encode()) for name in _NON_FINITE)


def _is_non_finite_name(value: Any) -> bool:
    """Whether a value is "nan", "inf" or "-inf"."""
    return type(value) is str and value in _NON_FINITE


def _is_head(row: list[Any]) -> bool:
    """Whether step, seconds, position and samples of a row have valid types and ranges."""
    _, step, seconds, position, samples, *_ = row
    return (
        type(step) is type(position) is int
        and max(abs(step), abs(position)) < _INT64
        and type(seconds) in _NUMBER_TYPES
        and type(samples) is list
        and all(type(name) is str for name in cast("list[Any]", samples))
    )


def _block_of_unchecked(layout: RowLayout, rows: list[list[Any]]) -> Block | None:
    """Build a block from bulk-parsed rows, or return None if any of them is not a valid row of this layout."""
    if set(map(len, rows)) != {layout.width}:
        return None
    # The fixed entries of a row are 0: layout, 1: step, 2: seconds, 3: position, 4: samples.
    steps, seconds, positions = ([row[i] for row in rows] for i in (1, 2, 3))
    if set(map(type, steps + positions)) != {int} or not set(map(type, seconds)) <= _NUMBER_TYPES:
        return None
    # Integers beyond int64 turn this into an object or float array, which is rejected below.
    at = np.array([steps, positions])
    try:
        values = np.array([row[_FIRST_VALUE : _FIRST_VALUE + len(layout.columns)] for row in rows], np.float64)
    except (TypeError, ValueError):  # a list or mapping among the numbers
        return None
    if at.dtype != np.int64 or values.ndim != 2:
        return None
    return _block(layout, at, seconds, [row[_FIRST_VALUE - 1] for row in rows], values)


def _block_of_checked(layout: RowLayout, rows: list[list[Any]]) -> Block:
    """Build a block from rows that passed the line-by-line check."""
    at = np.array([[row[1] for row in rows], [row[3] for row in rows]], np.int64)
    values = np.array([row[_FIRST_VALUE : _FIRST_VALUE + len(layout.columns)] for row in rows], np.float64)
    return _block(layout, at, [row[2] for row in rows], [row[4] for row in rows], values)


def _block(
    layout: RowLayout,
    at: NDArray[np.int64],
    seconds: list[float],
    samples: list[list[str]],
    values: NDArray[np.float64],
) -> Block:
    """Build a block, rounding the leading float32 columns of its layout.

    They are written with the fewest digits that identify a float32, so the parsed float64 values are slightly off.
    """
    float32_values = values[:, : layout.float32_count]  # a view: rounds in place
    # A damaged value beyond float32 becomes infinite: no reason for a warning.
    with np.errstate(over="ignore"):
        float32_values[...] = float32_values.astype(np.float32)
    return Block(
        axis=layout.axis,
        columns=layout.columns,
        steps=at[0],
        seconds=np.array(seconds, np.float64),
        positions=at[1],
        values=values,
        samples=tuple(map(tuple, samples)) if any(samples) else (),
    )
