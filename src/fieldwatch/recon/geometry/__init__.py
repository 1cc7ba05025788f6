"""Geometry: cameras, lenses, rotations, normals, spherical harmonics, similarities and nearest neighbors."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.geometry.cameras import Camera, camera_extent, far_cameras, near_cameras, similar_cameras
    from fieldwatch.recon.geometry.fixation import TargetBall, seen_from_all_sides, target_ball
    from fieldwatch.recon.geometry.lenses import BROWN, LENS_MODELS, Lens, LensError
    from fieldwatch.recon.geometry.neighbor_cache import cached_neighbors, neighbor_cache_folder
    from fieldwatch.recon.geometry.neighbor_refresh import NeighborRefresher
    from fieldwatch.recon.geometry.neighbors import NeighborTable, nearest_neighbors
    from fieldwatch.recon.geometry.normals import normals_from_depth
    from fieldwatch.recon.geometry.paths import focus_point, look_at, ring, spiral, turntable
    from fieldwatch.recon.geometry.rotations import (
        exponential,
        matrix_to_quaternion,
        normalized_quaternions,
        quaternion_to_matrix,
    )
    from fieldwatch.recon.geometry.similarity import Similarity, align_points
    from fieldwatch.recon.geometry.spherical_harmonics import (
        MAX_DEGREE,
        colors_to_constant,
        constant_to_colors,
        harmonic_colors,
        harmonics,
        harmonics_count,
    )
    from fieldwatch.recon.geometry.spread import evenly_spaced, spread_directions
from fieldwatch.recon.geometry.rigid_motion import inverse_rigid, rigid, transform_points

__all__ = [
    "BROWN",
    "LENS_MODELS",
    "MAX_DEGREE",
    "Camera",
    "Lens",
    "LensError",
    "NeighborRefresher",
    "NeighborTable",
    "Similarity",
    "TargetBall",
    "align_points",
    "cached_neighbors",
    "camera_extent",
    "colors_to_constant",
    "constant_to_colors",
    "evenly_spaced",
    "exponential",
    "far_cameras",
    "focus_point",
    "harmonic_colors",
    "harmonics",
    "harmonics_count",
    "inverse_rigid",
    "look_at",
    "matrix_to_quaternion",
    "near_cameras",
    "nearest_neighbors",
    "neighbor_cache_folder",
    "normalized_quaternions",
    "normals_from_depth",
    "quaternion_to_matrix",
    "rigid",
    "ring",
    "seen_from_all_sides",
    "similar_cameras",
    "spiral",
    "spread_directions",
    "target_ball",
    "transform_points",
    "turntable",
]

__getattr__, __dir__ = lazy_names(__name__)
