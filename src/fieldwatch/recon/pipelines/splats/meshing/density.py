"""The surface where the density of the Gaussians is the level (SuGaR's ablation): marching cubes on the density."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial import KDTree

from fieldwatch.recon.losses import contributions, density
from fieldwatch.recon.mesh import Triangles, implicit_surface
from fieldwatch.recon.pipelines.splats.meshing.boxes import Box
from fieldwatch.recon.pipelines.splats.meshing.surface import NEIGHBOURS, OpaqueGaussians

_REACH = 4.0  # standard deviations beyond which a Gaussian adds nothing
_POINTS_AT_ONCE = 1 << 15


def density_surface(
    gaussians: OpaqueGaussians, level: float, box: Box, resolution: int, on_block: Callable[[int, int], None]
) -> Triangles:
    """Return the closed surface of what is denser than the level; thin discs give two sheets.

    Args:
        gaussians: the opaque ones.
        level: of the density of the 16 nearest.
        box: what is meshed.
        resolution: cells along its longest side.
        on_block: called with the number of blocks of the box that are done, and of all.
    """
    shapes = gaussians.ellipsoids
    tree = KDTree(shapes.means.double().numpy())
    farthest = _REACH * float(shapes.scales.max())
    count = min(NEIGHBOURS, len(shapes.means))

    def level_minus_density(points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Below 0 inside."""
        values = np.full(len(points), level)
        # One neighbour first: most of the box is far from every Gaussian, and the search for 16 takes long.
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
