"""The vertices of PLY files of splats, as a numpy table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.files import whole_file
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.formats import PlyError, PlyReader, Table, write_ply


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
        try:
            return _vertices(PlyReader(file))
        except PlyError as error:
            raise PlyError(f"{path} cannot be read as the PLY of a trained splat model: {error}") from error


def _vertices(reader: PlyReader) -> Table:
    names = [element.name for element in reader.elements]
    if "vertex" not in names:
        raise PlyError(f"it has no vertices (found: {names}): expected an element named vertex")
    table: Table = np.empty(0, np.dtype([]))
    for element in reader.elements[: names.index("vertex") + 1]:
        if element.lists or (element.name == "vertex" and not element.properties):
            raise PlyError(f"it has lists before or in its vertices, or vertices without properties ({element.name})")
        (table,) = reader.read(element)
    if reader.ascii and names[-1] == "vertex" and reader.left():
        raise PlyError(
            f"{reader.left()} numbers follow its {len(table)} vertices, expected none: its rows are not rows of "
            f"{len(table.dtype.names or ())} numbers; write it again"
        )
    return table


def columns(table: Table, names: Sequence[str]) -> NDArray[np.float32]:
    """Return some columns as one float32 matrix, rows first."""
    order = list(table.dtype.names or ())
    kinds = {table.dtype[name] for name in order}
    if names and kinds == {np.dtype(np.float32)}:
        places = [order.index(name) for name in names]
        matrix = table.view(np.float32).reshape(len(table), len(order))
        first = places[0]
        last = places[-1] + 1
        return matrix[:, first:last] if places == list(range(first, last)) else matrix[:, places]
    made = np.empty((len(table), len(names)), np.float32)
    for column, name in enumerate(names):
        made[:, column] = table[name]
    return made


def write_matrix(path: Path, names: Sequence[str], matrix: NDArray[np.float32]) -> None:
    """Write the columns of a float32 matrix as vertices; the file appears when it is whole."""
    rows = np.ascontiguousarray(matrix, "<f4").view(np.dtype([(name, "<f4") for name in names]))
    write_vertices(path, rows.reshape(-1))


def write_vertices(path: Path, rows: Table) -> None:
    """Write a table of vertices; the file appears when it is whole."""
    with whole_file(path) as draft, draft.open("wb") as file:
        write_ply(file, {"vertex": rows})
