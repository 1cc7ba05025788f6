"""How Gaussians come and go: adaptive density control, MCMC sampling, pruning, and resets of opacity."""

from fieldwatch.pipelines.splats.growth.adaptive import DensityControl, clone, grow, restart, split
from fieldwatch.pipelines.splats.growth.mcmc import (
    Sampling,
    draw,
    mean_opacity,
    mean_scale,
    relocate,
    resample,
    shake,
)
from fieldwatch.pipelines.splats.growth.pruning import (
    oversized,
    prune,
    prune_opacity,
    renumbered,
    reset_opacity,
    transparent,
)
from fieldwatch.pipelines.splats.growth.record import GrowthRecord
from fieldwatch.pipelines.splats.growth.relocation import shared_opacity, shared_scale
from fieldwatch.pipelines.splats.growth.schedule import GrowthSchedule

__all__ = [
    "DensityControl",
    "GrowthRecord",
    "GrowthSchedule",
    "Sampling",
    "clone",
    "draw",
    "grow",
    "mean_opacity",
    "mean_scale",
    "oversized",
    "prune",
    "prune_opacity",
    "relocate",
    "renumbered",
    "resample",
    "reset_opacity",
    "restart",
    "shake",
    "shared_opacity",
    "shared_scale",
    "split",
    "transparent",
]
