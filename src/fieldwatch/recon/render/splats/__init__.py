"""Gaussian splats: one call to draw them, three ways to do it."""

from fieldwatch.recon.render.splats.densification_statistics import DensificationStatistics
from fieldwatch.recon.render.splats.rasterization import Backend, DepthMode, RenderOutput, splat
from fieldwatch.recon.render.splats.projection import rotations, widened
from fieldwatch.recon.render.splats.view import View

__all__ = ["Backend", "DensificationStatistics", "DepthMode", "RenderOutput", "View", "rotations", "splat", "widened"]
