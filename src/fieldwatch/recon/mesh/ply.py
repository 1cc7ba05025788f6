"""Meshes in PLY files: vertices and faces; binary of either byte order, and ASCII."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from fieldwatch.recon.formats import PlyElement, PlyError, PlyReader, Table, write_ply
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.polygons import fans
from fieldwatch.recon.mesh.triangles import Triangles

_POSITION = ("x", "y", "z")
_COLOUR = ("red", "green", "blue")
_CORNERS = ("vertex_indices", "vertex_index")


def mesh_of_ply(data: bytes) -> Triangles:
    """Return the mesh that a PLY file holds; polygons become fans of triangles.

    Raises:
        MeshError: the bytes are not PLY, cut short, or hold no faces.
    """
    try:
        return _read(PlyReader(BytesIO(data)))
    except PlyError as error:
        raise MeshError(str(error)) from error


def ply_of_mesh(mesh: Triangles) -> bytes:
    """Return a mesh as PLY: binary little endian, double precision, so that nothing is lost; without `uvs`."""
    columns = [(name, "<f8") for name in _POSITION]
    if mesh.colours is not None:
        columns += [(name, "u1") for name in _COLOUR]
    vertices = np.empty(len(mesh.vertices), np.dtype(columns))
    for i, name in enumerate(_POSITION):
        vertices[name] = mesh.vertices[:, i]
    if mesh.colours is not None:
        for i, name in enumerate(_COLOUR):
            vertices[name] = mesh.colours[:, i]
    corners = _CORNERS[0]
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
        elif element.name == "vertex":
            vertices = np.empty(0, np.dtype([]))
        elif element.name == "face" and vertices is not None:
            return _mesh(vertices, element, tables)
    names = ", ".join(f"{element.count} of {element.name}" for element in reader.elements) or "nothing"
    msg = f"it holds no vertices with faces after them (but {names}): a cloud of points is no mesh, give a mesh"
    raise MeshError(msg)


def _mesh(vertices: Table, face: PlyElement, tables: Sequence[Table]) -> Triangles:
    name = next((name for name in _CORNERS if name in face.lists), None)
    names = vertices.dtype.names or ()
    if name is None or not set(_POSITION) <= set(names):
        msg = f"its vertices have {', '.join(names)} and its faces lists of {', '.join(face.lists) or 'nothing'}: "
        raise MeshError(msg + "x, y, z and vertex_indices are wanted; write the file again")
    # Faces of one table have equally many corners; other tables have others.
    blocks = [table[name] for table in tables]
    counts = np.concatenate([np.full(len(block), block.shape[1], np.int64) for block in blocks] or [np.zeros(0, int)])
    if not len(counts):
        raise MeshError("it holds no faces: a cloud of points is no mesh; give the mesh that was made of it")
    corners = np.concatenate([block.reshape(-1).astype(np.int64) for block in blocks])
    colours = _colours(vertices) if set(_COLOUR) <= set(names) else None
    positions = np.stack([vertices[name].astype(np.float64) for name in _POSITION], axis=1)
    return Triangles(vertices=positions, faces=corners[fans(counts)], colours=colours)


def _colours(vertices: Table) -> NDArray[np.uint8]:
    scale = 1 if all(np.issubdtype(vertices.dtype[name], np.integer) for name in _COLOUR) else 255
    values = np.stack([vertices[name].astype(np.float64) for name in _COLOUR], axis=1) * scale
    if not np.isfinite(values).all():
        raise MeshError("its colours are not finite: what wrote the file failed; write it again, or without colours")
    return np.rint(values).clip(0, 255).astype(np.uint8)
