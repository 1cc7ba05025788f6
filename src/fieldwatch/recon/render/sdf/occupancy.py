"""Which cells of the scene's box may hold the surface, and samples along rays through those."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.gradients import DistanceField
from fieldwatch.recon.render.sdf.marching import OccupancyMaps, build_maps, march
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples


@dataclass(frozen=True, kw_only=True)
class OccupancyConfig:
    """Settings of an occupancy grid.

    Attributes:
        cells: the box, which is that of the field and of the mesh, and its resolution.
        sharpness: k of a cell's occupancy sigmoid(-k f), in one over the unit of f: how wide the band in front of the
            surface is. At 80 and threshold 0.1: 0.027.
        threshold: cells above it are occupied, or above the mean occupancy where that is lower.
        decay: factor on the old occupancy of a cell that is looked at again; the larger of that and the new one stays.
        lipschitz: how fast the field may change at most (its Lipschitz constant): 1 for a true distance.
        every: steps of training between two updates.
        warmup: steps of training in which an update looks at all cells.
        period: later on, an update looks at all occupied cells and at one in so many of the others, each in its turn.
        chunk: points at which the field is evaluated at a time.

    Raises:
        InputError: a setting out of its range.
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
            raise InputError(f"settings of the occupancy grid must hold to {'; '.join(broken)}, got {self}")


