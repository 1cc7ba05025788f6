"""Sizes of the grid model's stages, and channels that meet a parameter budget."""

import math
from dataclasses import dataclass, replace

from fieldwatch import InputError

from .interface import VideoGeometry
from .options import ModelOptions


@dataclass(frozen=True, kw_only=True)
class StageSize:
    """Size of a stage: cells per side, upsampling ratio, channels, number of blocks, and (keys, channels) per grid."""

    height: int
    width: int
    ratio: int
    channels: int
    blocks: int
    grids: tuple[tuple[int, int], ...]


def stage_sizes(geometry: VideoGeometry, options: ModelOptions) -> list[StageSize]:
    """Return the stages from coarse to fine; cells cover the frame, so the last row and column may overhang it."""
    sizes = []
    for i, cell in enumerate(options.grid_cells):
        # At least one key, for clips shorter than a period.
        keys = max(1, round(geometry.frames / options.grid_periods[i]))
        grids = ((keys, options.grid_channels[i]), (1, options.grid_static[i]))
        size = StageSize(
            height=math.ceil(geometry.height / cell),
            width=math.ceil(geometry.width / cell),
            ratio=options.grid_cells[i - 1] // cell if i else 1,
            channels=options.grid_widths[i],
            blocks=options.grid_blocks[i],
            grids=tuple((count, channels) for count, channels in grids if channels),
        )
        sizes.append(size)
    return sizes


def count_parameters(geometry: VideoGeometry, options: ModelOptions) -> int:
    """Return the number of parameters of grids and stages, without the heads."""
    total = 0
    coarser = 0
    for size in stage_sizes(geometry, options):
        width = size.channels
        grid_channels = sum(channels for _, channels in size.grids)
        total += size.height * size.width * sum(keys * channels for keys, channels in size.grids)
        total += (grid_channels + 1) * width if grid_channels else 0
        total += (coarser + 1) * width * size.ratio**2 if coarser else 0
        # Depthwise kernel with bias, two linear layers of twice the width with biases, per block.
        total += size.blocks * width * (options.grid_kernel**2 + 4 * width + 4)
        coarser = width
    return total


def fit_to_size(geometry: VideoGeometry, options: ModelOptions, modelsize: float) -> ModelOptions:
    """Return options with widths and grid channels scaled by a common factor, as large as fits ``modelsize`` million.

    Raises:
        InputError: even one channel each does not fit.
    """
    # Factor 0 gives one channel each, the smallest possible model.
    low = 0.0
    high = 64.0
    smallest = count_parameters(geometry, _scaled(options, low)) / 1e6
    if smallest > modelsize:
        raise InputError(f"modelsize must be at least {smallest:.3f} million for this video, got {modelsize}")
    # Bisection: the number of parameters increases with the factor, in jumps, because channels are integers.
    for _ in range(24):
        middle = (low + high) / 2
        if count_parameters(geometry, _scaled(options, middle)) <= modelsize * 1e6:
            low = middle
        else:
            high = middle
    return _scaled(options, low)


def _scaled(options: ModelOptions, factor: float) -> ModelOptions:
    def scale(channels: tuple[int, ...]) -> tuple[int, ...]:
        # A grid that is switched off stays off; all others keep at least one channel.
        return tuple(max(1, round(factor * count)) if count else 0 for count in channels)

    return replace(
        options,
        grid_widths=scale(options.grid_widths),
        grid_channels=scale(options.grid_channels),
        grid_static=scale(options.grid_static),
    )
