"""Read and write the elements of splat PLY files as numpy structured arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldwatch.files import whole_file
from fieldwatch.recon.data.git_lfs import pointer_text
from fieldwatch.recon.formats import PlyError, PlyReader, Table, write_ply


def read_elements(path: Path) -> dict[str, Table]:
    """Read the vertices and what describes them: elements without lists, by name, in file order.

    Each table is a structured array, one field per property, in file order and with the file's types. Elements after
    the first one that has lists are left out.

    Raises:
        PlyError: if the file is missing, a Git LFS pointer, not PLY, truncated, or has no vertices of fixed size.
    """
    if not path.is_file():
        msg = f"{path} does not exist: pass a .ply file, such as point_cloud/iteration_30000/point_cloud.ply"
        raise PlyError(msg)
    if pointer := pointer_text(path):
        raise PlyError(pointer)
    with path.open("rb") as file:
        try:
            return _elements(PlyReader(file))
        except PlyError as error:
            raise PlyError(f"{path} cannot be read as the PLY file of a trained splat model: {error}") from error


def read_vertices(path: Path) -> Table:
    """Read the vertices as a structured array.

    Raises:
        PlyError: as `read_elements` does.
    """
    return read_elements(path)["vertex"]


def _elements(reader: PlyReader) -> dict[str, Table]:
    names = [element.name for element in reader.elements]
    if "vertex" not in names:
        raise PlyError(f"no vertices: expected an element named vertex, found elements {names}")
    tables: dict[str, Table] = {}
    # Elements before the vertices must be read to find where the vertices begin.
    for number, element in enumerate(reader.elements):
        if element.lists or (element.name == "vertex" and not element.properties):
            if "vertex" in tables:
                break
            raise PlyError(
                f"element {element.name} has list properties or no properties: expected vertices with scalar "
                "properties, and no lists in the elements before them"
            )
        # Compressed files have the SH coefficients behind the vertices; of other elements, nothing is needed.
        if "vertex" in tables and element.name != "sh":
            break
        (tables[element.name],) = reader.read(element)
        # Left-over ASCII numbers mean that the rows are wider than the header declares: all columns are misaligned.
        if reader.ascii and number == len(names) - 1 and reader.remaining():
            table = tables[element.name]
            raise PlyError(
                f"expected {len(table)} vertices of {len(table.dtype.names or ())} numbers each, but "
                f"{reader.remaining()} numbers follow them; write the file again"
            )
    return tables


def columns(table: Table, names: Sequence[str]) -> NDArray[np.float32]:
    """Return the named columns as a float32 matrix of shape (rows, columns)."""
    order = list(table.dtype.names or ())
    kinds = {table.dtype[name] for name in order}
    # A table with only float32 columns can be viewed as a matrix without a copy.
    if names and kinds == {np.dtype(np.float32)}:
        positions = [order.index(name) for name in names]
        matrix = table.view(np.float32).reshape(len(table), len(order))
        first = positions[0]
        last = positions[-1] + 1
        return matrix[:, first:last] if positions == list(range(first, last)) else matrix[:, positions]
    matrix_copy = np.empty((len(table), len(names)), np.float32)
    for column, name in enumerate(names):
        matrix_copy[:, column] = table[name]
    return matrix_copy


def write_matrix(path: Path, names: Sequence[str], matrix: NDArray[np.float32]) -> None:
    """Write the columns of a float32 matrix atomically as vertices."""
    rows = np.ascontiguousarray(matrix, "<f4").view(np.dtype([(name, "<f4") for name in names]))
    write_vertices(path, rows.reshape(-1))


def write_vertices(path: Path, rows: Table) -> None:
    """Write a table of vertices atomically."""
    write_elements(path, {"vertex": rows})


def write_elements(path: Path, tables: Mapping[str, Table]) -> None:
    """Write elements atomically, in order."""
    with whole_file(path) as draft, draft.open("wb") as file:
        write_ply(file, tables)