class OccupancyGrid(nn.Module):
    """Where samples are worth their while (the grid of instant-ngp, Mueller 2022, with PMNI's rule).

    The occupancy of a cell is sigmoid(-k (f - slope * reach)) with f the field at its centre and reach the distance to
    its corners: an upper bound over the whole cell, not the value at some point of it, so no cell that contains the
    surface is ever below 0.5, at any resolution. The inside is occupied. A grid is full until its first update, which
    looks at all cells and forgets that.
    All its state is in buffers: it moves with `.to` and is kept by `state_dict`.

    Args:
        config: settings.

    Attributes:
        values: occupancy of the cells.
        occupied: which of them count as such.
        updates: number of updates there were.
    """

    values: Float[Tensor, "x y z"]
    occupied: Bool[Tensor, "x y z"]
    updates: Int64[Tensor, ""]

    def __init__(self, config: OccupancyConfig | None = None) -> None:
        super().__init__()
        self.config = config or OccupancyConfig()
        shape = (self.config.cells.resolution,) * 3
        self.register_buffer("values", torch.ones(shape))
        self.register_buffer("occupied", torch.ones(shape, dtype=torch.bool))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._maps: OccupancyMaps | None = None

    @property
    def occupied_fraction(self) -> Float[Tensor, ""]:
        """Share of the cells that are occupied."""
        return self.occupied.float().mean()

    def update(self, step: int, sdf: DistanceField, inverse_deviation: float | None = None) -> bool:
        """Look at the field again if this step of training is one for it.

        Args:
            step: of training.
            sdf: signed distances at points; called without gradients, `config.chunk` points at a time.
            inverse_deviation: s of the surface. Below `config.sharpness` it takes that one's place: a blurred surface
                shows further in front.

        Returns:
            Whether the grid was updated.
        """
        if step % self.config.every:
            return False
        if not int(self.updates):
            self.rebuild(sdf, inverse_deviation)
        else:
            rows = self._all_rows() if step < self.config.warmup else self._rows_to_update()
            self._evaluate_cells(rows, sdf, inverse_deviation, self.config.decay)
        return True

    def rebuild(self, sdf: DistanceField, inverse_deviation: float | None = None) -> None:
        """Forget the past and look at all cells: the remedy for a collapsed grid. Arguments as for `update`."""
        self._evaluate_cells(self._all_rows(), sdf, inverse_deviation, 0.0)

    def march(
        self,
        rays: BoundedRays,
        step: float,
        *,
        jitter: Float[Tensor, " rays"] | None = None,
        max_samples: int | None = None,
        chunk: int = 1 << 20,
    ) -> PackedSamples:
        """Cut rays into sections of one length and keep those whose middle lies in an occupied cell and before `far`.

        Section k goes from near + (k + jitter) step to near + (k + 1 + jitter) step; outside the box is nothing. No
        gradient flows through the distances. Single precision on the CPU runs in a native kernel, with the same result.

        Args:
            rays: and the part of each that may meet the scene.
            step: length of the sections, at most the shortest edge of a cell, so that no cell is stepped over.
            jitter: shift of the sections of each ray, in steps: uniform in [0, 1) in training; None is no shift.
            max_samples: bound on the samples. Rays from the first that would exceed it on are left out: `n_rays` of
                the result says how many there are (0 if the first ray alone does), and the caller drops the others.
            chunk: sections that are looked at together, which bounds the memory.

        Raises:
            ValueError: a step that is not positive, or a ray that is not finite.
        """
        if self._maps is None or self._maps.occupied.device != self.occupied.device:
            self._maps = build_maps(self.occupied)
        return march(self.config.cells, self._maps, rays, step, jitter=jitter, max_samples=max_samples, chunk=chunk)

    def _load_from_state_dict(self, *arguments: object, **named: object) -> None:
        super()._load_from_state_dict(*arguments, **named)  # pyright: ignore[reportArgumentType] (handed on as it came)
        self._maps = None

    def _all_rows(self) -> Int64[Tensor, " cells"]:
        return torch.arange(self.values.numel(), device=self.values.device)

    def _rows_to_update(self) -> Int64[Tensor, " some"]:
        """Rows of occupied cells and of every period-th cell along diagonals, which move on at every update.

        Where more than one in `period` is occupied, those cells take turns as well, half a period apart.
        """
        period = self.config.period
        turn = int(self.updates)
        occupied = self.occupied
        # With most cells occupied, looking at all of them would cost as much as the warm-up.
        if int(occupied.sum()) * period > occupied.numel():
            occupied = occupied & self._diagonals(turn + period // 2)
        return torch.nonzero((occupied | self._diagonals(turn)).view(-1))[:, 0]

    def _diagonals(self, turn: int) -> Bool[Tensor, "x y z"]:
        """Cells of which x + y + z + turn is a multiple of the period."""
        size = self.config.cells.resolution
        sums = torch.arange(3 * size - 2, device=self.occupied.device) + turn
        # Cell (x, y, z) reads entry x + y + z: two unfolds make a view of a vector, no table.
        return (sums % self.config.period == 0).unfold(0, size, 1).unfold(0, size, 1)

    @torch.no_grad()
    def _evaluate_cells(
        self, rows: Int64[Tensor, " some"], sdf: DistanceField, inverse_deviation: float | None, decay: float
    ) -> None:
        config = self.config
        sharpness = config.sharpness if inverse_deviation is None else min(config.sharpness, inverse_deviation)
        distances = torch.cat([sdf(config.cells.centres(part)) for part in rows.split(config.chunk)])
        if distances.shape != rows.shape:
            raise ValueError(
                f"the field gave distances of shape {tuple(distances.shape)} for {len(rows)} points: it must give "
                "one number for each (squeeze the last axis)"
            )
        if not bool(torch.isfinite(distances).all()):
            raise ValueError("the field is not finite somewhere in the grid's box: the grid is left as it was")
        # Upper bound over the cell: nowhere in it is f lower than at its center less lipschitz * reach.
        new = torch.sigmoid(-sharpness * (distances - config.lipschitz * config.cells.reach))
        values = self.values.view(-1)
        values[rows] = torch.maximum(values[rows] * decay, new.to(values.dtype))
        # Also above the mean, so that a field without a surface does not empty the grid (PMNI).
        self.occupied.copy_(self.values > min(float(self.values.mean()), config.threshold))
        self.updates += 1
        self._maps = None
