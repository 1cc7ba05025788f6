"""Surfaces from oriented points: screened Poisson reconstruction, solved with the fast Fourier transform."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy.ndimage import binary_dilation

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.marching import marching_cubes
from fieldwatch.recon.mesh.point_queries import check_filled, nearest_colours, sample_density, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson_grid import Grid, check_memory, grid_around
from fieldwatch.recon.mesh.poisson_solver import Progress, indicator, merge_samples
from fieldwatch.recon.mesh.triangles import Triangles

_LEAST_POINTS = 16
_LEAST_RESOLUTION = 32
_SLOPE = 0.4  # of the indicator across the surface, per cell
_BATCH = 1 << 18  # places for which it is asked at once whether they were seen empty

Seen = Callable[[Float64[np.ndarray, "n 3"]], Float64[np.ndarray, "n"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonSurface:
    """A surface from points, and how well these support it.

    Attributes:
        mesh: closed, faces outward, coloured like the points nearest to its vertices.
        density: of the samples at each vertex: how many there are on the area of a cell's side.
        cell: length of the edge of a cell of the grid it was found on, in world units.
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
    """Return the closed surface that follows oriented points.

    Poisson reconstruction (Kazhdan, Bolitho & Hoppe 2006; screened, Kazhdan & Hoppe 2013) on one grid of cubic cells:
    the normals are splatted as a vector field, wider where points are sparse, and the indicator whose gradient comes
    closest is found in Fourier space. Points in the same cell are merged first.

    Args:
        points: at least 16, with normals outward. Where there are none, the surface is closed smoothly.
        resolution: cells along the longest side of the points' box with its margin (1/8 on each side).
        screening: how strongly the surface is pulled onto the points; 0 follows the normals alone. Much more than 1
            follows the noise.
        memory: bytes that the reconstruction may take. At its peak it takes 12.5 bytes per node of the grid (so 200 MiB
            at 256 x 256 x 256, 680 MiB at 384 x 384 x 384) and 150 bytes per point. Measured at these two sizes were
            160 to 173 and 606 MiB, with up to a million points.
        outside: says how far, in world units, places lie in front of what the photos see; positive is empty space. The
            surface keeps to where it is below one cell. It is asked at every second node that would be inside.
        on_progress: told a stage (splat, solve, screen, surface) and the share of all that is done.

    Raises:
        MeshError: too few points, all at one place, a resolution below 32, or the grid does not fit into `memory`; it
            says which resolution does.
    """
    check_filled(points, _LEAST_POINTS, "Poisson reconstruction")
    if resolution < _LEAST_RESOLUTION or not screening >= 0:
        raise MeshError(
            f"Poisson reconstruction was asked for with resolution {resolution} and screening {screening}: the "
            f"resolution must be {_LEAST_RESOLUTION} or more, the screening 0 or more"
        )
    if not np.ptp(points.points, axis=0).max() > 0:
        raise MeshError(f"all {len(points)} points lie at one place: there is no surface to find, look at their source")
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
    # The grid is the largest array here: free it before the density search.
    del values
    density = sample_density(search_tree(samples.positions), mesh.vertices, samples.counts)
    return PoissonSurface(mesh=_colored(mesh, points), density=density * grid.cell**2, cell=grid.cell)


def _close(values: Float32[np.ndarray, "x y z"]) -> None:
    """Put the border of the grid outside."""
    for axis in range(3):
        layers = np.moveaxis(values, axis, 0)
        for layer in (layers[0], layers[-1]):
            # +1/2 is the indicator's value outside.
            np.maximum(layer, 0.5, out=layer)


def _carve(values: Float32[np.ndarray, "x y z"], grid: Grid, outside: Seen) -> None:
    """Raise values where space was seen to be empty: the surface is then that of the two regions' overlap.

    A cell of distance is left, so that where points are, the surface stays theirs.
    """
    # A coarse node counts when any of its neighbors may be inside.
    inner = values[::2, ::2, ::2] < _SLOPE
    inner |= values[1::2, ::2, ::2] < _SLOPE
    inner |= values[::2, 1::2, ::2] < _SLOPE
    inner |= values[::2, ::2, 1::2] < _SLOPE
    nodes = np.argwhere(_spread(inner))
    bound = np.full(inner.shape, -0.5, np.float32)
    for start in range(0, len(nodes), _BATCH):
        node = nodes[start : start + _BATCH]
        empty_cells = outside(grid.low + 2 * grid.cell * node) / grid.cell - 1
        if not np.isfinite(empty_cells).all():
            raise MeshError("the function of the space seen empty is not finite somewhere: look at what made it")
        bound[tuple(node.T)] = np.clip(_SLOPE * empty_cells, -0.5, 0.5)
    for row in range(len(values)):
        coarse_row = row // 2
        plane = (
            bound[coarse_row] if row % 2 == 0 else (bound[coarse_row] + bound[min(coarse_row + 1, len(bound) - 1)]) / 2
        )
        np.maximum(values[row], _widened(_widened(plane).T).T, out=values[row])


def _widened(plane: Float32[np.ndarray, "u w"]) -> Float32[np.ndarray, "v w"]:
    """Return a plane with twice as many rows: every second one the mean of its neighbours, the last repeated."""
    result = np.repeat(plane, 2, axis=0)
    result[1:-1:2] = (plane[:-1] + plane[1:]) / 2
    return result


def _spread(inner: Bool[np.ndarray, "u v w"]) -> Bool[np.ndarray, "u v w"]:
    """Return true nodes with their neighbours, which the values between nodes are interpolated from."""
    return binary_dilation(inner, np.ones((3, 3, 3), np.bool_))


def _colored(mesh: Triangles, points: OrientedPoints) -> Triangles:
    """Return a mesh with the colours of the points nearest to its vertices, if they have any."""
    return replace(mesh, colours=nearest_colours(mesh.vertices, points))
