"""Points spread evenly over a surface."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles


@dataclass(frozen=True, kw_only=True, eq=False)
class SurfaceSamples:
    """Points of a surface.

    Attributes:
        points: places, in units of the scene.
        normals: of the faces that they lie on.
    """

    points: Float64[np.ndarray, "n 3"]
    normals: Float64[np.ndarray, "n 3"]

    def __len__(self) -> int:
        return len(self.points)

    def chosen(self, which: Bool[np.ndarray, "n"] | Int64[np.ndarray, "k"]) -> "SurfaceSamples":
        """Return some of them."""
        return SurfaceSamples(points=self.points[which], normals=self.normals[which])


def sample_surface(mesh: Triangles, count: int, *, seed: int = 0) -> SurfaceSamples:
    """Return points that are spread over a mesh by area.

    Stratified: the area, laid out face after face, is cut into `count` equal lengths, and each gets one point; a face
    of k such lengths gets between k - 1 and k + 1 points.

    Raises:
        MeshError: the mesh has no area, or less than one point is asked for.
    """
    total = float(mesh.areas.sum())
    if count < 1 or not total > 0:
        raise MeshError(
            f"{count} points of a mesh of {len(mesh.faces)} faces and an area of {total:g} were asked for: wanted is "
            "at least one point, of a surface that has an area"
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    ends = np.cumsum(mesh.areas)
    positions = (np.arange(count) + generator.random(count)) * (ends[-1] / count)
    with_area = np.flatnonzero(mesh.areas > 0)  # the end of the last could be met by rounding
    faces = with_area[np.searchsorted(ends[with_area], positions, side="right").clip(max=len(with_area) - 1)]
    # The square root makes points uniform over the triangle.
    root = np.sqrt(generator.random(count))
    share = generator.random(count)
    weights = np.stack([1 - root, root * (1 - share), root * share], axis=1)
    points = np.einsum("nc,nci->ni", weights, mesh.corners[faces])
    return SurfaceSamples(points=points, normals=mesh.normals[faces])


def thinned(samples: SurfaceSamples, spacing: float) -> SurfaceSamples:
    """Return one sample of every cube of a grid: the one nearest to the mean of those in the cube.

    What lies denser than the grid becomes even; clouds seen from many cameras are densest where most of these look.

    Raises:
        MeshError: the spacing is not above 0.
    """
    if not spacing > 0:
        raise MeshError(f"points were to be thinned to a spacing of {spacing:g}: wanted is a length above 0")
    low = samples.points.min(0, initial=np.inf)
    cells = np.floor((samples.points - low) / spacing).astype(np.int64)
    _, cell, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    means = np.stack([np.bincount(cell, samples.points[:, axis], len(counts)) for axis in range(3)], 1)
    squared_offset = np.square(samples.points - (means / counts[:, None])[cell]).sum(1)
    order = np.lexsort((squared_offset, cell))
    first = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.zeros(0, np.int64)
    return samples.chosen(np.sort(order[first]))
