"""Marching cubes: closed, manifold level-set surfaces with outward faces."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from skimage.measure import marching_cubes as lewiner_cubes

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

_LAYERS = 32  # layers of nodes per slab, which bounds the additional memory
_MIN_NODE_DISTANCE = 1e-4  # least distance of a vertex from a node, in cells, so that no vertices coincide
_MIN_MAGNITUDE = np.float32(1e-30)
_OUTSIDE_RATIO = np.float32(1e4)  # value around a grid to be closed, relative to the largest value in it

Shape = tuple[int, int, int]


class _Patch(NamedTuple):
    """Part of a surface.

    All patches give a shared vertex the same id, so they can be joined without comparing positions.
    """

    ids: Int64[np.ndarray, "n"]
    positions: Float64[np.ndarray, "n 3"]
    faces: Int64[np.ndarray, "m 3"]


@dataclass(frozen=True, kw_only=True, eq=False)
class GridBlock:
    """Values at a block of nodes of a larger grid.

    Attributes:
        start: index in the whole grid of the first node of the block.
        values: values at the nodes; inside is below the level.
        cells: mask of the cells (2 x 2 x 2 nodes) that may contain surface; None allows all.
    """

    start: Shape
    values: Float32[np.ndarray, "x y z"]
    cells: Bool[np.ndarray, "u v w"] | None = None


def marching_cubes(
    values: Float32[np.ndarray, "x y z"],
    *,
    low: Float64[np.ndarray, "3"],
    cell: float,
    level: float = 0.0,
    closed: bool = True,
) -> Triangles:
    """Extract the surface on which grid values cross a level.

    The topology is that of Lewiner et al. 2003 (scikit-image), which leaves no holes. Vertex positions are interpolated
    linearly along cell edges in double precision.

    Args:
        values: values at the nodes `low + (i, j, k) * cell` (point samples, not cell averages). Values below the level
            are inside, as for a signed distance. Faces point toward larger values.
        low: position of node (0, 0, 0) in world units.
        cell: cell size in world units.
        level: value of the surface.
        closed: close the surface in the plane of the grid border. If False, it is open there.

    Raises:
        MeshError: an axis has fewer than two nodes, or a value is not finite.
    """
    if min(values.shape) < 2:
        raise MeshError(f"marching cubes needs at least two nodes along each axis, got values of shape {values.shape}")
    if not np.isfinite(values).all():
        count = int(values.size - np.isfinite(values).sum())
        raise MeshError(f"{count} of {values.size} values of the grid are not finite: check the step that made them")
    # A ring of outside values closes the surface at the border of the grid.
    ring = int(closed)
    shape = _padded_shape(values.shape, ring)
    around = np.float32(level) + _OUTSIDE_RATIO * max(
        np.float32(np.abs(values).max()), np.float32(1e-20), np.float32(abs(level))
    )
    blocks = (GridBlock(start=(first, 0, 0), values=part) for first, part in _slabs(values, ring, around))
    return march_blocks(blocks, shape=shape, low=low - ring * cell, cell=cell, level=level)


def implicit_surface(  # noqa: PLR0913 (keywords of the sampling, each with its default)
    distance: Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, "n"]],
    low: Float64[np.ndarray, "3"],
    high: Float64[np.ndarray, "3"],
    *,
    resolution: int,
    block: int = 64,
    on_block: Callable[[int, int], None] | None = None,
) -> Triangles:
    """Extract the zero level set of a function, closed at the border of the box.

    The function is evaluated at every node, block by block. Besides the mesh, only one block is in memory at a time,
    whatever the resolution.

    Args:
        distance: signed distance of points in world units, negative inside; any function of that sign works.
        low: lower corner of the box in world units.
        high: upper corner of the box.
        resolution: number of cubic cells along the longest side of the box.
        block: number of cells along the side of a block.
        on_block: called with the number of finished blocks and their total.

    Raises:
        MeshError: the box is empty, a size is below 1, or the function returns a value that is not finite.
    """
    extent = high - low
    if not (extent > 0).all() or min(resolution, block) < 1:
        raise MeshError(
            f"the extent of the box, the resolution and the block size must be greater than 0, got {extent.tolist()}, "
            f"{resolution} and {block}"
        )
    cell = float(extent.max()) / resolution
    # The tolerance keeps an exact multiple of the cell from gaining a layer by rounding.
    nodes = np.ceil(extent / cell - 1e-9).astype(int) + 1
    shape = _padded_shape((int(nodes[0]), int(nodes[1]), int(nodes[2])), 1)
    x, y, z = (range(0, size - 1, block) for size in shape)
    starts = list(product(x, y, z))
    first = low - cell

    def sampled() -> Iterable[GridBlock]:
        for number, start in enumerate(starts):
            yield GridBlock(start=start, values=_sample_block(distance, start, shape, block, first, cell))
            if on_block is not None:
                on_block(number + 1, len(starts))

    return march_blocks(sampled(), shape=shape, low=first, cell=cell, level=0.0)


def march_blocks(
    blocks: Iterable[GridBlock], *, shape: Shape, low: Float64[np.ndarray, "3"], cell: float, level: float
) -> Triangles:
    """Extract the surface from blocks that share their border nodes with equal values, without duplicate vertices."""
    # Ids below this number are grid edges (three per node); vertices inside a cell get the ids above.
    next_id = 3 * int(np.prod(shape))
    patches: list[_Patch] = []
    for block in blocks:
        patch = _march_block(block, shape, level, next_id)
        if patch is not None:
            patches.append(patch)
            next_id += len(patch.ids)
    if not patches:
        return Triangles(vertices=np.empty((0, 3)), faces=np.empty((0, 3), np.int64))
    ids = np.concatenate([patch.ids for patch in patches])
    starts = np.cumsum([0, *(len(patch.ids) for patch in patches)])
    faces = np.concatenate([patch.faces + end for patch, end in zip(patches, starts[:-1], strict=True)])
    # Merge vertices of equal id: blocks share those on their borders.
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    positions = np.concatenate([patch.positions for patch in patches])[first]
    return Triangles(vertices=low + positions * cell, faces=number.reshape(-1)[faces].astype(np.int64))


def _padded_shape(shape: tuple[int, ...], ring: int) -> Shape:
    x, y, z = (size + 2 * ring for size in shape)
    return x, y, z


def _slabs(
    values: Float32[np.ndarray, "x y z"], ring: int, around: np.float32
) -> Iterable[tuple[int, Float32[np.ndarray, "s v w"]]]:
    """Yield slabs along the first axis that share one layer, padded by a ring of outside values if requested."""
    total = len(values) + 2 * ring
    for first in range(0, total - 1, _LAYERS):
        last = min(first + _LAYERS + 1, total)
        if not ring:
            yield first, values[first:last]
            continue
        slab = np.full((last - first, *_padded_shape(values.shape, 1)[1:]), around, np.float32)
        inside = slice(max(first - 1, 0), min(last - 1, len(values)))
        slab[inside.start + 1 - first : inside.stop + 1 - first, 1:-1, 1:-1] = values[inside]
        yield first, slab


def _sample_block(  # noqa: PLR0913, PLR0917 (where a block lies takes that many numbers)
    distance: Callable[[np.ndarray], np.ndarray], start: Shape, shape: Shape, block: int, low: np.ndarray, cell: float
) -> Float32[np.ndarray, "x y z"]:
    """Evaluate the function at the nodes of a block; the outermost nodes of the grid are set to outside."""
    spans = [np.arange(first, min(first + block + 1, size)) for first, size in zip(start, shape, strict=True)]
    ticks = [low[axis] + cell * span for axis, span in enumerate(spans)]
    points = np.stack(np.meshgrid(*ticks, indexing="ij"), axis=-1)
    distances = distance(points.reshape(-1, 3)).reshape(points.shape[:3])
    if not np.isfinite(distances).all():
        where = points[~np.isfinite(distances)][0].tolist()
        raise MeshError(f"the function of the surface is not finite at {where}: check the function")
    values = distances.astype(np.float32)
    # This closes the surface at the border of the box.
    for axis, (span, size) in enumerate(zip(spans, shape, strict=True)):
        rim = np.moveaxis(values, axis, 0)
        rim[(span == 0) | (span == size - 1)] = _OUTSIDE_RATIO * np.float32(cell * max(shape))
    return values


def _march_block(block: GridBlock, shape: Shape, level: float, first_interior_id: int) -> _Patch | None:
    """Extract the surface in one block, in cell coordinates of the whole grid; None if it has none."""
    compressed = _compress_magnitudes(block.values, level)
    if not (compressed.min() < 0 < compressed.max()) or (block.cells is not None and not block.cells.any()):
        return None
    mask = None
    if block.cells is not None:
        mask = np.zeros(block.values.shape, np.bool_)
        mask[1:, 1:, 1:] = block.cells  # scikit-image reads the mask at the last corner of a cell
    try:
        positions, faces, _, _ = lewiner_cubes(compressed, 0.0, gradient_direction="descent", mask=mask)
    except RuntimeError:  # no surface in the cells that are not masked out
        return None
    positions = positions.astype(np.float64)
    node, axis, on_edge = _edges_of(positions)
    # The library interpolated the compressed values: recompute the positions from the original ones.
    positions[on_edge] = _interpolated(block.values, level, node[on_edge], axis[on_edge])
    faces = faces.astype(np.int64)
    _center_interior_vertices(positions, faces, ~on_edge)
    corner = node + np.array(block.start)
    ids = np.where(
        on_edge, 3 * np.ravel_multi_index(tuple(corner.T), shape) + axis, first_interior_id + np.arange(len(node))
    )
    return _Patch(ids, positions + np.array(block.start), faces)


def _compress_magnitudes(values: Float32[np.ndarray, "x y z"], level: float) -> Float32[np.ndarray, "x y z"]:
    """Return the eighth roots of the magnitudes with the signs of the values relative to the level; 0 is outside.

    scikit-image uses these values for the topology only. With similar magnitudes no vertex falls onto a node, where it
    could not be assigned to one of the edges that meet there.
    """
    result = values - np.float32(level)
    inside = result < 0
    np.maximum(np.abs(result, out=result), _MIN_MAGNITUDE, out=result)
    # Three square roots make an eighth root.
    for _ in range(3):
        np.sqrt(result, out=result)
    np.negative(result, out=result, where=inside)
    return result


def _edges_of(
    positions: Float64[np.ndarray, "n 3"],
) -> tuple[Int64[np.ndarray, "n 3"], Int64[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Return the lower node and the axis of the edge of each vertex, and False for vertices inside a cell."""
    is_fractional = np.abs(positions - np.rint(positions)) > 1e-6
    axis = is_fractional.argmax(1)
    node = np.rint(positions).astype(np.int64)
    rows = np.arange(len(positions))
    node[rows, axis] = np.floor(positions[rows, axis]).astype(np.int64)
    return node, axis, is_fractional.sum(1) == 1


