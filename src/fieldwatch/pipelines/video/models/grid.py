"""Feature grids over time and space, decoded by a few light convolutions: the default video model."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .blocks import ClipHead, OutputMap
from .interface import Geometry, Prediction, Query, Unit, VideoModel
from .options import ModelOptions


class TimeGrid(nn.Module):
    """Feature maps at evenly spaced times ("keys"), linear in between; one key means a map for all times."""

    def __init__(self, keys: int, channels: int, height: int, width: int) -> None:
        super().__init__()
        self.values = nn.Parameter(0.1 * torch.randn(keys, channels, height, width))

    def forward(self, position: Float[Tensor, " units"]) -> Float[Tensor, "units channels height width"]:
        """Feature map at each position; 0 is the first key, 1 the last."""
        last = self.values.shape[0] - 1
        if last == 0:
            return self.values.expand(position.shape[0], -1, -1, -1)
        place = (position * last).clamp(0, last)
        before = place.floor().clamp(max=last - 1)
        weight = (place - before).to(self.values.dtype)[:, None, None, None]
        key = before.long()
        return torch.lerp(self.values[key], self.values[key + 1], weight)


class Refine(nn.Module):
    """x + linear(SiLU(linear(depthwise(x)))), width x 2 inside (ConvNeXt without its norm)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.widen = nn.Conv2d(channels, 2 * channels, 1)
        self.narrow = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x: Float[Tensor, "units channels height width"]) -> Float[Tensor, "units channels height width"]:
        """Same shape, refined."""
        return x + self.narrow(functional.silu(self.widen(self.depthwise(x))))


class Stage(nn.Module):
    """Features of one cell size: the enlarged coarser features plus this stage's grids, then refinements."""

    def __init__(self, coarser: int, ratio: int, width: int, grids: Sequence[TimeGrid], refine: Sequence[int]) -> None:
        super().__init__()
        self.ratio = ratio
        self.grids = nn.ModuleList(grids)
        self.mix = nn.Conv2d(sum(grid.values.shape[1] for grid in grids), width, 1) if grids else None
        self.enlarge = nn.Conv2d(coarser, width * ratio**2, 1) if coarser else None
        self.refine = nn.ModuleList(Refine(width, kernel) for kernel in refine)

    def forward(
        self, features: Float[Tensor, "units coarser rows columns"] | None, position: Float[Tensor, " units"]
    ) -> Float[Tensor, "units channels height width"]:
        """Features at this cell size, cropped to the grids where the coarser ones overhang."""
        parts = []
        if self.mix is not None:
            maps = torch.cat([grid(position) for grid in self.grids], dim=1)
            parts.append(self.mix(maps.contiguous(memory_format=torch.channels_last)))
        if self.enlarge is not None:
            enlarged = functional.pixel_shuffle(self.enlarge(features), self.ratio)
            parts.append(enlarged[..., : parts[0].shape[-2], : parts[0].shape[-1]] if parts else enlarged)
        out = functional.silu(sum(parts[1:], parts[0]))
        for block in self.refine:
            out = block(out)
        return out


class GridVideo(VideoModel):
    """Learned grids at several cell sizes -> light stages from coarse to fine -> RGB head and CLIP head.

    (After HiNeRV, Kwan et al. 2023, and FFNeRV, Lee et al. 2023: grids in place of a positional code.) No
    convolution runs at full resolution: the RGB head writes a block of pixels per cell of the finest stage. Any frame
    size is drawn exactly: the grids cover it and the overhang is cut off.
    """

    unit: ClassVar[Unit] = "frame"
    needs_frames: ClassVar[bool] = False

    def __init__(self, geometry: Geometry, options: ModelOptions) -> None:
        super().__init__()
        self.geometry = geometry
        self.cell = options.grid_cells[-1]
        self.stages = build_stages(geometry, options)
        width = options.grid_widths[-1]
        self.rgb_head = nn.Conv2d(width, 3 * self.cell**2, 3, padding=1)
        self.clip_head = ClipHead(width, options.clip_dim, rows=geometry.rows, columns=geometry.columns)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """One frame per row of `query`; only its times are read."""
        position = query.t * self.geometry.frames / max(self.geometry.frames - 1, 1)
        features = None
        for stage in self.stages:
            features = stage(features, position)
        return Prediction(rgb=self._draw(features), embedding=self._embed(features) if embed else None)

    def groups(self) -> dict[str, nn.Module]:
        """Grids and stages, and the two heads."""
        return {"decoder": self.stages, "rgb_head": self.rgb_head, "clip_head": self.clip_head}

    def _draw(self, features: Tensor) -> Tensor:
        # the output map comes before the shuffle: elementwise work on one memory layout
        blocks = self.output(self.rgb_head(features))
        units, _, height, width = blocks.shape
        pixels = blocks.reshape(units, 3, self.cell, self.cell, height, width).permute(0, 1, 4, 2, 5, 3)
        frame = pixels.reshape(units, 3, height * self.cell, width * self.cell)
        return frame[..., : self.geometry.height, : self.geometry.width]

    def _embed(self, features: Tensor) -> Tensor:
        height = math.ceil(self.geometry.rows * self.geometry.patch_height / self.cell)
        width = math.ceil(self.geometry.columns * self.geometry.patch_width / self.cell)
        return self.clip_head(features[..., :height, :width])


def build_stages(geometry: Geometry, options: ModelOptions) -> nn.ModuleList:
    """Stages from the coarsest to the finest cell."""
    stages: list[Stage] = []
    coarser, cell_before = 0, 0
    for i, (cell, width) in enumerate(zip(options.grid_cells, options.grid_widths, strict=True)):
        size = (math.ceil(geometry.height / cell), math.ceil(geometry.width / cell))
        keys = max(1, round(geometry.frames / options.grid_periods[i]))
        wanted = ((keys, options.grid_channels[i]), (1, options.grid_static[i]))
        grids = [TimeGrid(count, channels, *size) for count, channels in wanted if channels]
        refine = [options.grid_kernel] * options.grid_blocks[i]
        stages.append(Stage(coarser, cell_before // cell, width, grids, refine))
        coarser, cell_before = width, cell
    return nn.ModuleList(stages)
