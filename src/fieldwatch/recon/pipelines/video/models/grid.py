"""Feature grids over time and space, decoded by a few light convolutions: the default video model."""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .blocks import OutputMap, clip_head
from .grid_sizing import fit_to_size, stage_sizes
from .interface import Prediction, Query, Unit, VideoGeometry, VideoModel
from .options import ModelOptions


class TimeGrid(nn.Module):
    """Feature maps at evenly spaced times ("keys"), interpolated linearly; with a single key the map is static.

    The map is `gain` times the parameter. Adam's steps do not depend on the scale of the gradient, so the grids learn
    `gain` times as fast as the other weights at the same learning rate.
    """

    def __init__(self, keys: int, channels: int, height: int, width: int, *, gain: float = 10.0) -> None:
        super().__init__()
        self.gain = gain
        # The map, gain times this, starts with a standard deviation of 0.1.
        self.values = nn.Parameter(torch.randn(keys, channels, height, width) * (0.1 / gain))

    def forward(self, position: Float[Tensor, " units"]) -> Float[Tensor, "units channels height width"]:
        """Return the feature map at each position; 0 is the first key, 1 the last."""
        last = self.values.shape[0] - 1
        if last == 0:
            return (self.gain * self.values).expand(position.shape[0], -1, -1, -1)
        key_position = (position * last).clamp(0, last)
        # The last key has no successor: use the last pair with weight 1.
        before = key_position.floor().clamp(max=last - 1)
        weight = (key_position - before).to(self.values.dtype)[:, None, None, None]
        key = before.long()
        return self.gain * torch.lerp(self.values[key], self.values[key + 1], weight)


def per_pixel(
    linear: nn.Linear, x: Float[Tensor, "units before height width"]
) -> Float[Tensor, "units after height width"]:
    """Apply a 1x1 convolution as a matrix product per pixel (torch's own is slow on a single CPU thread)."""
    return linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Refine(nn.Module):
    """x + linear(SiLU(linear(depthwise(x)))), twice the width inside (ConvNeXt, Liu et al. 2022, without its norm)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.widen = nn.Linear(channels, 2 * channels)
        self.narrow = nn.Linear(2 * channels, channels)

    def forward(self, x: Float[Tensor, "units channels height width"]) -> Float[Tensor, "units channels height width"]:
        """Refine a feature map, preserving its shape."""
        return x + per_pixel(self.narrow, functional.silu(per_pixel(self.widen, self.depthwise(x))))


class GridStage(nn.Module):
    """Features of one cell size: upsampled coarser features plus this stage's grids, then refinement blocks."""

    def __init__(self, coarser: int, ratio: int, width: int, grids: Sequence[TimeGrid], refine: Sequence[int]) -> None:
        super().__init__()
        self.ratio = ratio
        self.grids = nn.ModuleList(grids)
        # A stage without grids only refines the coarser features.
        self.mix = nn.Linear(sum(grid.values.shape[1] for grid in grids), width) if grids else None
        self.enlarge = nn.Linear(coarser, width * ratio**2) if coarser else None
        self.refine = nn.ModuleList(Refine(width, kernel) for kernel in refine)

    def forward(
        self, features: Float[Tensor, "units coarser rows columns"] | None, position: Float[Tensor, " units"]
    ) -> Float[Tensor, "units channels height width"]:
        """Return features at this cell size, cropped to the grids if the coarser features overhang."""
        parts = []
        if self.mix is not None:
            maps = torch.cat([grid(position) for grid in self.grids], dim=1)
            # In this memory layout the permutation in `per_pixel` is a view, which the matrix product need not copy.
            parts.append(per_pixel(self.mix, maps.contiguous(memory_format=torch.channels_last)))
        if self.enlarge is not None and features is not None:
            enlarged = functional.pixel_shuffle(per_pixel(self.enlarge, features), self.ratio)
            parts.append(enlarged[..., : parts[0].shape[-2], : parts[0].shape[-1]] if parts else enlarged)
        out = functional.silu(sum(parts[1:], parts[0]))
        for block in self.refine:
            out = block(out)
        return out


class GridVideo(VideoModel):
    """Learned grids at several cell sizes -> light stages from coarse to fine -> RGB head and CLIP head.

    (After HiNeRV, Kwan et al. 2023, and FFNeRV, Lee et al. 2023: grids in place of a positional encoding.) No
    convolution runs at full resolution: the RGB head writes a block of pixels per cell of the finest stage. All frame
    sizes are supported exactly: the grids cover the frame, and the overhang is cropped.
    """

    unit: ClassVar[Unit] = "frame"
    needs_frames: ClassVar[bool] = False

    def __init__(self, geometry: VideoGeometry, options: ModelOptions) -> None:
        super().__init__()
        if options.modelsize is not None:
            # The given widths are scaled in proportion to meet the parameter budget.
            options = fit_to_size(geometry, options, options.modelsize)
        self.geometry = geometry
        self.cell = options.grid_cells[-1]
        self.stages = build_stages(geometry, options)
        width = options.grid_widths[-1]
        self.rgb_head = nn.Linear(width, 3 * self.cell**2)
        self.clip_head = clip_head(width, options.clip_dim, rows=geometry.rows, columns=geometry.columns)
        self.output = OutputMap(options.out_bias)

    def forward(self, query: Query, *, embed: bool = True) -> Prediction:
        """Render one frame per row of ``query``; only its times are used."""
        # Frame i has t = i / frames; rescale so that the last frame coincides with the last key.
        position = query.t * self.geometry.frames / max(self.geometry.frames - 1, 1)
        features = self.stages[0](None, position)
        for stage in self.stages[1:]:
            features = stage(features, position)
        return Prediction(rgb=self._draw(features), embedding=self._embed(features) if embed else None)

    def groups(self) -> dict[str, nn.Module]:
        """Return grids and stages, and the two heads."""
        return {"decoder": self.stages, "rgb_head": self.rgb_head, "clip_head": self.clip_head}

    def _draw(self, features: Tensor) -> Tensor:
        # The output map precedes the shuffle, so that the elementwise work runs on one memory layout.
        blocks = self.output(per_pixel(self.rgb_head, features))
        units, _, height, width = blocks.shape
        pixels = blocks.reshape(units, 3, self.cell, self.cell, height, width).permute(0, 1, 4, 2, 5, 3)
        frame = pixels.reshape(units, 3, height * self.cell, width * self.cell)
        return frame[..., : self.geometry.height, : self.geometry.width]

    def _embed(self, features: Tensor) -> Tensor:
        # Exclude the cells beyond the last patch, which would shift the means of all patches.
        height = math.ceil(self.geometry.rows * self.geometry.patch_height / self.cell)
        width = math.ceil(self.geometry.columns * self.geometry.patch_width / self.cell)
        return self.clip_head(features[..., :height, :width])


def build_stages(geometry: VideoGeometry, options: ModelOptions) -> nn.ModuleList:
    """Build the stages from the coarsest to the finest cell size."""
    stages: list[GridStage] = []
    coarser = 0
    for size in stage_sizes(geometry, options):
        grids = [TimeGrid(keys, channels, size.height, size.width) for keys, channels in size.grids]
        stages.append(GridStage(coarser, size.ratio, size.channels, grids, [options.grid_kernel] * size.blocks))
        # The width of this stage is the input width of the next one.
        coarser = size.channels
    return nn.ModuleList(stages)
