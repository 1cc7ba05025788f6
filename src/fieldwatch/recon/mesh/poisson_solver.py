"""The indicator function of a screened Poisson reconstruction at the nodes of a grid."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex64, Float32, Float64, Int64
from scipy.sparse import csr_array, vstack

from fieldwatch.recon.mesh.point_queries import sample_areas, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson_grid import (
    Grid,
    add_coarse,
    add_upsampled,
    reading_matrix,
    solve_poisson,
    spectrum,
    splat_divergence,
)

_CELL_SHARE = 0.8  # least cell size of the grid for a sample, relative to the square root of its area
_SCREEN_HALVINGS = 2  # number of times the grid is halved for the screening
_STEPS = 20  # maximum number of conjugate gradient steps
_TOLERANCE = 1e-3
_BORDER_SPACING = 4  # coarse cells between constrained nodes on the border

Progress = Callable[[str, float], None]


class MergedSamples(NamedTuple):
    """Surface samples, at most one per grid cell.

    Attributes:
        positions: mean position of the points in each cell.
        normals: mean normal in each cell; shorter than 1 if the normals differ.
        areas: surface area that each sample represents, in squared world units.
        counts: number of points merged into each sample.
    """

    positions: Float64[np.ndarray, "n 3"]
    normals: Float64[np.ndarray, "n 3"]
    areas: Float64[np.ndarray, "n"]
    counts: Float64[np.ndarray, "n"]


def merge_samples(points: OrientedPoints, grid: Grid) -> MergedSamples:
    """Average the points in each cell; more than one sample per cell would only cost time."""
    number, counts = _cells(points.points, grid)
    positions = _means(points.points, number, counts)
    normals = _means(points.normals, number, counts)
    areas = sample_areas(search_tree(positions), positions)
    return MergedSamples(positions=positions, normals=normals, areas=areas, counts=counts.astype(np.float64))


def _cells(positions: Float64[np.ndarray, "n 3"], grid: Grid) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "m"]]:
    """Return the index of each position's cell among the occupied cells, and the number of positions per cell."""
    cells = np.floor((positions - grid.low) / grid.cell).astype(np.int64)
    flat = np.ravel_multi_index(tuple(cells.T), grid.shape)
    _, number, counts = np.unique(flat, return_inverse=True, return_counts=True)
    return number.reshape(-1).astype(np.int64), counts.astype(np.int64)


def _means(
    values: Float64[np.ndarray, "n 3"], number: Int64[np.ndarray, "n"], counts: Int64[np.ndarray, "m"]
) -> Float64[np.ndarray, "m 3"]:
    sums = [np.bincount(number, values[:, axis], len(counts)) for axis in range(3)]
    return np.stack(sums, axis=1) / counts[:, None]


def indicator(
    samples: MergedSamples, grid: Grid, *, screening: float, on_progress: Progress | None = None
) -> Float32[np.ndarray, "x y z"]:
    """Compute the indicator: about -1/2 inside and +1/2 outside, with mean 0 over the samples.

    The indicator f minimizes |grad f - V|² + (screening / cell) * sum of area * f(sample)² (Kazhdan & Hoppe 2013,
    eq. 3), where V is the normal field. The first term alone is solved on the full grid. The second term adds the
    potential of charges on the surface. These are computed on cells four times as wide, so they correct smooth errors
    and do not fit noise.
    """
    _report_progress(on_progress, "splat", 0.0)
    source = _source(samples, grid)
    _report_progress(on_progress, "solve", 0.0)
    values = solve_poisson(source, grid)
    del source
    read = reading_matrix(grid, samples.positions)
    # The isovalue is the mean over the samples (Kazhdan 2006).
    values -= np.float32(np.average(_read(read, values), weights=samples.areas))
    if screening > 0:
        _report_progress(on_progress, "screen", 0.0)
        _screen(values, _read(read, values), samples, grid, screening)
        values -= np.float32(np.average(_read(read, values), weights=samples.areas))
    return values


def _report_progress(on_progress: Progress | None, stage: str, share: float) -> None:
    if on_progress is not None:
        on_progress(stage, share)


def _read(matrix: csr_array, values: Float32[np.ndarray, "x y z"]) -> Float64[np.ndarray, "n"]:
    return np.asarray(matrix @ values.reshape(-1), np.float64)


