"""Exact closest points on a surface: distances to the triangles, not to samples of them."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float64, Int64
from scipy.spatial import KDTree

from fieldwatch.recon.mesh.box_tree import BoxTree
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_triangle import nearest_on_triangles
from fieldwatch.recon.mesh.triangles import Triangles

_POINTS = 1 << 14  # points per batch, which keeps their pairs with boxes within about 100 MB
_PAIRS = 1 << 17  # pairs of points and triangles per batch
# Landmarks per leaf of the search tree. From inside of a box, as a training that has lost its surface leaves one, most
# leaves are nearly equally far, and scipy's 10 take seven times as long. Near a surface, both take the same.
_LEAF = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class ClosestPoints:
    """Closest point of a surface for each query point.

    Attributes:
        points: closest points on the surface.
        distances: distances to the query points in world units.
        faces: faces of the closest points.
    """

    points: Float64[np.ndarray, "n 3"]
    distances: Float64[np.ndarray, "n"]
    faces: Int64[np.ndarray, "n"]


class SurfaceSearch:
    """A search structure for closest points, built once per mesh.

    The face of the nearest vertex or face center gives an upper bound of the distance. All faces whose bounding box is
    within this bound are then measured, so the result is exact.

    Args:
        mesh: mesh with faces.

    Raises:
        MeshError: the mesh has no faces.
    """

    def __init__(self, mesh: Triangles) -> None:
        if not len(mesh.faces):
            raise MeshError("a mesh without faces has no distances: no surface was found; check the step that made it")
        self._corners = mesh.corners
        self._boxes = BoxTree.around(mesh.corners)
        used, first = np.unique(mesh.faces, return_index=True)
        # Face centers and vertices: one of them is always near, which gives a tight first bound.
        self._landmarks = KDTree(np.concatenate([mesh.corners.mean(1), mesh.vertices[used]]), leafsize=_LEAF)
        self._landmark_faces = np.concatenate([np.arange(len(mesh.faces)), first // 3])

    @classmethod
    def kept_for(cls, mesh: Triangles) -> "SurfaceSearch":
        """Return the search structure of a mesh, built at the first call and kept for as long as the mesh.

        For a ground truth, which every evaluation of a training asks again.

        Raises:
            MeshError: the mesh has no faces.
        """
        if mesh not in _KEPT:
            _KEPT[mesh] = cls(mesh)
        return _KEPT[mesh]

    def closest(self, points: Float64[np.ndarray, "n 3"]) -> ClosestPoints:
        """Return the closest point of the surface for each query point.

        Raises:
            MeshError: a point is not finite.
        """
        wrong = ~np.isfinite(points).all(1)
        if wrong.any():
            raise MeshError(
                f"{int(wrong.sum())} of {len(points)} points are not finite, the first is row {int(wrong.argmax())}: "
                "remove them, or check the step that made them"
            )
        nearest = np.empty_like(points)
        faces = np.empty(len(points), np.int64)
        for start in range(0, len(points), _POINTS):
            rows = slice(start, start + _POINTS)
            nearest[rows], faces[rows] = self._closest(points[rows])
        return ClosestPoints(points=nearest, distances=np.linalg.norm(points - nearest, axis=1), faces=faces)

    def _closest(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Upper bound: the distance to the face of the nearest landmark.
        faces = self._landmark_faces[self._landmarks.query(points)[1]]
        nearest = nearest_on_triangles(points, self._corners[faces])
        squares = np.square(points - nearest).sum(1)
        rows, candidates, bounds = self._boxes.within(points, squares)
        order = np.lexsort((bounds, rows))
        rows = rows[order]
        candidates = candidates[order]
        bounds = bounds[order]
        is_first = np.ones(len(rows), np.bool_)
        is_first[1:] = rows[1:] != rows[:-1]
        # The candidate with the smallest bound first: its distance discards most of the others of the point.
        for which in (is_first, ~is_first):
            self._measure(points, (rows[which], candidates[which], bounds[which]), (nearest, squares, faces))
        return nearest, faces

    def _measure(
        self,
        points: np.ndarray,
        pairs: tuple[np.ndarray, np.ndarray, np.ndarray],
        best: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        """Measure pairs of points and faces, and update the best results in place."""
        nearest, squares, faces = best
        # Bounds may have tightened since the pairs were found.
        promising = pairs[2] <= squares[pairs[0]]
        rows = pairs[0][promising]
        candidates = pairs[1][promising]
        for start in range(0, len(rows), _PAIRS):
            row = rows[start : start + _PAIRS]
            face = candidates[start : start + _PAIRS]
            queried = np.take(points, row, axis=0)
            point = nearest_on_triangles(queried, np.take(self._corners, face, axis=0))
            squared = np.square(queried - point).sum(1)
            nearer = np.flatnonzero(squared < squares[row])
            # With repeated rows the last assignment wins: sort the nearest of each point to the end.
            nearer = nearer[np.lexsort((-squared[nearer], row[nearer]))]
            row = row[nearer]
            nearest[row] = point[nearer]
            squares[row] = squared[nearer]
            faces[row] = face[nearer]


_KEPT: WeakKeyDictionary[Triangles, SurfaceSearch] = WeakKeyDictionary()


def closest_points(
    mesh: Triangles, points: Float64[np.ndarray, "n 3"]
) -> tuple[Float64[np.ndarray, "n 3"], Float64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
    """Return the closest points of a surface, their distances to the query points, and their faces.

    Distances are exact, to the triangles. Use :class:`SurfaceSearch` for several sets of points, to build the search
    structure only once.

    Raises:
        MeshError: the mesh has no faces, or a point is not finite.
    """
    result = SurfaceSearch(mesh).closest(points)
    return result.points, result.distances, result.faces
