"""Level set of the Gaussians' density by marching cubes (SuGaR's ablation)."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial import KDTree

from fieldwatch.recon.losses import contributions, density
from fieldwatch.recon.mesh import Triangles, implicit_surface
from fieldwatch.recon.pipelines.splats.meshing.boxes import Box
from fieldwatch.recon.pipelines.splats.meshing.surface import NEIGHBORS, OpaqueGaussians

_REACH = 4.0  # standard deviations beyond which a Gaussian's density is negligible
_POINTS_AT_ONCE = 1 << 15


def density_surface(
    gaussians: OpaqueGaussians, level: float, box: Box, resolution: int, on_block: Callable[[int, int], None]
) -> Triangles:
    """Return the closed surface of the region denser than the level; thin discs give two sheets.

    Args:
        gaussians: opaque Gaussians.
        level: level of the density, which is summed over the 16 nearest Gaussians.
        box: box to mesh.
        resolution: number of cells along its longest side.
        on_block: function called with the number of finished blocks and of all blocks.
    """
    shapes = gaussians.ellipsoids
    tree = KDTree(shapes.means.double().numpy())
    farthest = _REACH * float(shapes.scales.max())
    count = min(NEIGHBORS, len(shapes.means))

    def level_minus_density(points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Return negative values inside the surface."""
        values = np.full(len(points), level)
        # First a query for one neighbor: most of the box is far from every Gaussian, and queries for 16 are slow.
        # Beyond the bound the distance is infinite, and the density stays at 0.
        nearest, _ = tree.query(points, k=1, distance_upper_bound=farthest)
        near = np.flatnonzero(np.isfinite(nearest))
        for first in range(0, len(near), _POINTS_AT_ONCE):
            chunk = near[first : first + _POINTS_AT_ONCE]
            rows = np.reshape(tree.query(points[chunk], k=count)[1], (-1, count))
            positions = torch.from_numpy(points[chunk]).to(shapes.means)
            densities = density(contributions(positions, torch.from_numpy(rows), shapes))
            values[chunk] = level - densities.double().numpy()
        return values

    return implicit_surface(level_minus_density, box.low, box.high, resolution=resolution, on_block=on_block)
