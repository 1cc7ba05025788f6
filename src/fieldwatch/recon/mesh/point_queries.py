"""What the points nearest to a place say about it: their distances, how densely they lie, their colours."""

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.points import OrientedPoints

_DENSITY_NEIGHBOURS = 10  # neighbours over which a density is taken
_CHUNK = 1 << 15  # places asked for at a time: bounds the memory of the answers


def search_tree(points: Float64[np.ndarray, "n 3"]) -> cKDTree:
    """Return a tree to search among points; built fast rather than balanced."""
    return cKDTree(points, balanced_tree=False, compact_nodes=False)


def nearest(
    tree: cKDTree, positions: Float64[np.ndarray, "n 3"], count: int
) -> tuple[Float64[np.ndarray, "n k"], Int64[np.ndarray, "n k"]]:
    """Return distances to the nearest `count` points, nearest first, and their rows; fewer if there are fewer."""
    wanted = list(range(1, min(count, tree.n) + 1))
    distance = np.empty((len(positions), len(wanted)))
    row = np.empty((len(positions), len(wanted)), np.int64)
    for start in range(0, len(positions), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance[part], row[part] = tree.query(positions[part], k=wanted, workers=-1)
    return distance, row


def mean_distances(tree: cKDTree, points: Float64[np.ndarray, "n 3"], count: int) -> Float64[np.ndarray, "n"]:
    """Return the mean distance of each point of the tree to the `count` points nearest to it."""
    means = np.empty(len(points))
    for start in range(0, len(points), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, _ = nearest(tree, points[part], count + 1)
        means[part] = distance[:, 1:].mean(1)
    return means


def sample_areas(tree: cKDTree, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n"]:
    """Return the area of surface that each point of the tree stands for.

    The points within the distance r of the k-th neighbour (k = 10) share a disc of the area pi r².
    """
    areas = np.empty(len(points))
    for start in range(0, len(points), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, _ = nearest(tree, points[part], _DENSITY_NEIGHBOURS + 1)
        areas[part] = np.pi * np.square(distance[:, -1]) / max(distance.shape[1] - 1, 1)
    return areas


def sample_density(
    tree: cKDTree, positions: Float64[np.ndarray, "n 3"], counts: Float64[np.ndarray, "p"]
) -> Float64[np.ndarray, "n"]:
    """Return samples per unit of area at places.

    Args:
        tree: of the points.
        positions: on or near the surface; far from all points the density falls with the square of the distance.
        counts: samples that each point of the tree stands for.
    """
    density = np.empty(len(positions))
    for start in range(0, len(positions), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance, row = nearest(tree, positions[part], _DENSITY_NEIGHBOURS)
        reach = np.maximum(distance[:, -1], np.finfo(np.float64).tiny ** 0.25)
        within = max(1, row.shape[1] - 1)  # the farthest lies on the rim of the disc
        density[part] = counts[row[:, :within]].sum(1) / (np.pi * reach**2)
    return density


def nearest_colours(positions: Float64[np.ndarray, "n 3"], points: OrientedPoints) -> UInt8[np.ndarray, "n 3"] | None:
    """Return the colours of the points nearest to places; None if the points have none."""
    if points.colours is None or not len(points):
        return None
    _, row = nearest(search_tree(points.points), positions, 1)
    return points.colours[row[:, 0]]


def check_filled(points: OrientedPoints, wanted: int, use: str) -> None:
    """Refuse too few points.

    Raises:
        MeshError: fewer than `wanted`.
    """
    if len(points) < wanted:
        raise MeshError(
            f"{use} needs {wanted} points or more, there are {len(points)}: nothing was found on the surface. "
            "A lower surface level, a larger box or more views may help"
        )
