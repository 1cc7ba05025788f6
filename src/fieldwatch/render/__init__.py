"""Renderers: Gaussian splats and triangles, with the native kernels that make them fast on a CPU."""

from fieldwatch.render.depth_normals import depth_normal_consistency, depth_normal_consistency_reference
from fieldwatch.render.native import NativeUnavailable, native_available
from fieldwatch.render.similarity import Similarity, similarity, similarity_reference
from fieldwatch.render.splats import Backend, DepthMode, ScreenTally, Splatted, View, rotations, splat, widened
from fieldwatch.render.triangles import CastBackend, Hits, cast_triangles
from fieldwatch.render.visible_adam import VisibleAdam

__all__ = [
    "Backend",
    "CastBackend",
    "DepthMode",
    "Hits",
    "NativeUnavailable",
    "ScreenTally",
    "Similarity",
    "Splatted",
    "View",
    "VisibleAdam",
    "cast_triangles",
    "depth_normal_consistency",
    "depth_normal_consistency_reference",
    "native_available",
    "rotations",
    "similarity",
    "similarity_reference",
    "splat",
    "widened",
]
