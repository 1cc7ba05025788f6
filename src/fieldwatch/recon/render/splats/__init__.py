"""Rasterization of Gaussian splats: one function with several backends."""

from fieldwatch.recon.render.splats.cuda import gsplat_problem
from fieldwatch.recon.render.splats.densification_statistics import DensificationStatistics
from fieldwatch.recon.render.splats.projection import apply_3d_filter, rotations
from fieldwatch.recon.render.splats.rasterization import (
    Backend,
    DepthMode,
    RenderOutput,
    rasterize,
    splat_kernels_problem,
)
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.render.splats.visible import VisibleRows, any_visible, count_visible, fill_visible

__all__ = [
    "Backend",
    "DensificationStatistics",
    "DepthMode",
    "RenderOutput",
    "View",
    "VisibleRows",
    "any_visible",
    "apply_3d_filter",
    "count_visible",
    "fill_visible",
    "gsplat_problem",
    "rasterize",
    "rotations",
    "splat_kernels_problem",
]
