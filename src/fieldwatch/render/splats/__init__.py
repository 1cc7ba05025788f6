"""Gaussian splats: one call to draw them, three ways to do it."""

from fieldwatch.render.splats.drawing import Backend, DepthMode, Splatted, splat
from fieldwatch.render.splats.projection import rotations, widened
from fieldwatch.render.splats.tally import ScreenTally
from fieldwatch.render.splats.view import View

__all__ = ["Backend", "DepthMode", "ScreenTally", "Splatted", "View", "rotations", "splat", "widened"]
