"""PLY files: elements as numpy tables; ASCII and binary of either byte order, with lists.

A row with lists is a row of a table, too: a list ``vertex_indices`` is two columns, its length in
``vertex_indices count`` and its entries in ``vertex_indices``, an array of that length. All rows of one table have
lists of the same length, so an element with lists may need several tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from typing import Any, Final, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fieldwatch import InputError

Table = NDArray[Any]
"""A structured array: one field per column."""
Column = tuple[str, str] | tuple[str, str, tuple[int, ...]]

_TYPES: Final = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8", "int64": "i8", "uint64": "u8",
}  # fmt: skip
_NAMES: Final = {
    "i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint", "f4": "float",
    "f8": "double",
}  # fmt: skip
_ORDERS: Final = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
_LONGEST_HEADER: Final = 1 << 16
_LONGEST_LIST: Final = 1 << 20
_COUNT: Final = " count"  # no name in a header contains a space, so that no property has this column's name


class PlyError(InputError):
    """A PLY file cannot be read or written; the message says what came, what was wanted and what to do."""


@dataclass(frozen=True, kw_only=True)
class PlyProperty:
    """One property of an element.

    Attributes:
        name: its name.
        kind: numpy's code of its type, such as ``f4``, without the byte order.
        counted: of a list, the code of the type of its length; empty otherwise.
    """

    name: str
    kind: str
    counted: str = ""


@dataclass(frozen=True, kw_only=True)
class PlyElement:
    """One element, as the header describes it.

    Attributes:
        name: its name, such as ``vertex``.
        count: how many rows it has.
        properties: its properties, in order.
    """

    name: str
    count: int
    properties: tuple[PlyProperty, ...]

    @property
    def lists(self) -> tuple[str, ...]:
        """The names of its lists."""
        return tuple(item.name for item in self.properties if item.counted)


@final
class PlyReader:
    """Reads the elements of a PLY file in their order.

    Args:
        file: the file, at its start, opened in binary mode; it has to be seekable.

    Attributes:
        elements: what the header describes.
        ascii: whether it is an ASCII file.

    Raises:
        PlyError: the file is not PLY, or its header is damaged.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        order, self.elements, size = _read_header(file)
        self.ascii = order == "ascii"
        self._body = _body_of(file, order, size)

    def read(self, element: PlyElement) -> list[Table]:
        """Return the rows of the next element, in order, as tables of rows with lists of the same length.

        An element without lists is one table.

        Raises:
            PlyError: the file is cut short or damaged.
        """
        if not element.properties:
            if element.count:
                raise PlyError(
                    f"its header promises {element.count} of {element.name} with no property: write the file again"
                )
            return [np.empty(0, np.dtype([]))]
        if not element.lists:
            columns: list[Column] = [(item.name, item.kind) for item in element.properties]
            return [self._body.take(columns, element.count)]
        tables = list[Table]()
        left = element.count
        while left:
            columns = _next_columns(self._body, element)
            table = self._body.take(columns, _alike_rows(self._body, columns, element, left))
            tables.append(table)
            left -= len(table)
        return tables

    def left(self) -> int:
        """Return how many bytes, or numbers of an ASCII file, follow what was read."""
        return self._body.left()


def write_ply(file: BufferedIOBase, elements: Mapping[str, Table]) -> None:
    """Write a PLY file, binary little endian.

    Args:
        file: where to, opened in binary mode.
        elements: a table for each element, in order; of lists see the module. Columns are little endian.

    Raises:
        PlyError: a column has a type that PLY lacks.
    """
    lines = ["ply", "format binary_little_endian 1.0"]
    for name, table in elements.items():
        lines.append(f"element {name} {len(table)}")
        lines += _property_lines(table.dtype)
    file.write("\n".join([*lines, "end_header", ""]).encode("ascii"))
    for table in elements.values():
        file.write(_as_bytes(np.ascontiguousarray(table)).data)


def _property_lines(dtype: np.dtype[Any]) -> list[str]:
    lines = list[str]()
    counted = ""
    for name in dtype.names or ():
        kind = dtype[name]
        code = kind.base.str.lstrip("<|=")
        if code not in _NAMES:
            raise PlyError(
                f"column {name} has the type {kind.base}: expected one of {', '.join(_NAMES)}, little endian"
            )
        if name.endswith(_COUNT):
            counted = _NAMES[code]
        elif kind.subdtype is not None:
            lines.append(f"property list {counted} {_NAMES[code]} {name}")
        else:
            lines.append(f"property {_NAMES[code]} {name}")
    return lines


def _as_bytes(table: Table) -> NDArray[np.uint8]:
    """View a contiguous table as its bytes."""
    return table.reshape(-1).view(np.uint8) if table.size else np.empty(0, np.uint8)


def _read_header(file: BufferedIOBase) -> tuple[str, tuple[PlyElement, ...], int]:
    """Return the order of the body, the elements, and where the body begins."""
    start = file.read(_LONGEST_HEADER)
    end = start.find(b"end_header")
    if not start.startswith(b"ply") or end < 0:
        raise PlyError(f"it is no PLY file (it begins with {start[:12]!r}): give a .ply file")
    order = ""
    elements = list[tuple[str, int, list[PlyProperty]]]()
    for line in start[:end].decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if not words or words[0] in {"comment", "obj_info"}:
            continue
        if words[0] == "format" and len(words) > 1 and words[1] in _ORDERS:
            order = words[1]
        elif words[0] == "element" and len(words) == 3 and words[2].isdecimal() and len(words[2]) < 19:
            elements.append((words[1], int(words[2]), []))
        elif words[0] == "property" and elements and (described := _property(words)):
            name, _, known = elements[-1]
            if any(item.name == described.name for item in known):
                raise PlyError(
                    f"its header names a property of {name} twice ({described.name}), which is not PLY: write it again"
                )
            known.append(described)
        else:
            raise PlyError(f"its header has the line {line!r}, which is not PLY: it is damaged, write or copy it again")
    if not order:
        raise PlyError("its header does not say whether it is ascii or binary: it lacks a format line; write it again")
    line_end = start.find(b"\n", end)
    size = line_end + 1 if line_end >= 0 else len(start)
    described_elements = tuple(
        PlyElement(name=name, count=count, properties=tuple(known)) for name, count, known in elements
    )
    return order, described_elements, size


