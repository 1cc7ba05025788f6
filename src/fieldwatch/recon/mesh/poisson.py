"""Screened Poisson surface reconstruction from oriented points, solved with the fast Fourier transform."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy.ndimage import binary_dilation

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.marching import marching_cubes
from fieldwatch.recon.mesh.point_queries import check_filled, nearest_colors, sample_density, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson_grid import Grid, check_memory, grid_around
from fieldwatch.recon.mesh.poisson_solver import Progress, indicator, merge_samples
from fieldwatch.recon.mesh.triangles import Triangles

_LEAST_POINTS = 16
_LEAST_RESOLUTION = 32
_SLOPE = 0.4  # slope of the indicator across the surface, per cell
_BATCH = 1 << 18  # positions per call of `outside`

Seen = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, "n"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonSurface:
    """A reconstructed surface with the density of its samples.

    Attributes:
        mesh: closed mesh with outward faces; each vertex has the color of the nearest point.
        density: sample density at each vertex, in samples per squared cell size.
        cell: cell size of the grid in world units.
    """

    mesh: Triangles
    density: Float64[np.ndarray, "n"]
    cell: float


def poisson_surface(  # noqa: PLR0913 (keywords of the reconstruction, each with its default)
    points: OrientedPoints,
    *,
    resolution: int = 256,
    screening: float = 0.2,
    memory: int | None = None,
    outside: Seen | None = None,
    on_progress: Progress | None = None,
) -> PoissonSurface:
    """Reconstruct a closed surface from oriented points.

    Poisson reconstruction (Kazhdan, Bolitho & Hoppe 2006; screened, Kazhdan & Hoppe 2013) on one regular grid. The
    normals are splatted as a vector field, with wider kernels where points are sparse. The indicator function whose
    gradient is closest to this field is computed in Fourier space. Points in the same cell are merged first.

    Args:
        points: at least 16 points with outward normals. Regions without points are closed smoothly.
        resolution: number of cells along the longest side of the bounding box with its margin (1/8 on each side).
        screening: weight of the point positions; 0 fits the normals alone, values much larger than 1 fit noise.
        memory: memory limit in bytes. The peak is estimated as 12.5 bytes per grid node (200 MiB at 256 x 256 x 256,
            680 MiB at 384 x 384 x 384) plus 150 bytes per point. Measured peaks at these sizes were 160 to 173 MiB and
            606 MiB, with up to a million points.
        outside: returns the distance of positions in front of the observed surface, in world units; positive means
            empty space. The surface stays where this is below one cell. Called at every second node that would be
            inside.
        on_progress: called with a stage (splat, solve, screen, surface) and the fraction of the total work done.

    Raises:
        MeshError: there are too few points, all points coincide, the resolution is below 32, or the grid does not fit
            into `memory`; the message then has the resolution that fits.
    """
    check_filled(points, _LEAST_POINTS, "Poisson reconstruction")
    if resolution < _LEAST_RESOLUTION or not screening >= 0:
        raise MeshError(
            f"Poisson reconstruction needs a resolution of at least {_LEAST_RESOLUTION} and a screening of at least 0, "
            f"got {resolution} and {screening}"
        )
    if not np.ptp(points.points, axis=0).max() > 0:
        raise MeshError(f"all {len(points)} points are at one position: check the step that made them")
    if memory is not None:
        check_memory(points.points, resolution, memory)
    grid = grid_around(points.points, resolution)
    samples = merge_samples(points, grid)
    values = indicator(samples, grid, screening=screening, on_progress=on_progress)
    if outside is not None:
        _carve(values, grid, outside)
    if on_progress is not None:
        on_progress("surface", 0.7)
    _close(values)
    mesh = marching_cubes(values, low=grid.low, cell=grid.cell, closed=False)
    # The grid is the largest array: free it before the density search.
    del values
    density = sample_density(search_tree(samples.positions), mesh.vertices, samples.counts)
    return PoissonSurface(mesh=_colored(mesh, points), density=density * grid.cell**2, cell=grid.cell)


def _close(values: Float32[np.ndarray, "x y z"]) -> None:
    """Set the border of the grid to outside, which closes the surface."""
    for axis in range(3):
        layers = np.moveaxis(values, axis, 0)
        for layer in (layers[0], layers[-1]):
            # The indicator is +1/2 outside.
            np.maximum(layer, 0.5, out=layer)


def _carve(values: Float32[np.ndarray, "x y z"], grid: Grid, outside: Seen) -> None:
    """Raise the indicator in observed empty space, so that the inside becomes the intersection of both regions.

    A distance of one cell is left, so that the points still determine the surface where there are any.
    """
    # A coarse node is evaluated if it or a neighbor along an axis may be inside.
    inner = values[::2, ::2, ::2] < _SLOPE
    inner |= values[1::2, ::2, ::2] < _SLOPE
    inner |= values[::2, 1::2, ::2] < _SLOPE
    inner |= values[::2, ::2, 1::2] < _SLOPE
    # Every second node suffices: the bound is interpolated linearly between them.
    nodes = np.argwhere(_spread(inner))
    bound = np.full(inner.shape, -0.5, np.float32)
    for start in range(0, len(nodes), _BATCH):
        node = nodes[start : start + _BATCH]
        empty_cells = outside(grid.low + 2 * grid.cell * node) / grid.cell - 1
        if not np.isfinite(empty_cells).all():
            raise MeshError("the function of observed empty space returned a value that is not finite: check it")
        bound[tuple(node.T)] = np.clip(_SLOPE * empty_cells, -0.5, 0.5)
    # Plane by plane, so that no second grid of full size is needed.
    for row in range(len(values)):
        coarse_row = row // 2
        plane = (
            bound[coarse_row] if row % 2 == 0 else (bound[coarse_row] + bound[min(coarse_row + 1, len(bound) - 1)]) / 2
        )
        np.maximum(values[row], _widened(_widened(plane).T).T, out=values[row])


def _widened(plane: Float32[np.ndarray, "u w"]) -> Float32[np.ndarray, "v w"]:
    """Double the rows of a plane by linear interpolation; the last row is repeated."""
    result = np.repeat(plane, 2, axis=0)
    result[1:-1:2] = (plane[:-1] + plane[1:]) / 2
    return result


def _spread(inner: Bool[np.ndarray, "u v w"]) -> Bool[np.ndarray, "u v w"]:
    """Dilate by one node: values between nodes are interpolated from these neighbors."""
    return binary_dilation(inner, np.ones((3, 3, 3), np.bool_))


def _colored(mesh: Triangles, points: OrientedPoints) -> Triangles:
    """Give each vertex the color of the nearest point, if the points have colors."""
    return replace(mesh, colors=nearest_colors(mesh.vertices, points))
