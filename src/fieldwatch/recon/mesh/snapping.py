"""Projection of mesh vertices onto the surface points that the mesh was reconstructed from."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.triangles import Triangles

_MIN_COSINE = 0.3  # least cosine between a face's normal before and after
_MIN_AREA_SHARE = 0.1  # least area after, as a fraction of the area before
_MIN_SHAPE_SHARE = 0.2
"""Least shape quality, 4 sqrt(3) area / (sum of squared sides), after the move, as a fraction of that before."""


def snapped(mesh: Triangles, points: OrientedPoints, *, farthest: float) -> Triangles:
    """Move each vertex to its nearest surface point, and take over the colors of these points.

    A vertex keeps its position if no point is close enough, or if the move would flip a face, turn it into a sliver or
    remove its area (several vertices may share a nearest point). No face becomes degenerate that was not before;
    SuGaR's projection leaves thousands of degenerate faces.

    Args:
        mesh: mesh with merged vertices.
        points: surface points.
        farthest: largest displacement of a vertex, in world units.

    Raises:
        MeshError: `farthest` is negative or NaN.
    """
    if not farthest >= 0:
        raise MeshError(f"the largest displacement of a vertex must be at least 0 world units, got {farthest}")
    if not len(points) or not len(mesh.vertices):
        return mesh
    distance, row = nearest(search_tree(points.points), mesh.vertices, 1)
    is_moved = distance[:, 0] <= farthest
    targets = points.points[row[:, 0]]
    colors = mesh.colors if points.colors is None else points.colors[row[:, 0]]
    # Undoing the move of one vertex may degrade a neighboring face: repeat until no face is degraded.
    while is_moved.any():
        positions = np.where(is_moved[:, None], targets, mesh.vertices)
        degraded = _degraded_faces(mesh, positions) & is_moved[mesh.faces].any(1)
        if not degraded.any():
            break
        is_moved[mesh.faces[degraded].reshape(-1)] = False  # terminates: a vertex is never moved again
    return replace(mesh, vertices=np.where(is_moved[:, None], targets, mesh.vertices), colors=colors)


def _degraded_faces(mesh: Triangles, positions: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, "m"]:
    """Return the faces that new vertex positions would flip, shrink or flatten."""
    first, second, third = np.moveaxis(positions[mesh.faces], 1, 0)
    span = np.cross(second - first, third - first)
    area = np.linalg.norm(span, axis=1) / 2
    sides = np.square(second - first).sum(1) + np.square(third - second).sum(1) + np.square(first - third).sum(1)
    before = np.square(mesh.side_lengths).sum(1)
    # The length of `span` is twice the area, which explains the factor 2.
    turned = np.einsum("mi,mi->m", span, mesh.normals) < 2 * _MIN_COSINE * area
    flat = area * before < _MIN_SHAPE_SHARE * mesh.areas * sides
    return (turned | flat | (area < _MIN_AREA_SHARE * mesh.areas) | (area == 0)) & (mesh.areas > 0)
