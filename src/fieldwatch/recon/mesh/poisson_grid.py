"""The grid of a Poisson reconstruction: size, memory, splatting, interpolation and the Poisson equation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import scipy.fft
from jaxtyping import Complex64, Float32, Float64, Int64
from scipy.sparse import csr_array

from fieldwatch.recon.mesh.error import MeshError

_MARGIN = 0.125  # margin on each side, as a fraction of the longest side of the bounding box
_LEAST_MARGIN = 6  # cells
_HALVINGS = 5  # maximum number of coarser levels
_BYTES_A_NODE = 12.5  # measured, see `poisson_surface`
_BYTES_A_POINT = 150.0
_CHUNK = 1 << 17

Shape = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """A periodic grid with nodes at `low + (i, j, k) * cell`.

    Attributes:
        shape: number of nodes along each axis.
        low: position of the first node in world units.
        cell: distance between neighboring nodes in world units.
    """

    shape: Shape
    low: Float64[np.ndarray, "3"]
    cell: float

    @property
    def nodes(self) -> int:
        """Total number of nodes."""
        return int(np.prod(self.shape))

    @property
    def halvings(self) -> int:
        """Number of times the grid can be halved over the same box."""
        return max(level for level in range(_HALVINGS + 1) if all(size % (1 << level) == 0 for size in self.shape))

    def coarser(self, level: int) -> "Grid":
        """Return the grid with every 2 ** level-th node."""
        step = 1 << level
        x, y, z = (size // step for size in self.shape)
        return Grid(shape=(x, y, z), low=self.low, cell=self.cell * step)


def grid_around(points: Float64[np.ndarray, "n 3"], resolution: int) -> Grid:
    """Return the grid around points, with `resolution` cells along the longest side including margins."""
    low = points.min(0)
    high = points.max(0)
    longest = float((high - low).max())
    # The periodic images of the object must not touch.
    margin = max(_MARGIN, _LEAST_MARGIN / max(resolution - 2 * _LEAST_MARGIN, 1))
    cell = longest * (1 + 2 * margin) / resolution
    # Each axis is rounded up separately; the cells stay cubic.
    x, y, z = (_fast_size(length / cell + 2 * margin * longest / cell) for length in high - low)
    middle = (low + high) / 2
    return Grid(shape=(x, y, z), low=middle - cell * (np.array([x, y, z]) - 1) / 2, cell=cell)


def _fast_size(wanted: float) -> int:
    """Round up to a number of nodes that is fast for the FFT and divisible by a power of 2."""
    unit = 32 if wanted >= 128 else 8
    return unit * int(scipy.fft.next_fast_len(int(np.ceil(wanted / unit - 1e-9)), real=False) or 1)


def memory_needed(grid: Grid, points: int) -> int:
    """Estimate the peak memory of a reconstruction in bytes, without the points themselves."""
    return int(_BYTES_A_NODE * grid.nodes + _BYTES_A_POINT * points)


def check_memory(points: Float64[np.ndarray, "n 3"], resolution: int, memory: int) -> None:
    """Check that the grid fits into memory.

    Raises:
        MeshError: the grid does not fit; the message has the memory needed and the resolution that fits.
    """
    needed = memory_needed(grid_around(points, resolution), len(points))
    if needed <= memory:
        return
    # Candidate resolutions for the advice, in steps that users would try.
    sizes = range(32, resolution, 8)
    fitting = [size for size in sizes if memory_needed(grid_around(points, size), len(points)) <= memory]
    advice = f"a resolution of {fitting[-1]} fits" if fitting else "no useful resolution fits: thin out the points"
    raise MeshError(
        f"a Poisson reconstruction at resolution {resolution} of {len(points)} points needs {needed / 2**20:.0f} MiB, "
        f"the limit is {memory / 2**20:.0f} MiB: {advice}, or raise the limit"
    )


def splat_divergence(
    grid: Grid, positions: Float64[np.ndarray, "n 3"], vectors: Float64[np.ndarray, "n 3"]
) -> Float32[np.ndarray, "x y z"]:
    """Return the divergence of a field of point vectors, each smoothed by a cubic B-spline of one cell.

    Args:
        grid: grid to splat onto.
        positions: positions of the vectors in world units.
        vectors: integrals of the vectors: normals times the area they represent, in squared world units.
    """
    result = np.zeros(grid.nodes, np.float32)
    scale = 1 / grid.cell**4  # for a kernel of integral 1 (cell ** -3), differentiated once
    for chunk in _chunks(len(positions)):
        node, values, slopes = _splines((positions[chunk] - grid.low) / grid.cell)
        for offsets in product(range(4), repeat=3):
            contribution = np.zeros(len(node))
            for axis in range(3):
                factors = [
                    (slopes if other_axis == axis else values)[:, other_axis, offsets[other_axis]]
                    for other_axis in range(3)
                ]
                contribution += vectors[chunk, axis] * factors[0] * factors[1] * factors[2]
            # np.add.at is unbuffered: several points of a chunk may add to one node.
            np.add.at(result, _flat(grid, node, offsets), (contribution * scale).astype(np.float32))
    return result.reshape(grid.shape)


def _chunks(count: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, count, _CHUNK))


def _flat(grid: Grid, node: Int64[np.ndarray, "n 3"], offsets: Iterable[int]) -> Int64[np.ndarray, "n"]:
    x, y, z = (np.remainder(node[:, axis] + offset, grid.shape[axis]) for axis, offset in enumerate(offsets))
    return (x * grid.shape[1] + y) * grid.shape[2] + z


def _splines(
    cells: Float64[np.ndarray, "n 3"],
) -> tuple[Int64[np.ndarray, "n 3"], Float64[np.ndarray, "n 3 4"], Float64[np.ndarray, "n 3 4"]]:
    """Return the first of the four nodes along each axis, the cubic B-spline values and their derivatives."""
    base = np.floor(cells)
    t = cells - base
    u = 1 - t
    values = np.stack([u**3, 3 * t**3 - 6 * t**2 + 4, 3 * u**3 - 6 * u**2 + 4, t**3], axis=-1) / 6
    # Derivatives by the node position, so with the opposite sign of those by t.
    slopes = np.stack([u**2, 4 * t - 3 * t**2, 3 * u**2 - 4 * u, -(t**2)], axis=-1) / 2
    return base.astype(np.int64) - 1, values, slopes


def reading_matrix(grid: Grid, positions: Float64[np.ndarray, "n 3"]) -> csr_array:
    """Return the sparse matrix that interpolates node values trilinearly at positions; its transpose splats."""
    cells = (positions - grid.low) / grid.cell
    base = np.floor(cells)
    fraction = (cells - base).astype(np.float32)
    node = base.astype(np.int64)
    # 32-bit indices, where they suffice, halve the memory of the matrix.
    columns = np.empty((len(positions), 8), np.int32 if grid.nodes < 1 << 31 else np.int64)
    weights = np.empty((len(positions), 8), np.float32)
    for number, offsets in enumerate(product(range(2), repeat=3)):
        factors = [fraction[:, axis] if offset else 1 - fraction[:, axis] for axis, offset in enumerate(offsets)]
        columns[:, number] = _flat(grid, node, offsets)
        weights[:, number] = factors[0] * factors[1] * factors[2]
    starts = np.arange(len(positions) + 1, dtype=columns.dtype) * 8
    return csr_array((weights.reshape(-1), columns.reshape(-1), starts), (len(positions), grid.nodes))


def add_upsampled(values: Float32[np.ndarray, "x y z"], coarse: Float32[np.ndarray, "u v w"], halvings: int) -> None:
    """Upsample a function from a coarser grid by cubic B-splines and add it; this smooths it by about a coarse cell."""
    for axis in (2, 1):
        for _ in range(halvings):
            coarse = np.moveaxis(_doubled(np.moveaxis(coarse, axis, 0)), 0, axis)
    # The last doubling along the first axis is done plane by plane below, which saves a grid of full size.
    for _ in range(halvings - 1):
        coarse = _doubled(coarse)
    count = len(coarse)
    for row in range(count):
        here = coarse[row]
        after = coarse[(row + 1) % count]
        before = coarse[row - 1]
        values[2 * row] += (before + 6 * here + after) / 8
        values[2 * row + 1] += (here + after) / 2


def _doubled(values: Float32[np.ndarray, "x y z"]) -> Float32[np.ndarray, "u y z"]:
    """Subdivide cubic B-splines along the first axis, with weights (1, 6, 1) / 8 and (4, 4) / 8."""
    result = np.empty((2 * len(values), *values.shape[1:]), np.float32)
    after = np.roll(values, -1, axis=0)
    result[::2] = (np.roll(values, 1, axis=0) + 6 * values + after) / 8
    result[1::2] = (values + after) / 2
    return result


def spectrum(values: Float32[np.ndarray, "x y z"]) -> Complex64[np.ndarray, "x y h"]:
    """Return the Fourier transform, computed axis by axis in place with at most two grids of memory."""
    transform = np.asarray(scipy.fft.rfft(values, axis=2))
    del values
    for axis in (1, 0):
        transform = np.asarray(scipy.fft.fft(transform, axis=axis, overwrite_x=True))
    return transform


def add_coarse(fine: Complex64[np.ndarray, "x y h"], coarse: Complex64[np.ndarray, "u v g"], ratio: float) -> None:
    """Add the spectrum of a coarser grid over the same box, scaled, without its Nyquist frequency."""
    half = [coarse.shape[0] // 2, coarse.shape[1] // 2]
    last = coarse.shape[2] - 1
    spans = [[slice(0, size), slice(1 - size, None)] for size in half]
    for first, second in product(*spans):
        fine[first, second, :last] += np.float32(ratio) * coarse[first, second, :last]


def solve_poisson(transform: Complex64[np.ndarray, "x y h"], grid: Grid) -> Float32[np.ndarray, "x y z"]:
    """Solve -Laplacian(f) = g for the spectrum of g, with periodic f of mean 0; overwrites the spectrum."""
    # The negative Laplacian multiplies a spectrum by the squared angular frequency.
    squares = [np.square(2 * np.pi * scipy.fft.fftfreq(size, grid.cell)).astype(np.float32) for size in grid.shape[:2]]
    last = np.square(2 * np.pi * scipy.fft.rfftfreq(grid.shape[2], grid.cell)).astype(np.float32)
    plane = squares[1][:, None] + last
    for row, square in enumerate(squares[0]):
        divisor = plane + square
        if row == 0:
            # The mean of a periodic solution is free: set it to 0.
            divisor[0, 0] = np.inf
        transform[row] /= divisor
    for axis in (0, 1):
        transform = np.asarray(scipy.fft.ifft(transform, axis=axis, overwrite_x=True))
    return np.asarray(scipy.fft.irfft(transform, n=grid.shape[2], axis=2, overwrite_x=True))
