"""Geometry: cameras, lenses, rotations, normals, spherical harmonics, similarities and nearest neighbors."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.geometry.cameras import Camera, camera_extent, far_cameras, near_cameras
    from fieldwatch.recon.geometry.lenses import LENS_MODELS, Lens, LensError
    from fieldwatch.recon.geometry.neighbour_cache import cached_neighbours, neighbour_cache_folder
    from fieldwatch.recon.geometry.neighbour_refresh import NeighbourRefresher
    from fieldwatch.recon.geometry.neighbours import NeighbourTable, nearest_neighbours
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
        colours_to_constant,
        constant_to_colours,
        harmonic_colours,
        harmonics,
        harmonics_count,
    )
from fieldwatch.recon.geometry.rigid import inverse_rigid, rigid, transform_points

__all__ = [
    "LENS_MODELS",
    "MAX_DEGREE",
    "Camera",
    "Lens",
    "LensError",
    "NeighbourRefresher",
    "NeighbourTable",
    "Similarity",
    "align_points",
    "cached_neighbours",
    "camera_extent",
    "colours_to_constant",
    "constant_to_colours",
    "exponential",
    "far_cameras",
    "focus_point",
    "harmonic_colours",
    "harmonics",
    "harmonics_count",
    "inverse_rigid",
    "look_at",
    "matrix_to_quaternion",
    "near_cameras",
    "nearest_neighbours",
    "neighbour_cache_folder",
    "normalized_quaternions",
    "normals_from_depth",
    "quaternion_to_matrix",
    "rigid",
    "ring",
    "spiral",
    "transform_points",
    "turntable",
]

__getattr__, __dir__ = lazy_names(__name__)
