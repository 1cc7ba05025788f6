"""Regular cells of an axis-aligned box."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.transfers import constant


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A box of resolution^3 equal cells, numbered in (x, y, z) order with z fastest.

    Attributes:
        resolution: number of cells along each axis.
        low: lower corner of the box.
        high: upper corner of the box.

    Raises:
        ValueError: the resolution is below 1, or the box has no volume.
    """

    resolution: int = 128
    low: tuple[float, float, float] = (-1.0, -1.0, -1.0)
    high: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if self.resolution < 1:
            raise ValueError(f"the resolution of a grid must be at least 1 cell, got {self.resolution}")
        if not all(-math.inf < a < b < math.inf for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"each low of the box must be finite and below its high, got {self.low} and {self.high}")

    @property
    def count(self) -> int:
        """Number of cells."""
        return self.resolution**3

    @property
    def edges(self) -> tuple[float, ...]:
        """Edge lengths of a cell along x, y and z."""
        return tuple((b - a) / self.resolution for a, b in zip(self.low, self.high, strict=True))

    @property
    def reach(self) -> float:
        """Distance from the center of a cell to its corners."""
        return 0.5 * math.hypot(*self.edges)

    def centers(self, rows: Int64[Tensor, " n"]) -> Float[Tensor, "n 3"]:
        """Return the centers of cells, given by their numbers."""
        size = self.resolution
        # The inverse of the row number (x * size + y) * size + z.
        numbers = torch.stack([rows // size**2, rows // size % size, rows % size], -1)
        like = torch.empty(0, device=rows.device)
        edges, low = (constant(corner, like) for corner in (self.edges, self.low))
        return (numbers + 0.5) * edges + low

    def lookup(
        self,
        table: Bool[Tensor, "x y z"],
        points: tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]],
    ) -> Bool[Tensor, "*batch"]:
        """Look up a table of the cells at points.

        Args:
            table: values of the cells, padded by one cell on every side (see `padded`), which points outside read.
            points: finite x, y and z coordinates.
        """
        size = self.resolution + 2
        rows = torch.zeros_like(points[0], dtype=torch.int32)
        for coordinate, low, edge in zip(points, self.low, self.edges, strict=True):
            # + 1 for the padding. The clamp moves all points outside the box to the padding, whose cells are empty.
            cell = ((coordinate - low) * (1 / edge) + 1).floor_().clamp_(0, size - 1)
            rows = rows * size + cell.int()
        return table.view(-1).index_select(0, rows.view(-1)).view(rows.shape)


def padded(cells: Bool[Tensor, "x y z"]) -> Bool[Tensor, "x_and_two y_and_two z_and_two"]:
    """Pad a table with one empty cell on every side: space outside the box is empty."""
    return functional.pad(cells, (1, 1, 1, 1, 1, 1))


def dilated(cells: Bool[Tensor, "x y z"]) -> Bool[Tensor, "x y z"]:
    """Dilate occupied cells by their 26 neighbors."""
    # Separable: one pass per axis reaches all 26 neighbors.
    for axis in range(3):
        wider = cells.clone()
        size = cells.shape[axis]
        wider.narrow(axis, 1, size - 1).logical_or_(cells.narrow(axis, 0, size - 1))
        wider.narrow(axis, 0, size - 1).logical_or_(cells.narrow(axis, 1, size - 1))
        cells = wider
    return cells
