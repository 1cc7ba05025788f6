"""Occupancy grid: the cells of the scene's box that may contain surface, and ray samples inside them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.gradients import DistanceField
from fieldwatch.recon.render.sdf.marching import OccupancyMaps, build_maps, march
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples
from fieldwatch.recon.render.sdf_gpu.occupancy import evaluate_on_device


@runtime_checkable
class DeviceField(Protocol):
    """A signed distance function that GPU kernels may evaluate, such as `HashSdf`."""

    def fits_gpu(self, points: Tensor) -> bool:
        """Return whether the kernels support these points and work on this machine."""
        ...

    def on_gpu(self, points: Tensor, count: Tensor | None, faults: Tensor, *, sloped: bool) -> tuple[Any, Any]:
        """Return signed distances and, if `sloped`, their gradients, without a read by the host."""
        ...


@dataclass(frozen=True, kw_only=True)
class OccupancyConfig:
    """Settings of an occupancy grid.

    Attributes:
        cells: box of the grid, shared with the field and the mesh, and its resolution.
        sharpness: k of the occupancy sigmoid(-k f), in inverse units of f, which sets the width of the occupied band in
            front of the surface: 0.027 at k = 80 and a threshold of 0.1.
        threshold: occupancy above which a cell is occupied; the mean occupancy replaces it if that is lower.
        decay: factor on the previous occupancy of a re-evaluated cell; the larger of it and the new value is kept.
        lipschitz: Lipschitz constant of the field; 1 for a true distance.
        every: number of training steps between updates.
        warmup: number of training steps during which an update evaluates all cells.
        period: after the warm-up, an update evaluates all occupied cells and one in this many of the others, in turn.
        chunk: number of points per evaluation of the field.

    Raises:
        InputError: a setting is out of range.
    """

    cells: Cells = field(default_factory=Cells)
    sharpness: float = 80.0
    threshold: float = 0.1
    decay: float = 0.95
    lipschitz: float = 1.0
    every: int = 8
    warmup: int = 256
    period: int = 4
    chunk: int = 65_536

    def __post_init__(self) -> None:
        ranges = {
            "sharpness > 0": self.sharpness > 0,
            "0 < threshold < 0.5 (the occupancy at the surface is 0.5)": 0 < self.threshold < 0.5,
            "0 <= decay < 1": 0 <= self.decay < 1,
            "lipschitz > 0": self.lipschitz > 0,
            "every, period and chunk >= 1": min(self.every, self.period, self.chunk) >= 1,
            "warmup >= 0": self.warmup >= 0,
        }
        if broken := [rule for rule, holds in ranges.items() if not holds]:
            raise InputError(f"settings of the occupancy grid must satisfy {'; '.join(broken)}, got {self}")


class OccupancyGrid(nn.Module):
    """Occupancy grid that skips empty space (Mueller 2022, instant-ngp, with the rule of PMNI).

    The occupancy of a cell is sigmoid(-k (f - lipschitz * reach)), with f the field at its center and reach the
    distance to its corners. This is an upper bound over the cell, not the value at a point, so at any resolution no
    cell that contains the surface falls below 0.5. The inside is occupied. A new grid is fully occupied; the first
    update evaluates all cells and discards these values. All state is in buffers, so it moves with `.to` and is part of
    `state_dict`.

    Args:
        config: settings; None uses the defaults.

    Attributes:
        values: occupancy of each cell.
        occupied: True for occupied cells.
        updates: number of updates so far.
    """

    values: Float[Tensor, "x y z"]
    occupied: Bool[Tensor, "x y z"]
    updates: Int64[Tensor, ""]

    def __init__(self, config: OccupancyConfig | None = None) -> None:
        super().__init__()
        self.config = config or OccupancyConfig()
        shape = (self.config.cells.resolution,) * 3
        # Fully occupied until the first update: samples everywhere are slow but correct.
        self.register_buffer("values", torch.ones(shape))
        self.register_buffer("occupied", torch.ones(shape, dtype=torch.bool))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._maps: OccupancyMaps | None = None
        self._turn: int | None = None  # `updates` as the host knows it
        self._faults: Tensor | None = None  # int32, of one element
        self._fraction: tuple[Tensor, int, Tensor] | None = None  # of which cells, at which version

    @property
    def occupied_fraction(self) -> Float[Tensor, ""]:
        """Fraction of occupied cells, computed once per update."""
        cells = self.occupied
        known = self._fraction
        # Kernels write without a trace in the version: `_updated` forgets the fraction.
        if known is None or known[0] is not cells or known[1] != cells._version:  # noqa: SLF001  counts writes
            known = self._fraction = (cells, cells._version, cells.float().mean())  # noqa: SLF001  as above
        return known[2]

    @property
    def faults(self) -> Int32[Tensor, "1"] | None:
        """Fault bits of updates on a GPU, which the host has not read; None elsewhere."""
        return self._faults

    def update(
        self, step: int, sdf: DistanceField, inverse_deviation: float | Callable[[], Tensor] | None = None
    ) -> bool:
        """Update the grid from the field if the training step is a multiple of `config.every`.

        Args:
            step: training step.
            sdf: signed distance function; called without gradients on up to `config.chunk` points.
            inverse_deviation: s of the surface, or a function that returns it. A value below `config.sharpness`
                replaces it, because a blurred surface is visible farther in front.

        Returns:
            Whether the grid was updated.
        """
        if step % self.config.every:
            return False
        if not self._turns():
            self.rebuild(sdf, inverse_deviation)
        elif self._updates_on_device(sdf):
            every_cell = step < self.config.warmup
            self._evaluate_on_device(sdf, inverse_deviation, self.config.decay, every_cell=every_cell)
        else:
            rows = self._all_rows() if step < self.config.warmup else self._rows_to_update()
            self._evaluate_cells(rows, sdf, _number(inverse_deviation), self.config.decay)
        return True

    def rebuild(self, sdf: DistanceField, inverse_deviation: float | Callable[[], Tensor] | None = None) -> None:
        """Re-evaluate all cells without their history, to recover a collapsed grid. Arguments as for `update`."""
        if self._updates_on_device(sdf):
            self._evaluate_on_device(sdf, inverse_deviation, 0.0, every_cell=True)
        else:
            self._evaluate_cells(self._all_rows(), sdf, _number(inverse_deviation), 0.0)

    def march(
        self,
        rays: BoundedRays,
        step: float,
        *,
        jitter: Float[Tensor, " rays"] | None = None,
        max_samples: int | None = None,
        chunk: int = 1 << 20,
    ) -> PackedSamples:
        """Divide rays into equal sections and keep those with a midpoint in an occupied cell and before `far`.

        Section k extends from near + (k + jitter) step to near + (k + 1 + jitter) step. Space outside the box is empty.
        No gradient flows through the distances. Single precision on the CPU runs in a native kernel with the same
        result.

        Args:
            rays: rays with the bounds of the scene.
            step: length of the sections, at most the shortest edge of a cell, so that no cell is skipped.
            jitter: shift of the sections of each ray in steps, uniform in [0, 1) in training; None shifts none.
            max_samples: limit of the number of samples. Rays from the first that exceeds it on are left out: `n_rays`
                of the result is the number of rays kept (0 if the first ray exceeds it), and the caller drops the rest.
            chunk: number of sections per batch, which limits the memory.

        Raises:
            ValueError: the step is not positive, or a ray is not finite.
        """
        if self._maps is None or self._maps.occupied.device != self.occupied.device:
            self._maps = build_maps(self.occupied)
        return march(self.config.cells, self._maps, rays, step, jitter=jitter, max_samples=max_samples, chunk=chunk)

    def _load_from_state_dict(self, *arguments: object, **named: object) -> None:
        super()._load_from_state_dict(*arguments, **named)  # pyright: ignore[reportArgumentType] (passed through unchanged)
        # The maps are derived from `occupied`, which has just changed.
        self._maps = None
        self._turn = None

    def _turns(self) -> int:
        """Return the number of updates; a GPU is asked for it once."""
        if self._turn is None:
            self._turn = int(self.updates)
        return self._turn

    def _updates_on_device(self, sdf: DistanceField) -> TypeGuard[DeviceField]:
        return self.values.is_cuda and isinstance(sdf, DeviceField) and sdf.fits_gpu(self.values)

    @torch.no_grad()
    def _evaluate_on_device(
        self,
        sdf: DeviceField,
        inverse_deviation: float | Callable[[], Tensor] | None,
        decay: float,
        *,
        every_cell: bool,
    ) -> None:
        """Evaluate cells by kernels; values that are not finite set a fault bit, which the host reads later."""
        config = self.config
        if self._faults is None:
            self._faults = torch.zeros(1, dtype=torch.int32, device=self.values.device)
        number = inverse_deviation if isinstance(inverse_deviation, float | int) else None
        evaluate_on_device(
            config.cells,
            lambda points, count, faults: sdf.on_gpu(points, count, faults, sloped=False)[0],
            self.values,
            self.occupied,
            every_cell=every_cell,
            period=config.period,
            turn=self._turns(),
            sharpness=config.sharpness if number is None else min(config.sharpness, number),
            inverse_deviation=inverse_deviation() if callable(inverse_deviation) else None,
            lipschitz=config.lipschitz,
            decay=decay,
            threshold=config.threshold,
            faults=self._faults,
        )
        self._updated()

    def _all_rows(self) -> Int64[Tensor, " cells"]:
        return torch.arange(self.values.numel(), device=self.values.device)

    def _rows_to_update(self) -> Int64[Tensor, " some"]:
        """Return the occupied cells and every period-th cell along diagonals that advance with each update.

        If more than one in `period` cells is occupied, the occupied cells take turns too, offset by half a period.
        """
        period = self.config.period
        turn = self._turns()
        occupied = self.occupied
        # Evaluating all cells of a mostly occupied grid would cost as much as the warm-up.
        if int(occupied.sum()) * period > occupied.numel():
            occupied = occupied & self._diagonals(turn + period // 2)
        return torch.nonzero((occupied | self._diagonals(turn)).view(-1))[:, 0]

    def _diagonals(self, turn: int) -> Bool[Tensor, "x y z"]:
        """Select the cells with x + y + z + turn divisible by the period."""
        size = self.config.cells.resolution
        sums = torch.arange(3 * size - 2, device=self.occupied.device) + turn
        # Cell (x, y, z) reads entry x + y + z of a vector: two unfolds make a view, without a table.
        return (sums % self.config.period == 0).unfold(0, size, 1).unfold(0, size, 1)

    @torch.no_grad()
    def _evaluate_cells(
        self, rows: Int64[Tensor, " some"], sdf: DistanceField, inverse_deviation: float | None, decay: float
    ) -> None:
        config = self.config
        sharpness = config.sharpness if inverse_deviation is None else min(config.sharpness, inverse_deviation)
        distances = torch.cat([sdf(config.cells.centers(part)) for part in rows.split(config.chunk)])
        if distances.shape != rows.shape:
            raise ValueError(
                f"the field returned distances of shape {tuple(distances.shape)} for {len(rows)} points, expected one "
                "number each (squeeze the last axis)"
            )
        if not bool(torch.isfinite(distances).all()):
            raise ValueError("the field has values that are not finite in the grid's box: the grid was not changed")
        # Upper bound: nowhere in the cell is f lower than at its center minus lipschitz * reach.
        new = torch.sigmoid(-sharpness * (distances - config.lipschitz * config.cells.reach))
        values = self.values.view(-1)
        # The decayed history keeps a cell occupied while the field still fluctuates.
        values[rows] = torch.maximum(values[rows] * decay, new.to(values.dtype))
        # The mean as alternative threshold, so that a field without a surface does not empty the grid (PMNI).
        self.occupied.copy_(self.values > min(float(self.values.mean()), config.threshold))
        self._updated()

    def _updated(self) -> None:
        self._turn = self._turns() + 1
        self.updates += 1
        self._maps = None
        self._fraction = None


def _number(inverse_deviation: float | Callable[[], Tensor] | None) -> float | None:
    return inverse_deviation().item() if callable(inverse_deviation) else inverse_deviation
