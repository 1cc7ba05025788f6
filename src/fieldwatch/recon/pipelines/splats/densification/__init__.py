"""How Gaussians come and go: adaptive density control, MCMC sampling, pruning, and resets of opacity."""

from fieldwatch.recon.pipelines.splats.densification.adaptive import DensityControl, clone, grow, restart, split
from fieldwatch.recon.pipelines.splats.densification.mcmc import (
    Sampling,
    add_sgld_noise,
    draw,
    mean_opacity,
    mean_scale,
    relocate,
    resample,
)
from fieldwatch.recon.pipelines.splats.densification.pruning import (
    oversized,
    prune,
    prune_opacity,
    renumbered,
    reset_opacity,
    transparent,
)
from fieldwatch.recon.pipelines.splats.densification.record import GrowthRecord
from fieldwatch.recon.pipelines.splats.densification.reference_lengths import yardsticks
from fieldwatch.recon.pipelines.splats.densification.relocation import shared_opacity, shared_scale
from fieldwatch.recon.pipelines.splats.densification.schedule import GrowthSchedule

__all__ = [
    "DensityControl",
    "GrowthRecord",
    "GrowthSchedule",
    "Sampling",
    "add_sgld_noise",
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
    "shared_opacity",
    "shared_scale",
    "split",
    "transparent",
    "yardsticks",
]
