"""A box divided into equal cells."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A box of resolution^3 equal cells; one is named by its row in (x, y, z) order, z fastest.

    Attributes:
        resolution: cells along each axis.
        low: the corner of the box with the lowest coordinates.
        high: the opposite corner.

    Raises:
        ValueError: fewer than 1 cell, or a box without volume.
    """

    resolution: int = 128
    low: tuple[float, float, float] = (-1.0, -1.0, -1.0)
    high: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if self.resolution < 1:
            raise ValueError(f"a grid needs at least 1 cell along each axis, got a resolution of {self.resolution}")
        if not all(-math.inf < a < b < math.inf for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"the grid's box goes from {self.low} to {self.high}: each low must be below its high")

    @property
    def count(self) -> int:
        """Number of cells."""
        return self.resolution**3

    @property
    def edges(self) -> tuple[float, ...]:
        """Lengths of a cell's edges along x, y and z."""
        return tuple((b - a) / self.resolution for a, b in zip(self.low, self.high, strict=True))

    @property
    def reach(self) -> float:
        """Distance from the centre of a cell to its corners."""
        return 0.5 * math.hypot(*self.edges)

    def centres(self, rows: Int64[Tensor, " n"]) -> Float[Tensor, "n 3"]:
        """Centres of the cells with these rows."""
        size = self.resolution
        numbers = torch.stack([rows // size**2, rows // size % size, rows % size], -1)
        edges, low = (torch.tensor(corner, device=rows.device) for corner in (self.edges, self.low))
        return (numbers + 0.5) * edges + low

    def lookup(
        self,
        table: Bool[Tensor, "x y z"],
        points: tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]],
    ) -> Bool[Tensor, "*batch"]:
        """Read a table of the cells at points.

        Args:
            table: of the cells and of one more around the box on every side (`rimmed`): points outside read those.
            points: their x, y and z, finite.
        """
        size = self.resolution + 2
        rows = torch.zeros_like(points[0], dtype=torch.int32)
        for coordinate, low, edge in zip(points, self.low, self.edges, strict=True):
            # 1 for the rim. The clamp sends everything outside to the rim, whose cells are empty.
            cell = ((coordinate - low) * (1 / edge) + 1).floor_().clamp_(0, size - 1)
            rows = rows * size + cell.int()
        return table.view(-1).index_select(0, rows.view(-1)).view(rows.shape)


def padded(cells: Bool[Tensor, "x y z"]) -> Bool[Tensor, "x_and_two y_and_two z_and_two"]:
    """The same with empty cells around: what lies outside the box is empty."""
    return functional.pad(cells, (1, 1, 1, 1, 1, 1))


def dilated(cells: Bool[Tensor, "x y z"]) -> Bool[Tensor, "x y z"]:
    """The same with the 26 neighbours of every cell added."""
    # Separable: one pass per axis reaches all 26 neighbors.
    for axis in range(3):
        wider = cells.clone()
        size = cells.shape[axis]
        wider.narrow(axis, 1, size - 1).logical_or_(cells.narrow(axis, 0, size - 1))
        wider.narrow(axis, 0, size - 1).logical_or_(cells.narrow(axis, 1, size - 1))
        cells = wider
    return cells
