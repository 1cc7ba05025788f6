"""The journal: every row of a run, appended to one file of JSON lines (the store; sinks are only exports)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.record.lines import add_checksum, read_chunks
from fieldwatch.record.metric import Axis
from fieldwatch.record.row import Block
from fieldwatch.record.segments import SEGMENT_KEY, Segment, SegmentedFile, objects_in, segment_in

JOURNAL = "journal.jsonl"
FIRST_REPEAT_ROWS = 16
LONGEST_REPEAT_ROWS = 4096
"""A layout is declared again after so many of its rows; then after twice as many, up to the longest distance."""


@dataclass(kw_only=True)
class _WrittenLayout:
    """How the rows of one set of columns are written: the columns that fit float32 first, then the others.

    Attributes:
        number: what its rows begin with.
        float32_indices: indices of the columns whose values all fit float32.
        float64_indices: indices of the others.
        declaration: the line that declares it.
        repeat_rows: rows from its last declaration to the next one.
        rows_left: rows until the next one.
    """

    number: int
    float32_indices: NDArray[np.intp]
    float64_indices: NDArray[np.intp]
    declaration: bytes
    repeat_rows: int = FIRST_REPEAT_ROWS
    rows_left: int = 0


class Journal(SegmentedFile):
    """Writer of ``journal.jsonl`` in a run's folder.

    Three kinds of lines: ``{"layout": 3, "axis": "step", "names": [...], "float32": 24, "crc": ...}`` names the
    columns of the rows under that number; ``[3, step, seconds, position, samples, v..., crc]`` is a row;
    ``{"segment": 2, "resume": 400, "started": "...", "crc": ...}`` says that the run went on from step 400, so that
    all earlier rows with step >= 400 are void. A layout is declared before its first row and again from time to time,
    each segment has its own, which say ``"of_segment": [2, 400]``: what one damaged line takes along is small.
    ``crc`` is the line's checksum, see :mod:`fieldwatch.record.lines`. The first ``float32`` columns of a layout hold
    float32-exact values, written with the fewest digits that name them among float32 numbers (read them as such); the
    others are float64. A column that once needed float64 stays float64. Non-finite values are the strings ``"nan"``,
    ``"inf"`` and ``"-inf"``. Seconds are rounded to microseconds.

    Each block is one write to the system; nothing is held back in the process. Opening cuts a torn last line, and
    leaves damaged ones where they are.

    Args:
        folder: the run's folder; made if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        path = Path(folder) / JOURNAL
        marks = list(objects_in(path))
        super().__init__(path, marks)
        self._layouts: dict[tuple[str, tuple[str, ...]], _WrittenLayout] = {}
        numbers = [line["layout"] for line in marks if type(line.get("layout")) is int]
        # Rows of a layout whose declaration was lost must not be read by a new layout of the same number.
        # No file has more layouts than lines, so the line count is a safe bound.
        self._next_layout = max([_count_lines(path), *(1 + number for number in numbers)])  # not a lost one's number

    def segment(self, resume_step: int) -> None:
        """Mark that the run goes on from ``resume_step``; rows that follow get layouts of their own.

        Raises:
            ValueError: the step is negative.
        """
        super().segment(resume_step)
        self._layouts.clear()

    def append(self, block: Block) -> None:
        """Write a block's rows (a block without rows or columns writes nothing)."""
        if not len(block) or not block.columns:
            return
        # Values beyond float32 become infinite here, fail the comparison below, and stay float64.
        with np.errstate(over="ignore"):
            float32_values = block.values.astype(np.float32)
        finite = np.isfinite(block.values)
        # NaN differs from itself; non-finite values are written by name, and fit either way.
        fits_float32 = ((float32_values == block.values) | ~finite).all(axis=0)
        layout = self._layout_of(block, fits_float32)
        numbers = _value_texts(block.values, float32_values, layout)
        if not finite.all():
            order = np.concatenate((layout.float32_indices, layout.float64_indices))
            _name_non_finite(numbers, block.values[:, order], finite[:, order])
        heads = _heads(block, layout.number)
        bodies = map(b",".join, zip(heads, numbers, strict=True))
        rows = b"".join([b"%b,%d]\n" % (body, crc32(body)) for body in bodies])
        # One write for declaration and rows: a crash cannot leave rows without the declaration before them.
        self._file.append((b"" if layout.rows_left > 0 else layout.declaration) + rows, rows=len(block))
        self._count_rows(layout, len(block))
        self._layouts[block.axis, block.columns] = layout

    def _layout_of(self, block: Block, fits_float32: NDArray[np.bool_]) -> _WrittenLayout:
        """Return the layout of a block: a new one if its columns need one."""
        known = self._layouts.get((block.axis, block.columns))
        if known is not None:
            if fits_float32[known.float32_indices].all():
                return known
            # A column that once needed float64 keeps it, so that layouts do not alternate from block to block.
            fits_float32[known.float64_indices] = False
        float32_indices = np.flatnonzero(fits_float32)
        float64_indices = np.flatnonzero(~fits_float32)
        number = self._next_layout
        self._next_layout += 1
        names = [block.columns[i] for i in (*float32_indices, *float64_indices)]
        line = {
            "layout": number,
            "axis": block.axis,
            "names": names,
            "float32": len(float32_indices),
            **self.segment_fields,
        }
        return _WrittenLayout(
            number=number,
            float32_indices=float32_indices,
            float64_indices=float64_indices,
            declaration=add_checksum(orjson.dumps(line)),
        )

    @staticmethod
    def _count_rows(layout: _WrittenLayout, rows: int) -> None:
        """Count the rows until a layout is declared again."""
        if layout.rows_left <= 0:
            layout.rows_left = layout.repeat_rows
            layout.repeat_rows = min(2 * layout.repeat_rows, LONGEST_REPEAT_ROWS)
        layout.rows_left -= rows


