"""Inside test for closed surfaces: winding numbers along rays, vectorized over points."""

from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial.transform import Rotation

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles

# Three directions along no axis common in modeled meshes, so that rays do not run along edges.
_RAY_ROTATIONS = (
    Rotation.from_rotvec([0.3183, 1.1287, -0.6439]).as_matrix(),
    Rotation.from_rotvec([-0.9211, 0.4347, 0.7713]).as_matrix(),
    Rotation.from_rotvec([0.5519, -0.3271, 1.7937]).as_matrix(),
)
_MAX_GRID_ENTRIES = 1 << 22  # maximum number of pairs of a face and a grid column
_MAX_PAIRS = 1 << 18  # pairs of points and faces per batch


def encloses(mesh: Triangles) -> bool:
    """Return whether a mesh has an inside: after welding it is closed and orientable."""
    welded = mesh.welded()
    return welded.closed and welded.turned(welded.misoriented).consistently_wound


def points_inside(mesh: Triangles, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, "n"]:
    """Return which points are inside a closed mesh, by the winding number.

    Overlapping components form one body. An inner shell with the opposite winding is a cavity. The faces crossed by a
    ray from the point are counted with their direction, after flipping faces wound against their neighbors. Two rays
    are cast, and a third one if they disagree because one of them hit an edge exactly.

    Raises:
        MeshError: the mesh is open or not orientable, so it has no inside.
    """
    welded = mesh.welded()
    welded = welded.turned(welded.misoriented)
    if not (welded.closed and welded.consistently_wound):
        rim = len(welded.edges.boundary)
        crowded = len(welded.edges.non_manifold)
        raise MeshError(
            f"an open mesh has no inside: {rim} edges have one face, {crowded} have three or more; close the mesh first"
        )
    # Two skew directions: a ray through an edge or vertex is miscounted in one of them only.
    first, second = (_winding(welded.corners, points, view) != 0 for view in _RAY_ROTATIONS[:2])
    unsure = np.flatnonzero(first != second)
    if len(unsure):
        first[unsure] = _winding(welded.corners, points[unsure], _RAY_ROTATIONS[2]) != 0
    return first


def _winding(
    corners: Float64[np.ndarray, "m 3 3"], points: Float64[np.ndarray, "n 3"], view: Float64[np.ndarray, "3 3"]
) -> Int64[np.ndarray, "n"]:
    """Sum over the faces above each point in rotated axes: 1 for a face that faces up, -1 for one that faces down."""
    corners = corners @ view.T
    points = points @ view.T
    low = corners.min((0, 1))
    high = corners.max((0, 1))
    size = max(1, int(np.sqrt(len(corners))))
    # A grid over the projection limits the candidates of each point to the faces above its cell.
    columns, faces, size = _columns(corners, low, high, size)
    # Points outside the bounding box, or above it, have no crossings.
    total = np.zeros(len(points), np.int64)
    candidates = np.flatnonzero(
        ((points[:, :2] >= low[:2]) & (points[:, :2] <= high[:2])).all(1) & (points[:, 2] <= high[2])
    )
    cell = _cells(points[candidates, :2], low, high, size) @ (size, 1)
    begin = np.searchsorted(columns, cell)
    end = np.searchsorted(columns, cell, side="right")
    for rows in _pair_ranges(end - begin):
        counts = (end - begin)[rows]
        owner = np.repeat(candidates[rows], counts)
        entry = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begin[rows], counts)
        # np.add.at is unbuffered: several faces may add to one point.
        np.add.at(total, owner, _crossings(corners[faces[entry]], points[owner]))
    return total


def _pair_ranges(counts: np.ndarray) -> list[slice]:
    """Split rows into ranges of at most `_MAX_PAIRS` pairs, with at least one row each."""
    ends = np.cumsum(counts)
    cuts = [0]
    start = 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        start = max(int(np.searchsorted(ends, before + _MAX_PAIRS, side="right")), start + 1)
        cuts.append(start)
    return [slice(one, other) for one, other in pairwise(cuts)]


def _cells(places: np.ndarray, low: np.ndarray, high: np.ndarray, size: int) -> Int64[np.ndarray, "n 2"]:
    span = np.maximum(high[:2] - low[:2], np.finfo(np.float64).tiny)
    return ((places - low[:2]) / span * size).astype(np.int64).clip(0, size - 1)


def _columns(corners: np.ndarray, low: np.ndarray, high: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return grid columns with the faces over them, sorted by column; the grid is coarsened until it fits."""
    while True:
        first_cell = _cells(corners[..., :2].min(1), low, high, size)
        spans = _cells(corners[..., :2].max(1), low, high, size) - first_cell + 1
        counts = spans.prod(1)
        if size == 1 or counts.sum() <= max(_MAX_GRID_ENTRIES, 16 * len(corners)):
            break
        size = max(1, size // 2)
    faces = np.repeat(np.arange(len(corners)), counts)
    cell_number = np.arange(len(faces)) - np.repeat(np.cumsum(counts) - counts, counts)
    across = first_cell[faces, 0] + cell_number // spans[faces, 1]
    down = first_cell[faces, 1] + cell_number % spans[faces, 1]
    columns = across * size + down
    order = np.argsort(columns, kind="stable")
    return columns[order], faces[order], size


def _crossings(corners: Float64[np.ndarray, "k 3 3"], points: Float64[np.ndarray, "k 3"]) -> Int64[np.ndarray, "k"]:
    """Return 1 or -1 if the upward ray from a point crosses the face, by the direction of the face, else 0."""
    offsets = corners - points[:, None]
    sides = np.stack([_side(offsets[:, i], offsets[:, (i + 1) % 3]) for i in range(3)], axis=1)
    # The projection of the point is inside the face if all edge functions have the same sign.
    facing = (sides > 0).all(1).astype(np.int64) - (sides < 0).all(1).astype(np.int64)
    total = sides.sum(1)
    # Interpolated height of the face above the point, times `total`; the corner opposite to side i is i + 2.
    height = np.einsum("ki,ki->k", sides, np.roll(offsets[..., 2], -2, axis=1))
    return np.where(height * np.sign(total) > 0, facing, 0)


def _side(start: Float64[np.ndarray, "k 3"], end: Float64[np.ndarray, "k 3"]) -> Float64[np.ndarray, "k"]:
    """Return the edge function of the origin; the two faces of an edge get exactly opposite values."""
    return start[:, 0] * end[:, 1] - end[:, 0] * start[:, 1]
