"""Rows of the journal as text, one line each: ``[3, step, seconds, position, samples, v..., crc]``."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from fieldwatch.record.row import Block


class TextRows(NamedTuple):
    """Rows of one layout.

    Attributes:
        block: the rows; at least one.
        number: number of their layout.
        singles: ``[rows, columns]`` values of the layout's float32 columns.
        doubles: ``[rows, columns]`` values of its float64 columns.
    """

    block: Block
    number: int
    singles: NDArray[np.float32]
    doubles: NDArray[np.float64]


def row_lines(parts: Sequence[TextRows]) -> Iterator[bytes]:
    """Yield the lines of each part.

    All numbers are formatted at once, since a step with other metrics than the one before is a part of its own.
    """
    if not parts:
        return
    # orjson formats a whole array in one call, many times faster than formatting the numbers in Python.
    steps = _texts([part.block.steps for part in parts])
    # Microseconds are precise enough and shorten every row.
    seconds = _texts([np.round(part.block.seconds, 6) for part in parts])
    positions = _texts([part.block.positions for part in parts])
    singles = _value_texts([part.singles for part in parts])
    doubles = _value_texts([part.doubles for part in parts])
    row = single = double = 0
    for part in parts:
        width = part.singles.shape[1]
        double_width = part.doubles.shape[1]
        lines: list[bytes] = []
        for samples in part.block.samples or ((),) * len(part.block):
            body = b"[%d,%b,%b,%b,%b,%b" % (
                part.number,
                steps[row],
                seconds[row],
                positions[row],
                orjson.dumps(samples) if samples else b"[]",
                b",".join(singles[single : single + width] + doubles[double : double + double_width]),
            )
            lines.append(b"%b,%d]\n" % (body, crc32(body)))
            row += 1
            single += width
            double += double_width
        yield b"".join(lines)


def _texts(arrays: Sequence[NDArray[Any]]) -> list[bytes]:
    """Format each number of all arrays."""
    numbers = np.concatenate(arrays, axis=None)
    if not len(numbers):
        return []
    return orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")


def _value_texts(arrays: Sequence[NDArray[Any]]) -> list[bytes]:
    """Format each value of all arrays, row by row; non-finite values by name."""
    texts = _texts(arrays)
    values = np.concatenate(arrays, axis=None)
    # orjson writes them as null.
    for index in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[index] = b'"%a"' % float(values[index])
    return texts
