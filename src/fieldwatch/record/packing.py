"""Packed rows: a block of a fast loop as one line of the journal, at a third of the bytes of its rows as text.

The line ``{"packed":3,"rows":64,"step":128,"data":"...","crc":...}`` holds 64 rows of layout 3, the first of which
belongs to step 128. ``data`` is the base64 text of a raw deflate stream with these arrays one after the other, all
little-endian:

1. ``rows`` int64: microseconds of training time, as differences from the row before (the first one from 0);
2. ``rows`` int64: differences of the steps from that of the row before, minus 1 (the first one from step - 1);
3. ``rows`` int64: positions minus steps;
4. the float32 values, column by column; then the float64 values, column by column;
5. the names of the samples as a JSON list of lists, or nothing if no row names any.

Each array is stored by significance: first the lowest byte of every number, then the next one. Bytes that hardly vary,
such as exponents and signs, are then neighbors, and take hardly any space.
"""

import binascii
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.record.row import Block

PACKED = b'{"packed"'
"""First bytes of every packed line."""
LEAST_ROWS = 32
"""Least number of rows that are packed. A loop with fewer rows per second writes text, which any tool can read."""
MOST_ROWS = 512
"""Largest number of rows in a line: all of them are lost if it is damaged, and readers return them as one block."""
_MOST_SAMPLE_BYTES = 1 << 26
_LONGEST_SECONDS = 2.0**32
_MICROSECONDS = 1e6
_RAW = -zlib.MAX_WBITS
_INT64 = 2**63


class PackedRows(NamedTuple):
    """The contents of a packed line.

    Attributes:
        first: step of the first row.
        rows: number of rows.
        numbers: bytes of all arrays.
        samples: names of the samples of each row; empty if no row names any.
    """

    first: int
    rows: int
    numbers: bytes
    samples: tuple[tuple[str, ...], ...]


def fits(block: Block) -> bool:
    """Whether a block can be packed: it has enough rows, and its times are exact in whole microseconds."""
    if len(block) < LEAST_ROWS:
        return False
    seconds = block.seconds
    return bool(seconds.min() >= -_LONGEST_SECONDS and seconds.max() <= _LONGEST_SECONDS)  # false for NaN


def pack(block: Block, number: int, singles: NDArray[np.float32], doubles: NDArray[np.float64]) -> bytes:
    """Return the line of a block, without its checksum and newline.

    Args:
        block: rows that :func:`fits`.
        number: number of their layout.
        singles: ``[rows, columns]`` values of the layout's float32 columns.
        doubles: ``[rows, columns]`` values of its float64 columns.
    """
    steps = block.steps
    first = int(steps[0])
    integers = np.empty((3, len(block)), np.int64)
    integers[0] = np.rint(block.seconds * _MICROSECONDS)
    integers[0, 1:] -= integers[0, :-1].copy()
    integers[1, 0] = 0
    integers[1, 1:] = steps[1:] - steps[:-1] - 1
    integers[2] = block.positions - steps
    parts = [_planes(row) for row in integers]
    parts += [_planes(np.ascontiguousarray(values.T)) for values in (singles, doubles)]
    if block.samples:
        parts.append(orjson.dumps(block.samples))
    # Runs of equal bytes and the frequencies of bytes are all that can be saved: longer matches only take time.
    stream = zlib.compressobj(1, zlib.DEFLATED, _RAW, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    data = stream.compress(b"".join(parts)) + stream.flush()
    text = binascii.b2a_base64(data, newline=False)
    return b'{"packed":%d,"rows":%d,"step":%d,"data":"%b"}' % (number, len(block), first, text)


def layout_number(line: Mapping[str, Any]) -> int:
    """Return the layout number of a packed line; -1 if it is none."""
    number = line.get("packed")
    return number if type(number) is int else -1


def unpack(line: Mapping[str, Any], singles: int, doubles: int) -> PackedRows | None:
    """Return the contents of a packed line, or None if it does not hold rows of this layout.

    Args:
        line: parsed line, without its checksum.
        singles: number of float32 columns of the layout.
        doubles: number of its float64 columns.
    """
    rows = line.get("rows")
    first = line.get("step")
    text = line.get("data")
    if set(line) != {"packed", "rows", "step", "data"} or type(text) is not str:
        return None
    if type(rows) is not int or type(first) is not int or not 1 <= rows <= MOST_ROWS or not -_INT64 <= first < _INT64:
        return None
    size = rows * (3 * 8 + 4 * singles + 8 * doubles)
    stream = zlib.decompressobj(_RAW)
    try:
        data = stream.decompress(binascii.a2b_base64(text), size + _MOST_SAMPLE_BYTES)
    except (zlib.error, ValueError):
        return None
    samples = _samples(data[size:], rows)
    if not stream.eof or len(data) < size or samples is None:
        return None
    return PackedRows(first, rows, data[:size] if len(data) > size else data, samples)


def numbers_of(
    lines: Sequence[PackedRows], singles: int, doubles: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of consecutive lines with the same number of rows.

    All lines are converted at once: each operation on the numbers of a single line takes as long as the work itself.

    Args:
        lines: contents of the lines; at least one.
        singles: number of float32 columns of their layout.
        doubles: number of its float64 columns.

    Returns:
        ``[3, lines * rows]`` microseconds, steps and positions, and ``[lines * rows, columns]`` values.
    """
    count = len(lines)
    rows = lines[0].rows
    planes = np.frombuffer(b"".join([line.numbers for line in lines]), np.uint8).reshape(count, -1)
    middle = 24 * rows
    end = middle + 4 * singles * rows
    # ``[3, lines, rows]``, from the three arrays of each line.
    integers = _numbers(planes[:, :middle].reshape(3 * count, 8 * rows), np.int64)
    integers = np.ascontiguousarray(integers.reshape(count, 3, rows).transpose(1, 0, 2))
    integers[1] += 1
    np.cumsum(integers[:2], axis=2, out=integers[:2])
    integers[1] += np.array([line.first for line in lines], np.int64)[:, None] - 1
    integers[2] += integers[1]
    values = np.empty((count, rows, singles + doubles))
    if singles:
        columns = _numbers(planes[:, middle:end], np.float32).reshape(count, singles, rows)
        values[:, :, :singles] = columns.transpose(0, 2, 1)
    if doubles:
        columns = _numbers(planes[:, end:], np.float64).reshape(count, doubles, rows)
        values[:, :, singles:] = columns.transpose(0, 2, 1)
    return integers.reshape(3, count * rows), values.reshape(count * rows, singles + doubles)


def seconds_of(microseconds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return whole microseconds as seconds."""
    return microseconds / _MICROSECONDS


def _planes(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array by significance, the lowest byte of every number first."""
    return array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T.tobytes()


def _numbers(planes: NDArray[np.uint8], kind: type[np.generic]) -> NDArray[Any]:
    """Return the numbers of arrays that :func:`_planes` has stored, one array in each row."""
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(planes.reshape(len(planes), size, -1).transpose(0, 2, 1)).view(kind)[:, :, 0]


def _samples(text: bytes, rows: int) -> tuple[tuple[str, ...], ...] | None:
    """Return the names of samples, empty if there are none; None if the text does not hold a list per row."""
    if not text:
        return ()
    try:
        names: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(names, list) or len(cast("list[Any]", names)) != rows:
        return None
    found: list[tuple[str, ...]] = []
    for row in cast("list[Any]", names):
        if not isinstance(row, list) or not all(type(name) is str for name in cast("list[Any]", row)):
            return None
        found.append(tuple(cast("list[str]", row)))
    return tuple(found)
