"""TSDF fusion: surfaces from depth maps by averaging truncated signed distances (Curless & Levoy 1996)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.marching import GridBlock, march_blocks
from fieldwatch.recon.mesh.triangles import Triangles

_TRUNCATION = 4.0  # default truncation distance in cells
_BYTES_A_NODE = 180  # sums, values and the temporary arrays of one view
_SLACK = 1e-9  # relative, of distances from the sides of a frustum
_MAX_DEPTH_STEP = 1.0  # largest range of four neighboring depths to interpolate, in truncation distances
_OUTSIDE_VALUE = np.float32(4.0)  # value of nodes outside, in truncation distances


@dataclass(frozen=True, kw_only=True, eq=False)
class DepthView:
    """Depth map of one camera.

    Attributes:
        camera: camera of the depth map.
        depth: z depth at the pixel centers in world units; 0 marks pixels without surface.
        colors: RGB image.

    Raises:
        MeshError: an array differs from the camera in size, or a depth is negative or not finite.
    """

    camera: Camera
    depth: Float32[np.ndarray, "h w"]
    colors: UInt8[np.ndarray, "h w 3"] | None = None

    def __post_init__(self) -> None:
        wanted = (self.camera.height, self.camera.width)
        shapes = {self.depth.shape, self.depth.shape if self.colors is None else self.colors.shape[:2]}
        if shapes != {wanted}:
            raise MeshError(
                f"camera {self.camera.name!r} has {wanted[0]} rows and {wanted[1]} columns, its depth and colors have "
                f"{sorted(shapes)}: give arrays of that size, or a camera made by `resized`"
            )
        if not (np.isfinite(self.depth).all() and (self.depth >= 0).all()):
            raise MeshError(
                f"the depth of camera {self.camera.name!r} has negative or non-finite values: use 0 for no surface"
            )


class _Pose(NamedTuple):
    """Pose of a camera as numpy arrays."""

    rotation: Float64[np.ndarray, "3 3"]  # camera from world
    center: Float64[np.ndarray, "3"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Volume:
    """The fusion grid, with nodes at `low + (i, j, k) * cell`."""

    shape: tuple[int, int, int]
    low: Float64[np.ndarray, "3"]
    cell: float
    truncation: float


@dataclass(kw_only=True, eq=False)
class _Slab:
    """Sums over the views at some layers of nodes: truncated distances, weights and colors."""

    volume: _Volume
    first: int
    distance: Float32[np.ndarray, "x y z"]
    weight: Float32[np.ndarray, "x y z"]
    color: Float32[np.ndarray, "x y z 3"]
    color_weight: Float32[np.ndarray, "x y z"]

    @classmethod
    def empty(cls, volume: _Volume, first: int, layers: int) -> "_Slab":
        """Create a slab without views."""
        shape = (layers, *volume.shape[1:])
        return cls(
            volume=volume,
            first=first,
            distance=np.zeros(shape, np.float32),
            weight=np.zeros(shape, np.float32),
            color=np.zeros((*shape, 3), np.float32),
            color_weight=np.zeros(shape, np.float32),
        )

    def add(self, view: DepthView) -> None:
        """Integrate a depth map, layer by layer; only the part of a layer that the camera may see is visited."""
        matrix = view.camera.camera_from_world.detach().cpu().double().numpy()
        pose = _Pose(matrix[:3, :3], view.camera.position.detach().cpu().double().numpy())
        # Nodes farther than this are more than one truncation distance behind every surface.
        farthest = float(view.depth.max()) + self.volume.truncation
        ticks = [self.volume.low[axis] + self.volume.cell * np.arange(self.volume.shape[axis]) for axis in (1, 2)]
        for layer in range(len(self.weight)):
            x = self.volume.low[0] + self.volume.cell * (self.first + layer)
            offset = [np.array([x - pose.center[0]]), ticks[0][:, None] - pose.center[1], ticks[1] - pose.center[2]]
            window = _window(view.camera, pose, offset, farthest)
            if window is None:
                continue
            offset[1] = offset[1][window[0]]
            offset[2] = offset[2][window[1]]
            self._add_part((layer, *window), view, *_in_camera(pose, offset))

    def _add_part(
        self,
        part: tuple[int, slice, slice],
        view: DepthView,
        across: Float64[np.ndarray, "y z"],
        down: Float64[np.ndarray, "y z"],
        depth: Float64[np.ndarray, "y z"],
    ) -> None:
        camera = view.camera
        # An infinite depth projects points behind the camera to the principal point; they are masked below.
        front = np.where(depth > 0, depth, np.inf)
        column = camera.fx * across / front + camera.cx
        row = camera.fy * down / front + camera.cy
        seen = (depth > 0) & (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
        if not seen.any():
            return
        measured = _depth_at(view.depth, column[seen], row[seen], _MAX_DEPTH_STEP * self.volume.truncation)
        distance = (measured - depth[seen]) / self.volume.truncation
        # Curless and Levoy: nothing is known beyond one truncation distance behind a surface.
        valid = (measured > 0) & (distance >= -1)
        seen[seen] = valid
        distance = np.minimum(distance[valid], 1).astype(np.float32)
        self.distance[part][seen] += distance
        self.weight[part][seen] += 1
        if view.colors is None:
            return
        # Nodes at the full truncation distance are empty space: the color of the pixel is not theirs.
        near = distance < 1
        seen[seen] = near
        pixels = view.colors[np.floor(row[seen]).astype(int), np.floor(column[seen]).astype(int)]
        self.color[part][seen] += pixels
        self.color_weight[part][seen] += 1

    def block(self, *, close: bool) -> GridBlock:
        """Return the mean distances and the mask of cells whose corners were all observed."""
        # Unobserved nodes keep the value -1: inside, if the surface is to be closed.
        known = self.weight > 0
        values = np.full(known.shape, -1, np.float32)
        np.divide(self.distance, self.weight, out=values, where=known)
        start = (self.first, 0, 0)
        if close:
            for axis, size in enumerate(self.volume.shape):
                layers = np.moveaxis(values, axis, 0)
                number = np.arange(len(layers)) + start[axis]
                layers[(number == 0) | (number == size - 1)] = _OUTSIDE_VALUE
            return GridBlock(start=start, values=values)
        cells = known[:-1] & known[1:]
        cells = cells[:, :-1] & cells[:, 1:]
        return GridBlock(start=start, values=values, cells=cells[:, :, :-1] & cells[:, :, 1:])

    def colors(self) -> tuple[Int64[np.ndarray, "n"], Float32[np.ndarray, "n 3"]]:
        """Return the colored nodes within half a truncation distance of the surface, with their mean colors."""
        near = (self.color_weight > 0) & (np.abs(self.distance) < 0.5 * self.weight)
        node = np.argwhere(near) + np.array([self.first, 0, 0])
        mean = self.color[near] / self.color_weight[near][:, None]
        return np.asarray(np.ravel_multi_index(tuple(node.T), self.volume.shape), np.int64), mean


def _in_camera(
    pose: _Pose, offset: Sequence[np.ndarray]
) -> tuple[Float64[np.ndarray, "y z"], Float64[np.ndarray, "y z"], Float64[np.ndarray, "y z"]]:
    """Return camera coordinates of nodes, from their offsets to the camera along x, y and z, which are broadcast."""
    # Term by term: a matrix product may round differently for other slab sizes.
    across, down, depth = (
        pose.rotation[row, 0] * offset[0] + pose.rotation[row, 1] * offset[1] + pose.rotation[row, 2] * offset[2]
        for row in range(3)
    )
    return across, down, depth


def _window(camera: Camera, pose: _Pose, offset: Sequence[np.ndarray], farthest: float) -> tuple[slice, slice] | None:
    """Return the rows and columns of a layer outside of which no node is in the photo; None if there are none.

    A line of nodes is outside if both of its ends are beyond the same side of the viewing frustum.
    """
    along_y = _may_be_seen(camera, _in_camera(pose, [offset[0], offset[1], offset[2][[0, -1]]]), farthest, ends=1)
    along_z = _may_be_seen(camera, _in_camera(pose, [offset[0], offset[1][[0, -1]], offset[2]]), farthest, ends=0)
    if not along_y.any() or not along_z.any():
        return None
    rows, columns = (np.flatnonzero(seen)[[0, -1]] for seen in (along_y, along_z))
    return slice(int(rows[0]), int(rows[1]) + 1), slice(int(columns[0]), int(columns[1]) + 1)


def _may_be_seen(
    camera: Camera, local: tuple[np.ndarray, np.ndarray, np.ndarray], farthest: float, *, ends: int
) -> Bool[np.ndarray, "n"]:
    """Return the lines, given by the camera coordinates of their two ends along an axis, that may cross the frustum."""
    across, down, depth = local
    column = camera.fx * across + camera.cx * depth
    row = camera.fy * down + camera.cy * depth
    # Positive inside; the sides through the center, then the near and the far side.
    sides = [column, camera.width * depth - column, row, camera.height * depth - row, depth, farthest - depth]
    # Rounding must not exclude a node on a side.
    slack = [_SLACK * np.abs(side).max() for side in sides]
    return np.all([(side >= -least).any(ends) for side, least in zip(sides, slack, strict=True)], 0)


def fuse_depths(  # noqa: PLR0913 (keywords of the fusion, each with its default)
    views: Iterable[DepthView],
    *,
    low: Float64[np.ndarray, "3"],
    high: Float64[np.ndarray, "3"],
    resolution: int,
    truncation: float | None = None,
    memory: int | None = None,
    close: bool = False,
    on_view: Callable[[int], None] | None = None,
) -> Triangles:
    """Fuse depth maps into a surface.

    Each grid node averages the truncated distances along the optical axes to the observed surface. The result is the
    zero level set of the mean.

    Args:
        views: depth maps. If `memory` requires several passes, this must be iterable more than once: a list, or an
            object whose `__iter__` creates the views again.
        low: lower corner of the box in world units.
        high: upper corner of the box.
        resolution: number of cubic cells along the longest side of the box.
        truncation: truncation distance in world units; None uses 4 cells. Smaller values preserve thin parts, larger
            values tolerate more noise.
        memory: memory limit of the grid in bytes. A larger grid is processed in slabs, with one pass over the views per
            slab; the surface is the same.
        close: treat unobserved space as inside and end the object at the border of the box, which closes the surface.
            If False, the surface ends where the observed space ends.
        on_view: called with the number of views processed, over all passes.

    Raises:
        MeshError: the box is empty, a size is not positive, there are no views, the memory does not suffice for two
            layers, or several passes are needed over views that can be iterated only once.
    """
    volume = _volume(low, high, resolution, truncation)
    layers = _layers(volume, memory)
    # An iterator returns itself from iter(): it cannot be iterated a second time.
    if layers < volume.shape[0] and iter(views) is views:
        raise MeshError(
            f"{volume.shape[0]} layers of the grid need several passes of {layers} layers within {memory} bytes, but "
            "the views can be iterated only once: give a list, or allow more memory"
        )
    node_colors: list[tuple[np.ndarray, np.ndarray]] = []
    blocks = _fused(volume, layers, views, close, on_view, node_colors)
    mesh = march_blocks(blocks, shape=volume.shape, low=volume.low, cell=volume.cell, level=0.0)
    if not any(len(nodes) for nodes, _ in node_colors):
        return mesh
    return replace(mesh, colors=_interpolated(mesh, volume, node_colors))


def _volume(low: np.ndarray, high: np.ndarray, resolution: int, truncation: float | None) -> _Volume:
    extent = high - low
    if not (extent > 0).all() or resolution < 2 or (truncation is not None and not truncation > 0):
        raise MeshError(
            "fusion needs a box and a truncation greater than 0 and at least 2 cells, got the extent "
            f"{extent.tolist()}, the truncation {truncation} and {resolution} cells"
        )
    cell = float(extent.max()) / resolution
    x, y, z = (int(np.ceil(side / cell - 1e-9)) + 1 for side in extent)
    reach = _TRUNCATION * cell if truncation is None else truncation
    return _Volume(shape=(x, max(y, 2), max(z, 2)), low=low, cell=cell, truncation=reach)


def _layers(volume: _Volume, memory: int | None) -> int:
    if memory is None:
        return volume.shape[0]
    each = _BYTES_A_NODE * volume.shape[1] * volume.shape[2]
    if memory < 2 * each:
        raise MeshError(
            f"fusing a grid of {volume.shape} nodes needs at least {2 * each / 2**20:.1f} MiB, the limit is "
            f"{memory / 2**20:.1f} MiB: lower the resolution, or raise the limit"
        )
    return min(memory // each, volume.shape[0])


def _fused(  # noqa: PLR0913, PLR0917 (a generator with the settings of fuse_depths)
    volume: _Volume,
    layers: int,
    views: Iterable[DepthView],
    close: bool,  # noqa: FBT001  passed on by position, like the others
    on_view: Callable[[int], None] | None,
    node_colors: list[tuple[np.ndarray, np.ndarray]],
) -> Iterator[GridBlock]:
    done = 0
    # Adjacent slabs share one layer of nodes, so that no cell between them is lost.
    for first in range(0, volume.shape[0] - 1, max(layers - 1, 1)):
        slab = _Slab.empty(volume, first, min(layers, volume.shape[0] - first))
        before = done
        for view in views:
            slab.add(view)
            done += 1
            if on_view is not None:
                on_view(done)
        if done == before:
            raise MeshError("there are no depth maps to fuse: give at least one, in a list for several passes")
        node_colors.append(slab.colors())
        yield slab.block(close=close)


def _depth_at(
    depth: Float32[np.ndarray, "h w"], column: Float64[np.ndarray, "n"], row: Float64[np.ndarray, "n"], edge: float
) -> Float64[np.ndarray, "n"]:
    """Sample depths bilinearly if the four pixels belong to one surface, else at the nearest pixel."""
    pixel_depth = depth[np.floor(row).astype(int), np.floor(column).astype(int)].astype(np.float64)
    x = column - 0.5
    y = row - 0.5
    left = np.clip(np.floor(x).astype(int), 0, max(depth.shape[1] - 2, 0))
    top = np.clip(np.floor(y).astype(int), 0, max(depth.shape[0] - 2, 0))
    right = np.minimum(left + 1, depth.shape[1] - 1)
    below = np.minimum(top + 1, depth.shape[0] - 1)
    around = np.stack([depth[top, left], depth[top, right], depth[below, left], depth[below, right]])
    u = np.clip(x - left, 0, 1)
    v = np.clip(y - top, 0, 1)
    mean = around[0] * (1 - u) * (1 - v) + around[1] * u * (1 - v) + around[2] * (1 - u) * v + around[3] * u * v
    # Interpolation across a depth discontinuity would create surface between two objects.
    smooth = (around.min(0) > 0) & (np.ptp(around, axis=0) < edge) & (pixel_depth > 0)
    return np.where(smooth, mean, pixel_depth)


def _interpolated(
    mesh: Triangles, volume: _Volume, node_colors: list[tuple[np.ndarray, np.ndarray]]
) -> UInt8[np.ndarray, "n 3"]:
    """Interpolate vertex colors from the nodes around them; gray if none of these has a color."""
    node, first = np.unique(np.concatenate([nodes for nodes, _ in node_colors]), return_index=True)
    colors = np.concatenate([values for _, values in node_colors])[first]
    cells = (mesh.vertices - volume.low) / volume.cell
    # Trilinear weights over the colored nodes only, renormalized. Slabs may repeat a node: np.unique kept the first.
    base = np.clip(np.floor(cells).astype(np.int64), 0, np.array(volume.shape) - 2)
    fraction = cells - base
    total = np.zeros((len(cells), 3))
    weight = np.zeros(len(cells))
    for offset in np.ndindex(2, 2, 2):
        share = np.prod([fraction[:, a] if offset[a] else 1 - fraction[:, a] for a in range(3)], axis=0)
        wanted = np.ravel_multi_index(tuple((base + offset).T), volume.shape)
        index = np.minimum(np.searchsorted(node, wanted), len(node) - 1)
        # Nodes without color get weight 0; the floor keeps a vertex exactly on a node valid.
        share = np.where(node[index] == wanted, np.maximum(share, 1e-9), 0)
        total += share[:, None] * colors[index]
        weight += share
    known = weight > 0
    mean = np.where(known[:, None], total / np.where(known, weight, 1)[:, None], 128)
    return np.rint(mean).astype(np.uint8)
