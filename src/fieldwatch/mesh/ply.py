"""Meshes in PLY files: header, vertices and faces; binary of either byte order, and ASCII."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fieldwatch.mesh.error import MeshError
from fieldwatch.mesh.polygons import fans
from fieldwatch.mesh.triangles import Triangles

_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8", "int64": "i8", "uint64": "u8",
}  # fmt: skip
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": "="}
_COLOUR = ("red", "green", "blue")
_LONGEST_HEADER = 1 << 16
_LONGEST_LIST = 1 << 20

Column = tuple[str, str] | tuple[str, str, tuple[int, ...]]
Table = NDArray[Any]


@dataclass(frozen=True)
class _Property:
    """A column; of a list, `counted` is the type of its length."""

    name: str
    kind: str
    counted: str = ""


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: list[_Property] = field(default_factory=list)

    @property
    def lists(self) -> list[str]:
        return [item.name for item in self.properties if item.counted]


@runtime_checkable
class _Body(Protocol):
    """What follows the header, read from front to back."""

    def rows(self, columns: list[Column], count: int) -> Table:
        """Return rows from here on, without moving on; raises MeshError if so many are not there."""
        ...

    def skip(self, table: Table) -> None:
        """Move on behind rows."""
        ...


@dataclass
class _Bytes:
    data: bytes
    order: str
    place: int = 0

    def rows(self, columns: list[Column], count: int) -> Table:
        kind = np.dtype([(name, self.order + kind, *size) for name, kind, *size in columns])
        there = len(self.data) - self.place
        if there < kind.itemsize * count:
            msg = (
                f"{count} rows of {kind.itemsize} bytes are due, {there} bytes are left: it is cut short, copy it again"
            )
            raise MeshError(msg)
        return np.frombuffer(self.data, kind, count, self.place) if count else np.empty(0, kind)

    def skip(self, table: Table) -> None:
        self.place += table.nbytes


@dataclass
class _Words:
    numbers: NDArray[np.float64]
    place: int = 0

    def rows(self, columns: list[Column], count: int) -> Table:
        kind = np.dtype([(name, kind, *size) for name, kind, *size in columns])
        widths = [int(np.prod(size[0])) if size else 1 for _, _, *size in columns]
        there = len(self.numbers) - self.place
        if there < sum(widths) * count:
            msg = f"{count} rows of {sum(widths)} numbers were wanted, {there} are left: it is cut short, copy it again"
            raise MeshError(msg)
        block = self.numbers[self.place : self.place + sum(widths) * count].reshape(count, sum(widths))
        table = np.empty(count, kind)
        start = 0
        for (name, code, *_), width in zip(columns, widths, strict=True):
            values = block[:, start : start + width]
            _check_whole(name, code, values)
            table[name] = values.reshape(table[name].shape)
            start += width
        return table

    def skip(self, table: Table) -> None:
        self.place += len(table) * sum(int(np.prod(table.dtype[name].shape)) for name in table.dtype.names or ())


def _check_whole(name: str, code: str, values: NDArray[np.float64]) -> None:
    if code.startswith("f"):
        return
    limits = np.iinfo(code)
    good = np.isfinite(values) & (values == np.floor(values)) & (values >= limits.min) & (values <= limits.max)
    if not good.all():
        msg = f"{name} holds {float(values[~good][0]):g}, not {limits.dtype} as its header promises: copy it again"
        raise MeshError(msg)


def read_ply(data: bytes) -> Triangles:
    """Return the mesh that a PLY file holds; polygons become fans of triangles.

    Raises:
        MeshError: the bytes are not PLY, cut short, or hold no faces.
    """
    order, elements, size = _header(data)
    body = _body(data[size:], order)
    vertices: Table | None = None
    for element in elements:
        columns, lists = _element(body, element)
        if element.name == "vertex":
            vertices = columns
        elif element.name == "face" and vertices is not None:
            return _mesh(vertices, lists)
    names = ", ".join(f"{element.count} of {element.name}" for element in elements) or "nothing"
    msg = f"it holds no vertices with faces after them (but {names}): a cloud of points is no mesh, give a mesh"
    raise MeshError(msg)


def write_ply(mesh: Triangles) -> bytes:
    """Return a mesh as PLY: binary little endian, double precision, so that nothing is lost; without `uvs`."""
    places: list[Column] = [(name, "<f8") for name in "xyz"]
    colours: list[Column] = [] if mesh.colours is None else [(name, "u1") for name in _COLOUR]
    table = np.empty(len(mesh.vertices), np.dtype([*places, *colours]))
    for i, name in enumerate("xyz"):
        table[name] = mesh.vertices[:, i]
    if mesh.colours is not None:
        for i, name in enumerate(_COLOUR):
            table[name] = mesh.colours[:, i]
    faces = np.empty(len(mesh.faces), np.dtype([("count", "u1"), ("corners", "<i4", (3,))]))
    faces["count"], faces["corners"] = 3, mesh.faces
    lines = [f"property double {name}" for name in "xyz"] + [f"property uchar {name}" for name, *_ in colours]
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}", *lines]
    head += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header", ""]
    return "\n".join(head).encode("ascii") + table.tobytes() + faces.tobytes()


def _header(data: bytes) -> tuple[str, list[_Element], int]:
    end = data.find(b"end_header", 0, _LONGEST_HEADER)
    if not data.startswith(b"ply") or end < 0:
        msg = f"it is no PLY file (it begins with {data[:12]!r}): give a mesh in a .ply or .obj file"
        raise MeshError(msg)
    order, elements = "", list[_Element]()
    for line in data[:end].decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if not words or words[0] in {"comment", "obj_info"}:
            continue
        if words[0] == "format" and len(words) > 1 and words[1] in _ORDERS:
            order = words[1]
        elif words[0] == "element" and len(words) == 3 and words[2].isdecimal() and len(words[2]) < 19:
            elements.append(_Element(words[1], int(words[2])))
        elif words[0] == "property" and elements and (column := _property(words, elements[-1])):
            elements[-1].properties.append(column)
        else:
            msg = f"the line {line!r} in its header is not PLY: it is damaged, write or copy it again"
            raise MeshError(msg)
    if not order:
        raise MeshError("its header does not say whether it is ascii or binary (no format line): write it again")
    line_end = data.find(b"\n", end)
    return order, elements, line_end + 1 if line_end >= 0 else len(data)


def _property(words: list[str], element: _Element) -> _Property | None:
    """Return a column; None if the line does not describe one, or one that is already there."""
    if any(item.name == words[-1] for item in element.properties):
        return None
    if len(words) == 3 and words[1] in _TYPES:
        return _Property(words[2], _TYPES[words[1]])
    if len(words) == 5 and words[1] == "list" and words[3] in _TYPES:
        counted = _TYPES.get(words[2], "f")
        return None if counted.startswith("f") else _Property(words[4], _TYPES[words[3]], counted)
    return None


def _body(data: bytes, order: str) -> _Body:
    if order != "ascii":
        return _Bytes(data, _ORDERS[order])
    try:
        return _Words(np.array(data.split(), np.float64))
    except ValueError as error:
        msg = f"it says ascii, but holds something else than numbers ({error}): write or copy it again"
        raise MeshError(msg) from error


def _element(body: _Body, element: _Element) -> tuple[Table, dict[str, list[Table]]]:
    """Return the rows of an element without lists, and the blocks of rows of one with lists, by the list's name."""
    if not element.properties:
        if element.count:
            msg = f"its header promises {element.count} of {element.name} with no property: write the file again"
            raise MeshError(msg)
        return np.empty(0), {}
    if not element.lists:
        table = body.rows([(item.name, item.kind) for item in element.properties], element.count)
        body.skip(table)
        return table, {}
    found: dict[str, list[Table]] = {name: [] for name in element.lists}
    left = element.count
    while left:
        columns = _layout(body, element)
        table = _alike(body, columns, element, left)
        body.skip(table)
        left -= len(table)
        for name, blocks in found.items():
            blocks.append(table[name])
    return np.empty(0), found