def _count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    return max((first + text.count(b"\n") - 1 for first, text in read_chunks(path)), default=0)


def _heads(block: Block, number: int) -> list[bytes]:
    """Return what stands before the values of each row: layout, step, seconds, position, samples."""
    seconds = _number_texts(np.round(block.seconds, 6))
    heads = zip(_number_texts(block.steps), seconds, _number_texts(block.positions), strict=True)
    if not block.samples:
        return [b"[%d,%b,%b,%b,[]" % (number, *head) for head in heads]
    names = map(orjson.dumps, block.samples)
    return [b"[%d,%b,%b,%b,%b" % (number, *head, name) for head, name in zip(heads, names, strict=True)]


def _number_texts(array: NDArray[Any]) -> list[bytes]:
    """Return each number's text."""
    # orjson formats a whole array in one call, many times faster than Python formats its numbers.
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def _value_texts(
    values: NDArray[np.float64], float32_values: NDArray[np.float32], layout: _WrittenLayout
) -> list[bytes]:
    """Return each row's values as text, float32 columns first."""
    if not len(layout.float64_indices):
        return _row_texts(float32_values)
    if not len(layout.float32_indices):
        return _row_texts(values)
    pairs = zip(
        _row_texts(float32_values[:, layout.float32_indices]),
        _row_texts(values[:, layout.float64_indices]),
        strict=True,
    )
    return list(map(b",".join, pairs))


def _row_texts(array: NDArray[Any]) -> list[bytes]:
    """Return each row's numbers as text, with commas between; the numbers' brackets are where it is cut."""
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    # The text is ``[[a,b],[c,d]]``: each piece begins with ``[[`` or ``,[``, and the last two are empty.
    return [part[2:] for part in text.split(b"]")[:-2]]


def _name_non_finite(texts: list[bytes], values: NDArray[np.float64], finite: NDArray[np.bool_]) -> None:
    """Put the names of the non-finite values where JSON has none (orjson wrote null)."""
    for i in np.flatnonzero(~finite.all(axis=1)):
        parts = texts[i].split(b",")
        for j in np.flatnonzero(~finite[i]):
            parts[j] = b'"%a"' % float(values[i, j])
        texts[i] = b",".join(parts)


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """A declared layout as read back.

    Attributes:
        number: what the rows of this layout start with.
        axis: the axis of its rows.
        columns: the metric names, in the order of the values.
        float32_count: how many leading columns hold float32-exact values.
        segment_number: the segment that its rows belong to; 0 in files of versions that did not say so.
        resume: the step that this segment went on from.
    """

    number: int
    axis: Axis
    columns: tuple[str, ...]
    float32_count: int
    segment_number: int = 0
    resume: int = 0

    @property
    def has_checksums(self) -> bool:
        """Whether its rows end with a checksum."""
        return self.segment_number > 0

    @property
    def width(self) -> int:
        """Entries of a row: layout, step, seconds, position, samples, values, and the checksum where there is one."""
        return 5 + len(self.columns) + self.has_checksums


def layout_of(line: Mapping[str, Any], *, with_checksum: bool) -> RowLayout:
    """Return the layout that a line declares.

    Args:
        line: the parsed line, without its checksum.
        with_checksum: whether it had a good one, as its rows then have.

    Raises:
        KeyError: the line lacks one of layout, axis, names and float32.
        ValueError: the axis is unknown, an entry is of another type, or one is unknown.
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
    if type(number) is not int or type(float32_count) is not int or float32_count < 0:
        raise ValueError(f"layout {number!r} and float32 {float32_count!r}: wanted whole numbers, 0 or more")
    if not _are_texts(names) or float32_count > len(names):
        raise ValueError(f"names {str(names)[:80]}: expected a list of texts, {float32_count} or more")
    # A checksum without a segment means the first segment; a line without one is of a version that did not say.
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
    return isinstance(names, list) and all(type(name) is str for name in cast("list[Any]", names))
