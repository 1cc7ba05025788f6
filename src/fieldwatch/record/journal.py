"""The journal: one append-only file of JSON lines that stores every row of a run. Sinks are exports of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.record.lines import add_checksum, read_chunks
from fieldwatch.record.metric import Axis
from fieldwatch.record.packing import MOST_ROWS, PACKED, fits, pack
from fieldwatch.record.row import Block
from fieldwatch.record.row_text import TextRows, row_lines
from fieldwatch.record.segments import SEGMENT_KEY, Segment, SegmentedFile, objects_in, segment_in

JOURNAL = "journal.jsonl"
FIRST_REPEAT_ROWS = 16
LONGEST_REPEAT_ROWS = 4096
"""Largest number of rows between two declarations of a layout. The distance starts at `FIRST_REPEAT_ROWS` and doubles.
"""


@dataclass(kw_only=True)
class _WrittenLayout:
    """Write state of one set of columns: columns that are exact in float32 come first, then the others.

    Attributes:
        number: layout number, the first entry of each row.
        float32_indices: indices of the columns whose values are all exact in float32.
        float64_indices: indices of the remaining columns.
        is_float64: ``[columns]`` whether a column is one of the remaining ones.
        declaration: line that declares the layout.
        repeat_rows: number of rows between the last declaration and the next one.
        rows_left: number of rows until the next declaration.
    """

    number: int
    float32_indices: NDArray[np.intp]
    float64_indices: NDArray[np.intp]
    is_float64: NDArray[np.bool_]
    declaration: bytes
    repeat_rows: int = FIRST_REPEAT_ROWS
    rows_left: int = 0


class Journal(SegmentedFile):
    """Writer of ``journal.jsonl`` in a run folder.

    The file has four kinds of lines:

    - ``{"layout": 3, "axis": "step", "names": [...], "float32": 24, "crc": ...}`` declares the columns of all rows with
      layout number 3.
    - ``[3, step, seconds, position, samples, v..., crc]`` is a row.
    - ``{"packed": 3, "rows": 64, "step": 128, "data": "...", "crc": ...}`` holds 64 rows, see
      :mod:`fieldwatch.record.packing`. Blocks of at least 32 rows are written in this way.
    - ``{"segment": 2, "resume": 400, "started": "...", "crc": ...}`` records that the run was resumed from step 400,
      which invalidates all earlier rows with step >= 400.

    A layout is declared before its first row and repeated periodically. Each segment uses separate layouts, whose
    declarations carry ``"of_segment": [2, 400]``. A damaged line therefore affects only a small part of the file.
    ``crc`` is the checksum of the line, see :mod:`fieldwatch.record.lines`.

    The first ``float32`` columns of a layout hold values that are exact in float32, written with the fewest digits that
    identify a float32 number: parse them as float32. The others are float64. A column that once needed float64 stays
    float64. Non-finite values are the strings ``"nan"``, ``"inf"`` and ``"-inf"``. Seconds are rounded to microseconds.

    Each call writes its rows with a single system call; nothing is buffered in the process. Opening the file truncates
    a torn last line and leaves damaged lines in place.

    Args:
        folder: the run folder; created if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        path = Path(folder) / JOURNAL
        marks = list(objects_in(path, without=PACKED))
        super().__init__(path, marks)
        self._layouts: dict[tuple[str, tuple[str, ...]], _WrittenLayout] = {}
        numbers = [line["layout"] for line in marks if type(line.get("layout")) is int]
        # If the declaration of an old layout was lost, a new layout must not reuse its number: its rows would be
        # parsed with the wrong columns. No file has more layouts than lines, so the line count is a safe bound.
        self._next_layout = max([_count_lines(path), *(1 + number for number in numbers)])

    def segment(self, resume_step: int) -> None:
        """Record that the run resumes from ``resume_step``. Rows that follow use new layouts.

        Raises:
            ValueError: if the step is negative.
        """
        # New layouts record the new segment, so that rows remain assignable even if the segment line is damaged.
        super().segment(resume_step)
        self._layouts.clear()

    def append(self, block: Block) -> None:
        """Write the rows of a block. A block without rows or columns writes nothing."""
        self.extend((block,))

    def extend(self, blocks: Iterable[Block]) -> None:
        """Write the rows of several blocks, in order, with a single system call."""
        parts = [part for block in blocks if len(block) and block.columns for part in _short_blocks(block)]
        if not parts:
            return
        try:
            self._file.append(self._lines(parts), rows=sum(map(len, parts)))
        except BaseException:
            # The declarations may be missing in the file: later rows begin with new ones.
            self._layouts.clear()
            raise

    def _lines(self, parts: Sequence[Block]) -> bytes:
        """Return the lines of all rows, with the declarations that are due."""
        values = np.concatenate([part.values for part in parts], axis=None)
        # Values outside the range of float32 become infinite here, fail the comparison below, and stay float64.
        with np.errstate(over="ignore"):
            float32_values = values.astype(np.float32)
        # NaN compares unequal to itself. Non-finite values are written by name, so they fit either type.
        is_float32 = (float32_values == values) | ~np.isfinite(values)
        declarations: list[bytes] = []
        rows: list[bytes | None] = []
        texts: list[TextRows] = []
        end = 0
        for part in parts:
            start = end
            end += part.values.size
            layout = self._layout_of(part, is_float32[start:end].reshape(part.values.shape))
            declarations.append(b"" if layout.rows_left > 0 else layout.declaration)
            self._count_rows(layout, len(part))
            singles = float32_values[start:end].reshape(part.values.shape)
            if len(layout.float64_indices):
                singles = singles[:, layout.float32_indices]
            doubles = part.values[:, layout.float64_indices]
            if fits(part):
                rows.append(add_checksum(pack(part, layout.number, singles, doubles)))
            else:
                rows.append(None)
                texts.append(TextRows(part, layout.number, singles, doubles))
        lines = row_lines(texts)
        pairs = zip(declarations, rows, strict=True)
        return b"".join([declaration + (next(lines) if packed is None else packed) for declaration, packed in pairs])

    def _layout_of(self, block: Block, is_float32: NDArray[np.bool_]) -> _WrittenLayout:
        """Return the layout of a block, creating a new one if necessary.

        Args:
            block: the rows.
            is_float32: ``[rows, columns]`` whether each value is exact in float32.
        """
        key = (block.axis, block.columns)
        known = self._layouts.get(key)
        if known is not None and (is_float32 | known.is_float64).all():
            return known
        fits_float32 = is_float32.all(axis=0)
        if known is not None:
            # A column that once needed float64 keeps it, so that the layout does not alternate between blocks.
            fits_float32 &= ~known.is_float64
        float32_indices = np.flatnonzero(fits_float32)
        float64_indices = np.flatnonzero(~fits_float32)
        number = self._next_layout
        self._next_layout += 1
        # Float32 columns come first, so that a single count describes the types of all columns.
        names = [block.columns[i] for i in (*float32_indices, *float64_indices)]
        line = {
            "layout": number,
            "axis": block.axis,
            "names": names,
            "float32": len(float32_indices),
            **self.segment_fields,
        }
        layout = _WrittenLayout(
            number=number,
            float32_indices=float32_indices,
            float64_indices=float64_indices,
            is_float64=np.logical_not(fits_float32),
            declaration=add_checksum(orjson.dumps(line)),
        )
        self._layouts[key] = layout
        return layout

    @staticmethod
    def _count_rows(layout: _WrittenLayout, rows: int) -> None:
        """Count down the rows until the next declaration of a layout."""
        # Doubling the distance keeps the overhead of repeated declarations negligible in long runs.
        if layout.rows_left <= 0:
            layout.rows_left = layout.repeat_rows
            layout.repeat_rows = min(2 * layout.repeat_rows, LONGEST_REPEAT_ROWS)
        layout.rows_left -= rows


