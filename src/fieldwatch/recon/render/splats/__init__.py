"""Rasterization of Gaussian splats: one function with several backends."""

from fieldwatch.recon.render.similarity import PhotoLoss, photo_loss
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
from fieldwatch.recon.render.splats.sample_comparison import SampleComparison, SampleErrors, sample_errors
from fieldwatch.recon.render.splats.sample_kernels import BlendedDepth, sample_errors_on_gpu, sample_kernels_problem
from fieldwatch.recon.render.splats.small_kernels import activated, flatness
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.render.splats.visible import VisibleRows, any_visible, count_visible, fill_visible

__all__ = [
    "Backend",
    "BlendedDepth",
    "DensificationStatistics",
    "DepthMode",
    "PhotoLoss",
    "RenderOutput",
    "SampleComparison",
    "SampleErrors",
    "View",
    "VisibleRows",
    "activated",
    "any_visible",
    "apply_3d_filter",
    "count_visible",
    "fill_visible",
    "flatness",
    "gsplat_problem",
    "photo_loss",
    "rasterize",
    "rotations",
    "sample_errors",
    "sample_errors_on_gpu",
    "sample_kernels_problem",
    "splat_kernels_problem",
]