def _source(samples: MergedSamples, grid: Grid) -> Complex64[np.ndarray, "x y h"]:
    """Return the spectrum of the negative divergence of the normal field.

    Sparse samples are splatted onto coarser grids, so that the field has no gaps between them.
    """
    # Side of the square that a sample represents, in cells.
    side = np.sqrt(samples.areas) * _CELL_SHARE / grid.cell
    # The level at which the kernels of neighboring samples overlap.
    level = np.clip(np.ceil(np.log2(np.maximum(side, 1))), 0, grid.halvings).astype(np.int64)
    vectors = -samples.normals * samples.areas[:, None]
    total = spectrum(splat_divergence(grid, samples.positions[level == 0], vectors[level == 0]))
    for number in range(1, grid.halvings + 1):
        at_level = level == number
        if at_level.any():
            coarse = splat_divergence(grid.coarser(number), samples.positions[at_level], vectors[at_level])
            # A coarse grid has 8 ** number times fewer nodes, and the transform sums over nodes.
            add_coarse(total, spectrum(coarse), float(8**number))
    return total


def _screen(
    values: Float32[np.ndarray, "x y z"],
    residual: Float64[np.ndarray, "n"],
    samples: MergedSamples,
    grid: Grid,
    screening: float,
) -> None:
    """Add the potential of charges that move the values at samples toward 0 and at the border toward +1/2."""
    coarse = grid.coarser(_SCREEN_HALVINGS)
    number, counts = _cells(samples.positions, coarse)
    areas = np.bincount(number, samples.areas)
    share = csr_array((samples.areas / areas[number], (number, np.arange(len(number)))), (len(counts), len(number)))
    border = _border(coarse.shape)
    # The constraint pulls the border toward +1/2, so that the surface closes inside the grid.
    border_values = values[:: 1 << _SCREEN_HALVINGS, :: 1 << _SCREEN_HALVINGS, :: 1 << _SCREEN_HALVINGS].reshape(-1)[
        border
    ]
    border_reading = csr_array((np.ones(len(border)), (np.arange(len(border)), border)), (len(border), coarse.nodes))
    sites = _Sites(
        grid=coarse,
        reading=csr_array(
            vstack([share @ reading_matrix(coarse, samples.positions), border_reading]), dtype=np.float32
        ),
        areas=np.concatenate([areas, np.full(len(border), (_BORDER_SPACING * coarse.cell) ** 2)]),
    )
    errors = np.concatenate([share @ residual, border_values - 0.5])
    add_upsampled(values, sites.correction(errors, grid.cell / screening), _SCREEN_HALVINGS)


def _border(shape: tuple[int, int, int]) -> Int64[np.ndarray, "n"]:
    """Return a regular subset of the nodes in the first layers; in a periodic grid, these are the whole border."""
    place = np.indices(shape).reshape(3, -1)
    return np.flatnonzero((place == 0).any(0) & (place % _BORDER_SPACING == 0).all(0))


class _Sites(NamedTuple):
    """Sites of the screening: the matrix that interpolates the coarse grid at them, and the area each represents."""

    grid: Grid
    reading: csr_array
    areas: Float64[np.ndarray, "n"]

    def correction(self, errors: Float64[np.ndarray, "n"], softness: float) -> Float32[np.ndarray, "x y z"]:
        """Return the correction on the coarse grid for a function with given errors at the sites.

        The charges q solve softness / area * q + (potential of q) = errors - constant, with sum(q) = 0. Scaled by the
        square roots of the areas, the system is symmetric; conjugate gradients solve it on the subspace of that sum.
        """
        # Scaling by the roots of the areas makes the system symmetric.
        root = np.sqrt(self.areas)
        constant = root / np.linalg.norm(root)

        def balanced(values: np.ndarray) -> np.ndarray:
            return values - constant * (constant @ values)

        def applied(charges: np.ndarray) -> np.ndarray:
            there = self.reading @ self.potential(root * charges).reshape(-1)
            return balanced(softness * charges + root * there)

        charges = np.zeros(len(root))
        residual = balanced(root * errors)
        step = residual
        square = float(residual @ residual)
        target = _TOLERANCE**2 * square
        # Conjugate gradients on the charges with total 0 (Hestenes & Stiefel 1952).
        for _ in range(_STEPS):
            if square <= target:
                break
            applied_step = applied(step)
            step_length = square / float(step @ applied_step)
            charges = charges + step_length * step
            residual = residual - step_length * applied_step
            last = square
            square = float(residual @ residual)
            step = residual + square / last * step
        return -self.potential(root * charges)

    def potential(self, charges: Float64[np.ndarray, "n"]) -> Float32[np.ndarray, "x y z"]:
        """Return the potential of charges at the sites, on the coarse grid."""
        # Splatting is the transpose of the interpolation, which keeps the system symmetric.
        spread = (self.reading.T @ (charges / self.grid.cell**3)).astype(np.float32)
        return solve_poisson(spectrum(spread.reshape(self.grid.shape)), self.grid)
