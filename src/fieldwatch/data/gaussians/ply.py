"""PLY files: header, vertices as a numpy table; binary of either byte order, and ASCII."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fieldwatch.data.gaussians.error import PlyError
from fieldwatch.data.git_lfs import pointer_text

Table = NDArray[Any]

_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8", "int64": "i8", "uint64": "u8",
}  # fmt: skip
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
_LONGEST_HEADER = 1 << 16


@dataclass
class _Element:
    """A part of a PLY file: its name, how many rows, and the name and type of each column."""

    name: str
    count: int
    columns: list[tuple[str, str]] = field(default_factory=list)
    lists: bool = False


@dataclass(frozen=True)
class _Header:
    order: str
    elements: list[_Element]
    size: int


def read_vertices(path: Path) -> Table:
    """Return the vertices as a structured array, one field per property, in the file's order and types.

    Raises:
        PlyError: the file is missing, a Git LFS pointer, not PLY, cut short, or holds no vertices of fixed size.
    """
    if not path.is_file():
        msg = f"{path} does not exist: give a .ply file, such as point_cloud/iteration_30000/point_cloud.ply"
        raise PlyError(msg)
    if pointer := pointer_text(path):
        raise PlyError(pointer)
    with path.open("rb") as file:
        header = _header(file, path)
        before: list[_Element] = []
        for element in header.elements:
            if element.name == "vertex":
                return _vertices(file, path, header, before, element)
            before.append(element)
    msg = f"{path} has no vertices (found: {[e.name for e in header.elements]}): give the PLY of a trained splat model"
    raise PlyError(msg)


def _header(file: BinaryIO, path: Path) -> _Header:
    start = file.read(_LONGEST_HEADER)
    end = start.find(b"end_header")
    if not start.startswith(b"ply") or end < 0:
        msg = f"{path} is no PLY file (it begins with {start[:12]!r}): give the .ply that splat training writes"
        raise PlyError(msg)
    size = start.find(b"\n", end) + 1
    order, elements = "", list[_Element]()
    for line in start[:end].decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if not words or words[0] in {"comment", "obj_info"}:
            continue
        if words[0] == "format" and len(words) > 1 and words[1] in _ORDERS:
            order = words[1]
        elif words[0] == "element" and len(words) == 3 and words[2].isdecimal():
            elements.append(_Element(words[1], int(words[2])))
        elif words[0] == "property" and elements and _is_column(words):
            elements[-1].columns.append((words[-1], _TYPES.get(words[1], "")))
            elements[-1].lists |= words[1] == "list"
        else:
            msg = f"{path} has the line {line!r} in its header, which is not PLY: write the file again"
            raise PlyError(msg)
    if not order:
        msg = f"{path} does not say whether it is ascii or binary: its header lacks a format line; write it again"
        raise PlyError(msg)
    return _Header(order, elements, size)


def _is_column(words: Sequence[str]) -> bool:
    return (len(words) == 3 and words[1] in _TYPES) or (len(words) == 5 and words[1] == "list")


def _vertices(file: BinaryIO, path: Path, header: _Header, before: Sequence[_Element], element: _Element) -> Table:
    if element.lists or any(other.lists for other in before) or not element.columns:
        msg = f"{path} has lists before or in its vertices: that is no splat file; give the PLY of a trained model"
        raise PlyError(msg)
    names = [name for name, _ in element.columns]
    if len(set(names)) < len(names):
        msg = f"{path} names a property of its vertices twice ({', '.join(names)}): write the file again"
        raise PlyError(msg)
    if header.order == "ascii":
        return _from_text(file, path, header, before, element)
    skipped = sum(other.count * _row(other, header.order).itemsize for other in before)
    row = _row(element, header.order)
    start, needed = header.size + skipped, element.count * row.itemsize
    there = path.stat().st_size - start
    if there < needed:
        msg = (
            f"{path} is cut short: {element.count} vertices of {row.itemsize} bytes need {needed} bytes, "
            f"{max(there, 0)} follow the header; copy the file again"
        )
        raise PlyError(msg)
    file.seek(start)
    return np.fromfile(file, row, element.count)


def _from_text(file: BinaryIO, path: Path, header: _Header, before: Sequence[_Element], element: _Element) -> Table:
    file.seek(header.size)
    lines = file.read().decode("ascii", "replace").splitlines()
    first = sum(other.count for other in before)
    chosen = lines[first : first + element.count]
    try:
        words = np.array(" ".join(chosen).split(), np.float64).reshape(len(chosen), -1)
    except ValueError as error:
        msg = f"{path} has vertices that are not rows of {len(element.columns)} numbers ({error}): write it again"
        raise PlyError(msg) from error
    if words.shape != (element.count, len(element.columns)):
        msg = (
            f"{path} has {words.shape[0]} rows of {words.shape[1]} numbers, its header says {element.count} of "
            f"{len(element.columns)}: the file is cut short or damaged, copy it again"
        )
        raise PlyError(msg)
    table = np.empty(element.count, _row(element, "ascii"))
    for column, (name, _) in enumerate(element.columns):
        table[name] = words[:, column]
    return table


def _row(element: _Element, order: str) -> np.dtype[Any]:
    return np.dtype([(name, _ORDERS[order] + kind) for name, kind in element.columns])


def columns(table: Table, names: Sequence[str]) -> NDArray[np.float32]:
    """Return some columns as one float32 matrix, rows first."""
    order = list(table.dtype.names or ())
    kinds = {table.dtype[name] for name in order}
    if names and kinds == {np.dtype(np.float32)}:
        places = [order.index(name) for name in names]
        matrix = table.view(np.float32).reshape(len(table), len(order))
        first, last = places[0], places[-1] + 1
        return matrix[:, first:last] if places == list(range(first, last)) else matrix[:, places]
    made = np.empty((len(table), len(names)), np.float32)
    for column, name in enumerate(names):
        made[:, column] = table[name]
    return made


def write_table(path: Path, names: Sequence[str], matrix: NDArray[np.float32]) -> None:
    """Write float32 vertices, binary little endian; the file appears when it is whole."""
    properties = "".join(f"property float {name}\n" for name in names)
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(matrix)}\n{properties}end_header\n"
    write_vertices(path, header, np.ascontiguousarray(matrix, "<f4"))


def write_vertices(path: Path, header: str, rows: Table) -> None:
    """Write a header and rows under another name, then give them theirs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(header.encode("ascii"))
            rows.tofile(file)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
