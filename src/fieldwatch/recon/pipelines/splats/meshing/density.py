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

_REACH = 4.0  # standard deviations from which a Gaussian adds nothing
_AT_ONCE = 1 << 15  # places


def density_surface(
    gaussians: OpaqueGaussians, level: float, box: Box, resolution: int, on_block: Callable[[int, int], None]
) -> Triangles:
    """Return the closed surface of what is denser than the level; thin discs give two sheets.

    Args:
        gaussians: the opaque ones.
        level: of the density of the 16 nearest.
        box: what is looked at.
        resolution: cells along its longest side.
        on_block: told how many blocks of the box are done, of how many.
    """
    shapes = gaussians.ellipsoids
    tree = KDTree(shapes.means.double().numpy())
    farthest = _REACH * float(shapes.scales.max())
    count = min(NEIGHBOURS, len(shapes.means))

    def beyond(points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Level minus density: below 0 inside."""
        values = np.full(len(points), level)
        nearest, _ = tree.query(points, k=1, distance_upper_bound=farthest)
        near = np.flatnonzero(np.isfinite(nearest))
        for first in range(0, len(near), _AT_ONCE):
            some = near[first : first + _AT_ONCE]
            rows = np.reshape(tree.query(points[some], k=count)[1], (-1, count))
            places = torch.from_numpy(points[some]).to(shapes.means)
            found = density(contributions(places, torch.from_numpy(rows), shapes))
            values[some] = level - found.double().numpy()
        return values

    return implicit_surface(beyond, box.low, box.high, resolution=resolution, on_block=on_block)
