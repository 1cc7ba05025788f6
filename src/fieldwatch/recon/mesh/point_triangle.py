"""Nearest points on triangles, vectorized over pairs of points and triangles."""

import numpy as np
from jaxtyping import Float64


def nearest_on_triangles(
    points: Float64[np.ndarray, "n 3"], corners: Float64[np.ndarray, "n 3 3"]
) -> Float64[np.ndarray, "n 3"]:
    """Return the nearest point on each triangle to its query point.

    This is the foot of the perpendicular if that is inside the triangle, else the nearest point of the three sides. A
    triangle without area is treated as its sides.
    """
    best, squares = _nearest_on_side(points, corners[:, 0], corners[:, 1])
    # The nearest of the three sides; a foot inside the triangle replaces it below.
    for first, second in ((1, 2), (2, 0)):
        candidate, squared = _nearest_on_side(points, corners[:, first], corners[:, second])
        nearer = squared < squares
        best[nearer] = candidate[nearer]
        squares[nearer] = squared[nearer]
    rows, feet = _feet_inside(points, corners)
    best[rows] = feet
    return best


def _nearest_on_side(
    points: Float64[np.ndarray, "n 3"], start: Float64[np.ndarray, "n 3"], end: Float64[np.ndarray, "n 3"]
) -> tuple[Float64[np.ndarray, "n 3"], Float64[np.ndarray, "n"]]:
    """Return the nearest point of each side and its squared distance."""
    side = end - start
    along = np.einsum("ij,ij->i", points - start, side)
    length = np.einsum("ij,ij->i", side, side)
    share = np.divide(along, length, out=np.zeros_like(along), where=length > 0).clip(0, 1)
    # Measured from the nearer end, so that the result is exact at both ends.
    nearest = np.where(share[:, None] < 0.5, start + share[:, None] * side, end - (1 - share[:, None]) * side)
    gap = points - nearest
    return nearest, np.einsum("ij,ij->i", gap, gap)


def _feet_inside(
    points: Float64[np.ndarray, "n 3"], corners: Float64[np.ndarray, "n 3 3"]
) -> tuple[np.ndarray, Float64[np.ndarray, "k 3"]]:
    """Return the rows whose perpendicular foot is inside the triangle, and these feet."""
    first = corners[:, 1] - corners[:, 0]
    second = corners[:, 2] - corners[:, 0]
    normal = np.cross(first, second)
    gap = points - corners[:, 0]
    size = np.einsum("ij,ij->i", normal, normal)
    v = np.einsum("ij,ij->i", np.cross(gap, second), normal)
    w = np.einsum("ij,ij->i", np.cross(first, gap), normal)
    # Barycentric coordinates times the squared length of the normal: all positive inside.
    rows = np.flatnonzero((size > 0) & (v > 0) & (w > 0) & (v + w < size))
    v = v[rows] / size[rows]
    w = w[rows] / size[rows]
    return rows, corners[rows, 0] + v[:, None] * first[rows] + w[:, None] * second[rows]
