"""The journal: every row of a run, appended to one file of JSON lines (the store; sinks are only exports)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.record.lines import read_lines
from fieldwatch.record.metric import Axis
from fieldwatch.record.row import Block
from fieldwatch.record.segments import SegmentedFile

JOURNAL = "journal.jsonl"


@dataclass(frozen=True, kw_only=True)
class _Order:
    """How the rows of one set of columns are written: the columns that fit float32 first, then the others."""

    number: int
    single: NDArray[np.intp]
    double: NDArray[np.intp]


class Journal(SegmentedFile):
    """Writer of ``journal.jsonl`` in a run's folder.

    Three kinds of lines: ``{"layout": 3, "axis": "step", "names": [...], "float32": 24}`` names the columns
    of the rows that follow it under that number; ``[3, step, seconds, position, samples, v...]`` is a row;
    ``{"segment": 2, "resume": 400, "started": "..."}`` says that the run went on from step 400, so that all
    earlier rows with step >= 400 are void. The first ``float32`` columns of a layout hold float32-exact values,
    written with the fewest digits that name them among float32 numbers (read them as such); the others are
    float64. A column that once needed float64 stays float64. Non-finite values are the strings ``"nan"``,
    ``"inf"`` and ``"-inf"``. Seconds are rounded to microseconds.

    Each block is one write to the system; nothing is held back in the process. Opening cuts a torn last line.

    Args:
        folder: the run's folder; made if missing.
    """

    def __init__(self, folder: Path | str) -> None:
        path = Path(folder) / JOURNAL
        marks = [line for _, line in read_lines(path, prefix=b"{")]
        super().__init__(path, marks)
        self._layouts: dict[tuple[str, tuple[str, ...]], _Order] = {}
        self._next_layout = 1 + max((line["layout"] for line in marks if "layout" in line), default=-1)

    def append(self, block: Block) -> None:
        """Write a block's rows (a block without rows or columns writes nothing)."""
        if not len(block) or not block.columns:
            return
        with np.errstate(over="ignore"):
            single = block.values.astype(np.float32)
        finite = np.isfinite(block.values)
        exact = ((single == block.values) | ~finite).all(axis=0)
        layout, declaration = self._layout_of(block, exact)
        numbers = _numbers(block.values, single, layout)
        if not finite.all():
            order = np.concatenate((layout.single, layout.double))
            _name_non_finite(numbers, block.values[:, order], finite[:, order])
        heads = _heads(block, layout.number)
        body = b"]\n".join(map(b",".join, zip(heads, numbers, strict=True)))
        self._file.append(declaration + body + b"]\n")
        self._layouts[block.axis, block.columns] = layout

    def _layout_of(self, block: Block, exact: NDArray[np.bool_]) -> tuple[_Order, bytes]:
        """Return the layout of a block, and the line that declares it if it is new."""
        known = self._layouts.get((block.axis, block.columns))
        if known is not None:
            if exact[known.single].all():
                return known, b""
            exact[known.double] = False
        single, double = np.flatnonzero(exact), np.flatnonzero(~exact)
        layout = _Order(number=self._next_layout, single=single, double=double)
        self._next_layout += 1
        names = [block.columns[i] for i in (*single, *double)]
        line = {"layout": layout.number, "axis": block.axis, "names": names, "float32": len(single)}
        return layout, orjson.dumps(line) + b"\n"


def _heads(block: Block, number: int) -> list[bytes]:
    """Return what stands before the values of each row: layout, step, seconds, position, samples."""
    seconds = _list(np.round(block.seconds, 6))
    heads = zip(_list(block.steps), seconds, _list(block.positions), strict=True)
    if not block.samples:
        return [b"[%d,%b,%b,%b,[]" % (number, *head) for head in heads]
    names = map(orjson.dumps, block.samples)
    return [b"[%d,%b,%b,%b,%b" % (number, *head, name) for head, name in zip(heads, names, strict=True)]


def _list(array: NDArray[Any]) -> list[bytes]:
    """Return each number's text."""
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def _numbers(values: NDArray[np.float64], single: NDArray[np.float32], layout: _Order) -> list[bytes]:
    """Return each row's values as text, float32 columns first."""
    if not len(layout.double):
        return _texts(single)
    if not len(layout.single):
        return _texts(values)
    pairs = zip(_texts(single[:, layout.single]), _texts(values[:, layout.double]), strict=True)
    return list(map(b",".join, pairs))


def _texts(array: NDArray[Any]) -> list[bytes]:
    """Return each row's numbers as text, with commas between; the numbers' brackets are where it is cut."""
    text = orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)
    return [part[2:] for part in text.split(b"]")[:-2]]


def _name_non_finite(texts: list[bytes], values: NDArray[np.float64], finite: NDArray[np.bool_]) -> None:
    """Put the names of the non-finite values where JSON has none (orjson wrote null)."""
    for i in np.flatnonzero(~finite.all(axis=1)):
        parts = texts[i].split(b",")
        for j in np.flatnonzero(~finite[i]):
            parts[j] = b'"%a"' % float(values[i, j])
        texts[i] = b",".join(parts)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A declared layout as read back.

    Attributes:
        number: what the rows of this layout start with.
        axis: the axis of its rows.
        columns: the metric names, in the order of the values.
        single: how many leading columns hold float32-exact values.
    """

    number: int
    axis: Axis
    columns: tuple[str, ...]
    single: int

    @property
    def width(self) -> int:
        """Entries of a row: layout, step, seconds, position, samples, values."""
        return 5 + len(self.columns)


def layout_of(line: Mapping[str, Any]) -> Layout:
    """Return the layout that a line declares.

    Raises:
        KeyError: the line lacks one of layout, axis, names and float32.
        ValueError: the axis is unknown, or an entry is of another type.
    """
    number, axis, names, single = line["layout"], line["axis"], line["names"], line["float32"]
    if axis not in ("step", "epoch"):
        raise ValueError(f"axis {axis!r} is neither 'step' nor 'epoch'")
    if type(number) is not int or type(single) is not int or single < 0:
        raise ValueError(f"layout {number!r} and float32 {single!r}: wanted whole numbers, 0 or more")
    if not _are_texts(names):
        raise ValueError(f"names {str(names)[:80]}: wanted a list of texts")
    return Layout(number=number, axis=axis, columns=tuple(names), single=single)


def _are_texts(names: Any) -> bool:
    return isinstance(names, list) and all(type(name) is str for name in cast("list[Any]", names))
