"""Update of an occupancy grid on a GPU, without a read by the host (`gpu/sdf_grid.cu`)."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from fieldwatch.recon.render.gpu import KernelFile
from fieldwatch.recon.render.sdf.cells import Cells

GRID = KernelFile("sdf_grid.cu")
BAD_VALUE = 4
"""Fault bit of a field that is not finite: BAD_VALUE in the kernels."""
_THREADS = 128


def evaluate_on_device(  # noqa: PLR0913  a grid, its field, and how it is evaluated
    cells: Cells,
    field: Any,
    values: Float[Tensor, "x y z"],
    occupied: Bool[Tensor, "x y z"],
    *,
    every_cell: bool,
    period: int,
    turn: int,
    sharpness: float,
    inverse_deviation: Float[Tensor, ""] | None,
    lipschitz: float,
    decay: float,
    threshold: float,
    faults: Int32[Tensor, "1"],
) -> None:
    """Evaluate cells of a grid and update its values and occupied cells; see `OccupancyGrid`.

    Cells with values that are not finite stay unchanged.

    Args:
        cells: cells of the grid.
        field: returns signed distances, of points, their number on the device, and fault bits to add to.
        values: occupancy of each cell, which is updated.
        occupied: occupied cells, which are updated.
        every_cell: whether all cells are evaluated, not only those whose turn it is.
        period: one in this many of the other cells is evaluated.
        turn: number of the update.
        sharpness: largest sharpness of the occupancy.
        inverse_deviation: s of the surface, which replaces the sharpness if it is lower.
        lipschitz: Lipschitz constant of the field.
        decay: factor of the previous values.
        threshold: largest occupancy above which a cell is occupied.
        faults: fault bits, to which that of values that are not finite is added.
    """
    count = cells.count
    device = values.device
    flags = torch.empty(count, dtype=torch.int32, device=device)
    blocks = -(-count // _THREADS)
    turns = (int(every_cell), period, turn % period, occupied, occupied.sum())
    GRID.launch("grid_flags", blocks, cells.resolution, *turns, flags)
    sums = flags.cumsum(0, dtype=torch.int32)
    listed = torch.empty_like(flags)
    points = torch.empty(count, 3, device=device)
    GRID.launch("grid_centers", blocks, cells.resolution, *cells.low, *cells.edges, sums, listed, points)
    number = sums[-1:]
    distances = field(points, number, faults)
    inverse = None if inverse_deviation is None else inverse_deviation.detach()
    setting = (sharpness, inverse, lipschitz * cells.reach, decay)
    GRID.launch("grid_values", blocks, number, count, listed, distances, *setting, values, faults)
    # The mean as alternative threshold, so that a field without a surface does not empty the grid (PMNI).
    torch.gt(values, values.mean().clamp_max(threshold), out=occupied)
