"""Reading and writing meshes in PLY files: binary of either byte order, and ASCII."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.formats import PlyElement, PlyError, PlyReader, Table, write_ply
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.polygons import fans
from fieldwatch.recon.mesh.triangles import Triangles

_POSITION = ("x", "y", "z")
_COLOR = ("red", "green", "blue")
_CORNERS = ("vertex_indices", "vertex_index")


def mesh_of_ply(data: bytes) -> Triangles:
    """Parse a PLY file; polygons become triangle fans.

    Raises:
        MeshError: the data is not PLY, is truncated, or has no faces.
    """
    try:
        return _read(PlyReader(BytesIO(data)))
    except PlyError as error:
        raise MeshError(str(error)) from error


def ply_of_mesh(mesh: Triangles) -> bytes:
    """Encode a mesh as little-endian binary PLY in double precision: lossless, except that `uvs` are dropped."""
    # Double precision: positions read back bitwise equal.
    columns = [(name, "<f8") for name in _POSITION]
    if mesh.colors is not None:
        columns += [(name, "u1") for name in _COLOR]
    vertices = np.empty(len(mesh.vertices), np.dtype(columns))
    for i, name in enumerate(_POSITION):
        vertices[name] = mesh.vertices[:, i]
    if mesh.colors is not None:
        for i, name in enumerate(_COLOR):
            vertices[name] = mesh.colors[:, i]
    corners = _CORNERS[0]
    # A packed row of count and three indices is PLY's list property for triangles, without a loop in Python.
    faces = np.empty(len(mesh.faces), np.dtype([(f"{corners} count", "u1"), (corners, "<i4", (3,))]))
    faces[f"{corners} count"] = 3
    faces[corners] = mesh.faces
    file = BytesIO()
    write_ply(file, {"vertex": vertices, "face": faces})
    return file.getvalue()


def _read(reader: PlyReader) -> Triangles:
    vertices: Table | None = None
    for element in reader.elements:
        tables = reader.read(element)
        if element.name == "vertex" and not element.lists:
            vertices = tables[0]
        # Vertices with list properties have no fixed columns: report them as missing coordinates.
        elif element.name == "vertex":
            vertices = np.empty(0, np.dtype([]))
        elif element.name == "face" and vertices is not None:
            return _mesh(vertices, element, tables)
    names = ", ".join(f"{element.count} of {element.name}" for element in reader.elements) or "nothing"
    msg = f"it holds no vertices with faces after them (found {names}): give a mesh, not a point cloud"
    raise MeshError(msg)


def _mesh(vertices: Table, face: PlyElement, tables: Sequence[Table]) -> Triangles:
    name = next((name for name in _CORNERS if name in face.lists), None)
    names = vertices.dtype.names or ()
    if name is None or not set(_POSITION) <= set(names):
        msg = f"its vertices have {', '.join(names)} and its faces lists of {', '.join(face.lists) or 'nothing'}: "
        raise MeshError(msg + "x, y, z and vertex_indices are required; write the file again")
    # The reader returns one table per number of corners, in the order of the file.
    blocks = [table[name] for table in tables]
    counts = np.concatenate([np.full(len(block), block.shape[1], np.int64) for block in blocks] or [np.zeros(0, int)])
    if not len(counts):
        raise MeshError("it holds no faces: give a mesh, not a point cloud")
    corners = np.concatenate([block.reshape(-1).astype(np.int64) for block in blocks])
    colors = _colors(vertices) if set(_COLOR) <= set(names) else None
    positions = np.stack([vertices[name].astype(np.float64) for name in _POSITION], axis=1)
    return Triangles(vertices=positions, faces=corners[fans(counts)], colors=colors)


def _colors(vertices: Table) -> NDArray[np.uint8]:
    # Integer channels are 0 to 255 by convention, floating-point channels 0 to 1.
    scale = 1 if all(np.issubdtype(vertices.dtype[name], np.integer) for name in _COLOR) else 255
    values = np.stack([vertices[name].astype(np.float64) for name in _COLOR], axis=1) * scale
    if not np.isfinite(values).all():
        raise MeshError("its colors are not finite: write the file again, or without colors")
    return np.rint(values).clip(0, 255).astype(np.uint8)