def _short_blocks(block: Block) -> Iterator[Block]:
    """Yield a block in parts of at most `MOST_ROWS` rows."""
    if len(block) <= MOST_ROWS:
        yield block
        return
    for first in range(0, len(block), MOST_ROWS):
        yield block.part(slice(first, first + MOST_ROWS))


def _count_lines(path: Path) -> int:
    """Return the number of lines in a file."""
    return max((first + text.count(b"\n") - 1 for first, text in read_chunks(path)), default=0)


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """A layout declaration, parsed from the journal.

    Attributes:
        number: layout number, the first entry of each row.
        axis: axis of the rows.
        columns: metric names, in the order of the values.
        float32_count: number of leading columns that hold float32 values.
        segment_number: number of the segment that the rows belong to; 0 in files of versions that did not record it.
        resume: step from which this segment was resumed.
    """

    number: int
    axis: Axis
    columns: tuple[str, ...]
    float32_count: int
    segment_number: int = 0
    resume: int = 0

    @property
    def float64_count(self) -> int:
        """Number of the other columns."""
        return len(self.columns) - self.float32_count

    @property
    def has_checksums(self) -> bool:
        """Whether the rows end with a checksum."""
        return self.segment_number > 0

    @property
    def width(self) -> int:
        """Number of entries per row: layout, step, seconds, position, samples, values and, if present, the checksum."""
        return 5 + len(self.columns) + self.has_checksums


def layout_of(line: Mapping[str, Any], *, with_checksum: bool) -> RowLayout:
    """Return the layout that a line declares.

    Args:
        line: parsed line, without its checksum.
        with_checksum: whether the line had a valid checksum; its rows then have checksums, too.

    Raises:
        KeyError: if ``layout``, ``axis``, ``names`` or ``float32`` is missing.
        ValueError: if the axis or an entry is unknown, or an entry has the wrong type.
    """
    number = line["layout"]
    axis = line["axis"]
    names = line["names"]
    float32_count = line["float32"]
    unknown = line.keys() - {"layout", "axis", "names", "float32", SEGMENT_KEY}
    segment = segment_in(line)
    if unknown or (SEGMENT_KEY in line and (segment is None or not with_checksum)):
        raise ValueError(f"unknown or impossible entries {sorted(unknown or {SEGMENT_KEY})}")
    if axis not in ("step", "epoch"):
        raise ValueError(f"axis {axis!r} is neither 'step' nor 'epoch'")
    # `type` instead of `isinstance`: JSON's true would pass for an int.
    if type(number) is not int or type(float32_count) is not int or float32_count < 0:
        raise ValueError(f"layout and float32 must be integers of at least 0, got {number!r} and {float32_count!r}")
    if not _are_texts(names) or float32_count > len(names):
        raise ValueError(f"names must be a list of at least {float32_count} strings, got {str(names)[:80]}")
    # Lines of the first segment have a checksum but no segment key; lines of old versions have neither.
    segment = segment or Segment(number=int(with_checksum))
    return RowLayout(
        number=number,
        axis=axis,
        columns=tuple(names),
        float32_count=float32_count,
        segment_number=segment.number,
        resume=segment.resume,
    )


def _are_texts(names: Any) -> bool:
    """Whether a JSON value is a list of strings."""
    return isinstance(names, list) and all(type(name) is str for name in cast("list[Any]", names))
