"""Nearest-neighbor queries in point clouds: distances, sampling density and colors."""

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.points import OrientedPoints

_DENSITY_NEIGHBORS = 10  # neighbors per density estimate
_CHUNK = 1 << 15  # positions per query, which bounds the memory of the results


def search_tree(points: Float64[np.ndarray, "n 3"]) -> cKDTree:
    """Build a k-d tree of points, optimized for build time rather than balance."""
    return cKDTree(points, balanced_tree=False, compact_nodes=False)


def nearest(
    tree: cKDTree, positions: Float64[np.ndarray, "n 3"], count: int
) -> tuple[Float64[np.ndarray, "n k"], Int64[np.ndarray, "n k"]]:
    """Return distances and rows of the `count` nearest points, nearest first; fewer if the tree has fewer."""
    # A list of neighbor numbers keeps the second dimension even for one neighbor.
    wanted = list(range(1, min(count, tree.n) + 1))
    distance = np.empty((len(positions), len(wanted)))
    row = np.empty((len(positions), len(wanted)), np.int64)
    for start in range(0, len(positions), _CHUNK):
        part = slice(start, start + _CHUNK)
        # All cores: the queries are independent, and scipy releases the GIL.
        distance[part], row[part] = tree.query(positions[part], k=wanted, workers=-1)
    return distance, row


def mean_distances(tree: cKDTree, points: Float64[np.ndarray, "n 3"], count: int) -> Float64[np.ndarray, "n"]:
    """Return the mean distance of each point of the tree to its `count` nearest neighbors."""
    means = np.empty(len(points))
    for start in range(0, len(points), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, _ = nearest(tree, points[part], count + 1)  # the nearest one is the point itself
        means[part] = distance[:, 1:].mean(1)
    return means


def sample_areas(tree: cKDTree, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
    """Estimate the surface area that each point of the tree represents.

    The k = 10 nearest neighbors share a disc of area pi r², where r is the distance of the k-th.
    """
    areas = np.empty(len(points))
    for start in range(0, len(points), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, _ = nearest(tree, points[part], _DENSITY_NEIGHBORS + 1)
        areas[part] = np.pi * np.square(distance[:, -1]) / max(distance.shape[1] - 1, 1)
    return areas


def sample_density(
    tree: cKDTree, positions: Float64[np.ndarray, "n 3"], counts: Float64[np.ndarray, "p"]
) -> Float64[np.ndarray, "n"]:
    """Estimate the number of samples per unit of surface area at given positions.

    Args:
        tree: k-d tree of the points.
        positions: positions on or near the surface. Far from all points, the density falls with the square of the
            distance.
        counts: number of samples that each point of the tree represents.
    """
    density = np.empty(len(positions))
    for start in range(0, len(positions), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, row = nearest(tree, positions[part], _DENSITY_NEIGHBORS)
        # The lower bound keeps the squared reach above the underflow for coincident points.
        reach = np.maximum(distance[:, -1], np.finfo(np.float64).tiny ** 0.25)
        within = max(1, row.shape[1] - 1)  # the farthest neighbor is on the circumference, not inside the disc
        density[part] = counts[row[:, :within]].sum(1) / (np.pi * reach**2)
    return density


def nearest_colors(positions: Float64[np.ndarray, "n 3"], points: OrientedPoints) -> UInt8[np.ndarray, "n 3"] | None:
    """Return the colors of the points nearest to given positions; None if the points have no colors."""
    if points.colors is None or not len(points):
        return None
    _, row = nearest(search_tree(points.points), positions, 1)
    return points.colors[row[:, 0]]


def check_filled(points: OrientedPoints, wanted: int, use: str) -> None:
    """Check that there are enough points for an operation.

    Raises:
        MeshError: there are fewer than `wanted` points.
    """
    if len(points) < wanted:
        raise MeshError(
            f"{use} needs at least {wanted} points, got {len(points)}: too few surface points were found. "
            "A lower surface level, a larger box or more views may help"
        )
