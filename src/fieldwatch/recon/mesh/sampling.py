"""Uniform point sampling of surfaces."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles


@dataclass(frozen=True, kw_only=True, eq=False)
class SurfaceSamples:
    """Points sampled on a surface.

    Attributes:
        points: positions in world units.
        normals: unit normals of the sampled faces.
    """

    points: Float64[np.ndarray, "n 3"]
    normals: Float64[np.ndarray, "n 3"]

    def __len__(self) -> int:
        return len(self.points)

    def chosen(self, which: Bool[np.ndarray, "n"] | Int64[np.ndarray, "k"]) -> "SurfaceSamples":
        """Return the selected points."""
        return SurfaceSamples(points=self.points[which], normals=self.normals[which])


def sample_surface(mesh: Triangles, count: int, *, seed: int = 0) -> SurfaceSamples:
    """Sample points uniformly by area.

    The sampling is stratified: the cumulative area of the faces is cut into `count` equal intervals, with one point in
    each. A face of k intervals gets between k - 1 and k + 1 points.

    Raises:
        MeshError: the mesh has no area, or `count` is below 1.
    """
    total = float(mesh.areas.sum())
    if count < 1 or not total > 0:
        raise MeshError(
            f"cannot sample {count} points on {len(mesh.faces)} faces with an area of {total:g}: give at least one "
            "point and a surface with an area"
        )
    # PCG64 by name: the default generator of numpy may change.
    generator = np.random.Generator(np.random.PCG64(seed))
    ends = np.cumsum(mesh.areas)
    # One position in each of `count` equal intervals of the cumulative area.
    positions = (np.arange(count) + generator.random(count)) * (ends[-1] / count)
    # Only faces with area, clipped to the last one: rounding may put a position at the very end of the area.
    with_area = np.flatnonzero(mesh.areas > 0)
    faces = with_area[np.searchsorted(ends[with_area], positions, side="right").clip(max=len(with_area) - 1)]
    # The square root makes the points uniform over the triangle (Osada et al., Shape distributions, 2002).
    root = np.sqrt(generator.random(count))
    share = generator.random(count)
    weights = np.stack([1 - root, root * (1 - share), root * share], axis=1)
    points = np.einsum("nc,nci->ni", weights, mesh.corners[faces])
    return SurfaceSamples(points=points, normals=mesh.normals[faces])


def thinned(samples: SurfaceSamples, spacing: float) -> SurfaceSamples:
    """Keep one sample per cell of a cubic grid: the one nearest to the mean of the samples in the cell.

    This evens out regions denser than the grid. Point clouds from many cameras are densest where their views overlap.

    Raises:
        MeshError: the spacing is not positive.
    """
    if not spacing > 0:
        raise MeshError(f"the spacing to thin points to must be greater than 0, got {spacing:g}")
    low = samples.points.min(0, initial=np.inf)
    cells = np.floor((samples.points - low) / spacing).astype(np.int64)
    _, cell, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    means = np.stack([np.bincount(cell, samples.points[:, axis], len(counts)) for axis in range(3)], 1)
    squared_offset = np.square(samples.points - (means / counts[:, None])[cell]).sum(1)
    # Sorted by cell, then by distance from the mean: the first row of each cell is kept.
    order = np.lexsort((squared_offset, cell))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, np.int64)
    return samples.chosen(np.sort(order[first]))