def _interpolated(
    values: Float32[np.ndarray, "x y z"], level: float, node: Int64[np.ndarray, "n 3"], axis: Int64[np.ndarray, "n"]
) -> Float64[np.ndarray, "n 3"]:
    step = np.eye(3, dtype=np.int64)[axis]
    first = values[tuple(node.T)].astype(np.float64)
    second = values[tuple((node + step).T)].astype(np.float64)
    # Linear interpolation, clamped away from the nodes so that no two vertices coincide.
    share = np.clip((level - first) / (second - first), _MIN_NODE_DISTANCE, 1 - _MIN_NODE_DISTANCE)
    return node + share[:, None] * step


def _center_interior_vertices(
    positions: Float64[np.ndarray, "n 3"], faces: Int64[np.ndarray, "m 3"], is_interior: Bool[np.ndarray, "n"]
) -> None:
    """Move vertices inside a cell to the centroid of their neighbors on cell edges."""
    if not is_interior.any():
        return
    touched_faces = faces[is_interior[faces].any(1)]
    start = np.concatenate([touched_faces, touched_faces[:, ::-1]]).reshape(-1)
    end = np.concatenate([np.roll(touched_faces, -1, axis=1), np.roll(touched_faces[:, ::-1], -1, axis=1)]).reshape(-1)
    keep = is_interior[start] & ~is_interior[end]
    start = start[keep]
    end = end[keep]
    count = np.bincount(start, minlength=len(positions))
    for axis in range(3):
        total = np.bincount(start, positions[end, axis], minlength=len(positions))
        positions[is_interior & (count > 0), axis] = (total / np.maximum(count, 1))[is_interior & (count > 0)]