def _property(words: Sequence[str]) -> PlyProperty | None:
    """Return what a line of a header describes; None if that is no property."""
    if len(words) == 3 and words[1] in _TYPES:
        return PlyProperty(name=words[2], kind=_TYPES[words[1]])
    if len(words) == 5 and words[1] == "list" and words[3] in _TYPES:
        counted = _TYPES.get(words[2], "f")
        return None if counted.startswith("f") else PlyProperty(name=words[4], kind=_TYPES[words[3]], counted=counted)
    return None


@runtime_checkable
class _Body(Protocol):
    """What follows the header, read from front to back."""

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        """Return the next rows without moving on.

        Raises:
            PlyError: there are fewer.
        """
        ...

    def take(self, columns: Sequence[Column], count: int) -> Table:
        """Return the next rows and move on behind them."""
        ...

    def left(self) -> int:
        """Return how many bytes or numbers follow."""
        ...


def _body_of(file: BufferedIOBase, order: str, start: int) -> _Body:
    if order != "ascii":
        return _Bytes(file, _ORDERS[order], start)
    file.seek(start)
    try:
        return _Words(np.array(file.read().split(), np.float64))
    except ValueError as error:
        raise PlyError(
            f"it says ascii, but holds something else than numbers ({error}): write or copy it again"
        ) from error


@final
class _Bytes:
    """A binary body; only what is asked for is read."""

    def __init__(self, file: BufferedIOBase, order: str, start: int) -> None:
        self._file = file
        self._order = order
        self._place = start
        self._end = file.seek(0, 2)

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        kind = np.dtype([(name, self._order + code, *size) for name, code, *size in columns])
        if self.left() < kind.itemsize * count:
            raise PlyError(
                f"{count} rows of {kind.itemsize} bytes are due, {self.left()} bytes are left: "
                "it is cut short, copy it again"
            )
        table = np.empty(count, kind)
        self._file.seek(self._place)
        if self._file.readinto(_as_bytes(table).data) < table.nbytes:
            raise PlyError("it became shorter while it was read: copy it again")
        return table

    def take(self, columns: Sequence[Column], count: int) -> Table:
        table = self.peek(columns, count)
        self._place += table.nbytes
        return table

    def left(self) -> int:
        return max(self._end - self._place, 0)


@final
class _Words:
    """An ASCII body: numbers, however they are spread over lines."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self._numbers = numbers
        self._place = 0

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        widths = [_width(column) for column in columns]
        row = sum(widths)
        if self.left() < row * count:
            raise PlyError(
                f"{count} rows of {row} numbers are due, {self.left()} numbers are left: it is cut short, copy it again"
            )
        block = self._numbers[self._place : self._place + row * count].reshape(count, row)
        table = np.empty(count, np.dtype([(name, code, *size) for name, code, *size in columns]))
        start = 0
        for (name, code, *_), width in zip(columns, widths, strict=True):
            values = block[:, start : start + width]
            _check_whole(name, code, values)
            table[name] = values.reshape(table[name].shape)
            start += width
        return table

    def take(self, columns: Sequence[Column], count: int) -> Table:
        table = self.peek(columns, count)
        self._place += count * sum(_width(column) for column in columns)
        return table

    def left(self) -> int:
        return len(self._numbers) - self._place


def _width(column: Column) -> int:
    """Return how many numbers a column has in each row."""
    _, _, *size = column
    return int(np.prod(size[0])) if size else 1


def _check_whole(name: str, code: str, values: NDArray[np.float64]) -> None:
    if code.startswith("f"):
        return
    limits = np.iinfo(code)
    good = np.isfinite(values) & (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
    if not good.all():
        raise PlyError(
            f"{name} holds {float(values[~good][0]):g}, not {limits.dtype} as its header promises: copy it again"
        )


def _next_columns(body: _Body, element: PlyElement) -> list[Column]:
    """Return the columns of the next row, its lists as long as they are there."""
    columns = list[Column]()
    for item in element.properties:
        if not item.counted:
            columns.append((item.name, item.kind))
            continue
        count_name = f"{item.name}{_COUNT}"
        columns.append((count_name, item.counted))
        length = int(body.peek(columns, 1)[count_name][0])
        if not 0 <= length <= _LONGEST_LIST:
            raise PlyError(
                f"{item.name} of a {element.name} has {length} entries: it is damaged, write or copy it again"
            )
        columns.append((item.name, item.kind, (length,)))
    return columns


def _alike_rows(body: _Body, columns: Sequence[Column], element: PlyElement, left: int) -> int:
    """Return how many of the next rows have lists as long as those of the first, found in growing strides."""
    body.peek(columns, 1)  # the first row is there, whole
    alike = 1
    tried = 1
    counts = [f"{name}{_COUNT}" for name in element.lists]
    while alike == tried < left:
        tried = min(4 * tried, left)
        try:
            table = body.peek(columns, tried)
        except PlyError:  # later rows are shorter, or missing: row by row, the next look says which
            return alike
        same = np.logical_and.reduce([table[name] == table[name][0] for name in counts])
        alike = tried if same.all() else int(same.argmin())
    return alike