def _layout(body: _Body, element: _Element) -> list[Column]:
    """Return the columns of the next row, its lists as long as they are there."""
    columns = list[Column]()
    for item in element.properties:
        if not item.counted:
            columns.append((item.name, item.kind))
            continue
        columns.append((f"{item.name} count", item.counted))
        length = int(body.rows(columns, 1)[f"{item.name} count"][0])
        if not 0 <= length <= _LONGEST_LIST:
            msg = f"{item.name} of a {element.name} has {length} entries: it is damaged, write or copy it again"
            raise MeshError(msg)
        columns.append((item.name, item.kind, (length,)))
    return columns


def _alike(body: _Body, columns: list[Column], element: _Element, left: int) -> Table:
    """Return the rows from here on whose lists are as long as those of the first, found in growing strides."""
    taken, tried = body.rows(columns, 1), 1
    counts = [f"{name} count" for name in element.lists]
    while len(taken) == tried < left:
        tried = min(4 * tried, left)
        try:
            table = body.rows(columns, tried)
        except MeshError:  # later rows are shorter, or missing: row by row, the next look says which
            return taken
        same = np.logical_and.reduce([table[name] == table[name][0] for name in counts])
        taken = table if same.all() else table[: int(same.argmin())]
    return taken


def _mesh(vertices: Table, lists: Mapping[str, list[Table]]) -> Triangles:
    blocks = lists.get("vertex_indices", lists.get("vertex_index"))
    names = vertices.dtype.names or ()
    if blocks is None or not set("xyz") <= set(names):
        msg = f"its vertices have {', '.join(names)} and its faces lists of {', '.join(lists) or 'nothing'}: "
        raise MeshError(msg + "x, y, z and vertex_indices are wanted; write the file again")
    counts = np.concatenate([np.full(len(block), block.shape[1], np.int64) for block in blocks] or [np.zeros(0, int)])
    if not len(counts):
        raise MeshError("it holds no faces: a cloud of points is no mesh; give the mesh that was made of it")
    corners = np.concatenate([block.reshape(-1).astype(np.int64) for block in blocks])
    colours = _colours(vertices) if set(_COLOUR) <= set(names) else None
    places = np.stack([vertices[name].astype(np.float64) for name in "xyz"], axis=1)
    return Triangles(vertices=places, faces=corners[fans(counts)], colours=colours)


def _colours(vertices: Table) -> NDArray[np.uint8]:
    scale = 1 if all(np.issubdtype(vertices.dtype[name], np.integer) for name in _COLOUR) else 255
    values = np.stack([vertices[name].astype(np.float64) for name in _COLOUR], axis=1) * scale
    if not np.isfinite(values).all():
        raise MeshError("its colours are not finite: what wrote the file failed; write it again, or without colours")
    return np.rint(values).clip(0, 255).astype(np.uint8)
