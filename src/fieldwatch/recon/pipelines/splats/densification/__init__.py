"""Adaptive density control, MCMC densification, pruning and opacity resets."""

from fieldwatch.recon.pipelines.splats.densification.adaptive import (
    DensificationThresholds,
    clone,
    densify,
    reset_statistics,
    split,
)
from fieldwatch.recon.pipelines.splats.densification.mcmc import (
    McmcOptions,
    add_copies,
    add_sgld_noise,
    mean_opacity,
    mean_scale,
    relocate,
    relocate_and_add,
)
from fieldwatch.recon.pipelines.splats.densification.pruning import (
    new_row_numbers,
    oversized,
    prune,
    prune_opacity,
    reset_opacity,
    transparent,
)
from fieldwatch.recon.pipelines.splats.densification.record import DensificationRecord
from fieldwatch.recon.pipelines.splats.densification.reference_length import reference_lengths
from fieldwatch.recon.pipelines.splats.densification.relocation import relocated_opacity, relocated_scale_factor
from fieldwatch.recon.pipelines.splats.densification.schedule import DensificationSchedule

__all__ = [
    "DensificationRecord",
    "DensificationSchedule",
    "DensificationThresholds",
    "McmcOptions",
    "add_copies",
    "add_sgld_noise",
    "clone",
    "densify",
    "mean_opacity",
    "mean_scale",
    "new_row_numbers",
    "oversized",
    "prune",
    "prune_opacity",
    "reference_lengths",
    "relocate",
    "relocate_and_add",
    "relocated_opacity",
    "relocated_scale_factor",
    "reset_opacity",
    "reset_statistics",
    "split",
    "transparent",
]
