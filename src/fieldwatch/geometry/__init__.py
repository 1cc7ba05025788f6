"""Geometry: pure tensor maths (cameras, rotations, lenses, normals, harmonics, similarities); nearest neighbours."""

from fieldwatch.geometry.cameras import Camera, camera_extent
from fieldwatch.geometry.lenses import LENS_MODELS, Lens, LensError
from fieldwatch.geometry.neighbour_cache import cached_neighbours, neighbour_cache_folder
from fieldwatch.geometry.neighbour_refresh import Neighbours
from fieldwatch.geometry.neighbours import NeighbourTable, nearest_neighbours
from fieldwatch.geometry.normals import normals_from_depth
from fieldwatch.geometry.paths import look_at, looked_at, ring, spiral, turntable
from fieldwatch.geometry.rigid import inverse_rigid, rigid, transform_points
from fieldwatch.geometry.rotations import (
    exponential,
    matrix_to_quaternion,
    normalized_quaternions,
    quaternion_to_matrix,
)
from fieldwatch.geometry.similarity import Similarity, align_points
from fieldwatch.geometry.spherical_harmonics import (
    MAX_DEGREE,
    colours_to_constant,
    constant_to_colours,
    harmonic_colours,
    harmonics,
    harmonics_count,
)

__all__ = [
    "LENS_MODELS",
    "MAX_DEGREE",
    "Camera",
    "Lens",
    "LensError",
    "NeighbourTable",
    "Neighbours",
    "Similarity",
    "align_points",
    "cached_neighbours",
    "camera_extent",
    "colours_to_constant",
    "constant_to_colours",
    "exponential",
    "harmonic_colours",
    "harmonics",
    "harmonics_count",
    "inverse_rigid",
    "look_at",
    "looked_at",
    "matrix_to_quaternion",
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
