"""Read and write PLY files, ASCII or binary of either byte order, as numpy structured arrays.

A list property becomes two columns: ``vertex_indices`` has its length in ``vertex_indices count`` and its entries in
``vertex_indices``, an array of that length. All rows of one table have lists of the same length, so an element with
lists of different lengths is returned as several tables.
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
# 64-bit integers are read, but not written: they are not part of the original format.
_NAMES: Final = {
    "i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint", "f4": "float",
    "f8": "double",
}  # fmt: skip
_ORDERS: Final = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
# Bytes and entries; real files stay far below, damaged ones would otherwise allocate without bound.
_LONGEST_HEADER: Final = 1 << 16
_LONGEST_LIST: Final = 1 << 20
_COUNT: Final = " count"  # names in a header cannot contain a space, so no property has this column's name


class PlyError(InputError):
    """Raised when a PLY file cannot be read or written. The message states the problem and how to fix it."""


@dataclass(frozen=True, kw_only=True)
class PlyProperty:
    """One property of an element.

    Attributes:
        name: property name, such as ``x``.
        kind: numpy type code of the values, such as ``f4``, without the byte order.
        count_kind: numpy type code of the length of a list; empty for a scalar property.
    """

    name: str
    kind: str
    count_kind: str = ""


@dataclass(frozen=True, kw_only=True)
class PlyElement:
    """One element of a PLY file, as described by the header.

    Attributes:
        name: element name, such as ``vertex``.
        count: number of rows.
        properties: properties in file order.
    """

    name: str
    count: int
    properties: tuple[PlyProperty, ...]

    @property
    def lists(self) -> tuple[str, ...]:
        """Names of the list properties."""
        return tuple(item.name for item in self.properties if item.count_kind)


@final
class PlyReader:
    """Reads the elements of a PLY file one after another.

    Args:
        file: seekable binary file, positioned at its start.

    Attributes:
        elements: elements described by the header, in file order.
        ascii: whether the body is ASCII.

    Raises:
        PlyError: if the file is not PLY or its header is damaged.
    """

    def __init__(self, file: BufferedIOBase) -> None:
        order, self.elements, size = _read_header(file)
        self.ascii = order == "ascii"
        self._body = _body_of(file, order, size)

    def read(self, element: PlyElement) -> list[Table]:
        """Read the rows of an element, in file order, as tables whose rows have lists of equal length.

        Elements must be read in the order of `elements`. An element without lists is a single table.

        Raises:
            PlyError: if the file is truncated or damaged.
        """
        if not element.properties:
            if element.count:
                raise PlyError(
                    f"the header declares {element.count} rows of element {element.name} but no property: write the "
                    "file again"
                )
            return [np.empty(0, np.dtype([]))]
        if not element.lists:
            # Without lists all rows have the same size, so a single read suffices.
            columns: list[Column] = [(item.name, item.kind) for item in element.properties]
            return [self._body.take(columns, element.count)]
        tables = list[Table]()
        remaining = element.count
        while remaining:
            columns = _next_columns(self._body, element)
            table = self._body.take(columns, _uniform_row_count(self._body, columns, element, remaining))
            tables.append(table)
            remaining -= len(table)
        return tables

    def remaining(self) -> int:
        """Return the number of bytes (binary) or numbers (ASCII) that have not been read yet."""
        return self._body.remaining()


def write_ply(file: BufferedIOBase, elements: Mapping[str, Table]) -> None:
    """Write a binary little-endian PLY file.

    Args:
        file: destination, opened in binary mode.
        elements: table of each element, in file order, with little-endian columns. Lists are two columns each, as
            described in the module docstring.

    Raises:
        PlyError: if PLY has no type for a column.
    """
    lines = ["ply", "format binary_little_endian 1.0"]
    for name, table in elements.items():
        lines.append(f"element {name} {len(table)}")
        lines += _property_lines(table.dtype)
    file.write("\n".join([*lines, "end_header", ""]).encode("ascii"))
    for table in elements.values():
        file.write(_bytes_of(np.ascontiguousarray(table)).data)


def _property_lines(dtype: np.dtype[Any]) -> list[str]:
    lines = list[str]()
    count_type = ""
    for name in dtype.names or ():
        column_type = dtype[name]
        type_code = column_type.base.str.lstrip("<|=")
        if type_code not in _NAMES:
            raise PlyError(
                f"column {name} has type {column_type.base}: expected one of {', '.join(_NAMES)}, little endian"
            )
        if name.endswith(_COUNT):
            count_type = _NAMES[type_code]
        elif column_type.subdtype is not None:
            lines.append(f"property list {count_type} {_NAMES[type_code]} {name}")
        else:
            lines.append(f"property {_NAMES[type_code]} {name}")
    return lines


def _bytes_of(table: Table) -> NDArray[np.uint8]:
    """Return a view of a contiguous table as bytes."""
    return table.reshape(-1).view(np.uint8) if table.size else np.empty(0, np.uint8)


def _read_header(file: BufferedIOBase) -> tuple[str, tuple[PlyElement, ...], int]:
    """Return the format of the body, the elements, and the offset of the body in bytes."""
    # A header has no stated length: one bounded read keeps a large foreign file out of memory.
    start = file.read(_LONGEST_HEADER)
    end = start.find(b"end_header")
    if not start.startswith(b"ply") or end < 0:
        raise PlyError(f"not a PLY file (it begins with {start[:12]!r}): pass a .ply file")
    order = ""
    elements = list[tuple[str, int, list[PlyProperty]]]()
    for line in start[:end].decode("ascii", "replace").splitlines()[1:]:
        tokens = line.split()
        if not tokens or tokens[0] in {"comment", "obj_info"}:
            continue
        # Unknown formats fall through to the error below.
        if tokens[0] == "format" and len(tokens) > 1 and tokens[1] in _ORDERS:
            order = tokens[1]
        # Fewer than 19 digits: the count fits a signed 64-bit integer.
        elif tokens[0] == "element" and len(tokens) == 3 and tokens[2].isdecimal() and len(tokens[2]) < 19:
            elements.append((tokens[1], int(tokens[2]), []))
        elif tokens[0] == "property" and elements and (parsed := _property(tokens)):
            name, _, properties = elements[-1]
            if any(item.name == parsed.name for item in properties):
                raise PlyError(
                    f"the header declares property {parsed.name} of element {name} twice: write the file again"
                )
            properties.append(parsed)
        else:
            raise PlyError(f"invalid header line {line!r}: the file is damaged, write or copy it again")
    if not order:
        raise PlyError("the header has no format line (ascii or binary): write the file again")
    # The body begins right after the line break of end_header, which may be "\r\n".
    line_end = start.find(b"\n", end)
    size = line_end + 1 if line_end >= 0 else len(start)
    parsed_elements = tuple(
        PlyElement(name=name, count=count, properties=tuple(properties)) for name, count, properties in elements
    )
    return order, parsed_elements, size


def _property(tokens: Sequence[str]) -> PlyProperty | None:
    """Parse a property line of the header; return None if it is invalid."""
    if len(tokens) == 3 and tokens[1] in _TYPES:
        return PlyProperty(name=tokens[2], kind=_TYPES[tokens[1]])
    if len(tokens) == 5 and tokens[1] == "list" and tokens[3] in _TYPES:
        # An unknown or floating-point length type falls through to "f" and is refused below.
        count_kind = _TYPES.get(tokens[2], "f")
        return (
            None
            if count_kind.startswith("f")
            else PlyProperty(name=tokens[4], kind=_TYPES[tokens[3]], count_kind=count_kind)
        )
    return None


@runtime_checkable
class _Body(Protocol):
    """The data after the header, read sequentially."""

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        """Return the next rows without advancing.

        Raises:
            PlyError: if fewer rows are left.
        """
        ...

    def take(self, columns: Sequence[Column], count: int) -> Table:
        """Return the next rows and advance past them."""
        ...

    def remaining(self) -> int:
        """Return the number of unread bytes or numbers."""
        ...


def _body_of(file: BufferedIOBase, order: str, start: int) -> _Body:
    # An ASCII body is parsed at once, since its rows have no fixed size to seek by.
    if order != "ascii":
        return _BinaryBody(file, _ORDERS[order], start)
    file.seek(start)
    # float64 represents all integers up to 2^53 exactly, so one parser suffices for all types.
    try:
        return _AsciiBody(np.array(file.read().split(), np.float64))
    except ValueError as error:
        raise PlyError(
            f"the header declares ascii, but the body holds something other than numbers ({error}): write or copy the "
            "file again"
        ) from error


@final
class _BinaryBody:
    """Binary body. Only the requested rows are read from the file."""

    def __init__(self, file: BufferedIOBase, order: str, start: int) -> None:
        self._file = file
        self._order = order
        self._offset = start
        # The file's size bounds every read, so that a huge count in the header allocates nothing.
        self._end = file.seek(0, 2)

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        kind = np.dtype([(name, self._order + code, *size) for name, code, *size in columns])
        if self.remaining() < kind.itemsize * count:
            raise PlyError(
                f"expected {count} more rows of {kind.itemsize} bytes, got {self.remaining()} bytes: the file is cut "
                "short, copy it again"
            )
        table = np.empty(count, kind)
        self._file.seek(self._offset)
        # readinto fills the table in place: no second copy of a large file.
        if self._file.readinto(_bytes_of(table).data) < table.nbytes:
            raise PlyError("the file became shorter while it was read: copy it again")
        return table

    def take(self, columns: Sequence[Column], count: int) -> Table:
        table = self.peek(columns, count)
        self._offset += table.nbytes
        return table

    def remaining(self) -> int:
        return max(self._end - self._offset, 0)


@final
class _AsciiBody:
    """ASCII body: a sequence of numbers, regardless of line breaks."""

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self._numbers = numbers
        self._offset = 0

    def peek(self, columns: Sequence[Column], count: int) -> Table:
        widths = [_width(column) for column in columns]
        row = sum(widths)
        if self.remaining() < row * count:
            raise PlyError(
                f"expected {count} more rows of {row} numbers, got {self.remaining()} numbers: the file is cut short, "
                "copy it again"
            )
        block = self._numbers[self._offset : self._offset + row * count].reshape(count, row)
        table = np.empty(count, np.dtype([(name, code, *size) for name, code, *size in columns]))
        start = 0
        for (name, code, *_), width in zip(columns, widths, strict=True):
            values = block[:, start : start + width]
            _check_integers(name, code, values)
            table[name] = values.reshape(table[name].shape)
            start += width
        return table

    def take(self, columns: Sequence[Column], count: int) -> Table:
        table = self.peek(columns, count)
        self._offset += count * sum(_width(column) for column in columns)
        return table

    def remaining(self) -> int:
        return len(self._numbers) - self._offset


def _width(column: Column) -> int:
    """Return the number of values that a column has in each row."""
    _, _, *size = column
    return int(np.prod(size[0])) if size else 1


def _check_integers(name: str, code: str, values: NDArray[np.float64]) -> None:
    if code.startswith("f"):
        return
    # Every number was parsed as float64, so a fraction or an overflow would be truncated silently by the assignment.
    limits = np.iinfo(code)
    good = np.isfinite(values) & (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
    if not good.all():
        raise PlyError(
            f"property {name} holds {float(values[~good][0]):g}, expected {limits.dtype} as declared in the header: "
            "copy the file again"
        )


def _next_columns(body: _Body, element: PlyElement) -> list[Column]:
    """Return the columns of the next row, with the lengths that its lists have."""
    columns = list[Column]()
    # The length of a list is stored right before its entries, so the columns are determined one by one.
    for item in element.properties:
        if not item.count_kind:
            columns.append((item.name, item.kind))
            continue
        count_name = f"{item.name}{_COUNT}"
        columns.append((count_name, item.count_kind))
        length = int(body.peek(columns, 1)[count_name][0])
        if not 0 <= length <= _LONGEST_LIST:
            raise PlyError(
                f"list {item.name} of element {element.name} has {length} entries: the file is damaged, write or copy "
                "it again"
            )
        columns.append((item.name, item.kind, (length,)))
    return columns


def _uniform_row_count(body: _Body, columns: Sequence[Column], element: PlyElement, remaining: int) -> int:
    """Return the number of next rows whose lists are as long as those of the first row, found in growing strides."""
    body.peek(columns, 1)  # raises if the first row is incomplete
    uniform = 1
    stride = 1
    counts = [f"{name}{_COUNT}" for name in element.lists]
    while uniform == stride < remaining:
        # Strides grow fourfold: lists of one length need few passes, mixed lengths waste little.
        stride = min(4 * stride, remaining)
        try:
            table = body.peek(columns, stride)
        # Later rows have shorter lists or are missing; the next call, at those rows, tells which.
        except PlyError:
            return uniform
        same = np.logical_and.reduce([table[name] == table[name][0] for name in counts])
        uniform = stride if same.all() else int(same.argmin())
    return uniform
