"""Moving the vertices of a mesh onto the surface points that it was made from."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.triangles import Triangles

_MIN_COSINE = 0.3  # least cosine between a face's normal before and after
_MIN_AREA_SHARE = 0.1  # least area after, as a part of that before
_MIN_SHAPE_SHARE = 0.2  # least shape (4 sqrt(3) area / sum of squares of the sides) after, as a part of that before


def snapped(mesh: Triangles, points: OrientedPoints, *, farthest: float) -> Triangles:
    """Return a mesh with its vertices at the points nearest to them, and with these points' colours.

    A vertex stays where it is if no point is near enough, or if its move would turn a face around, make it a sliver or
    take its area: several vertices may have the same nearest point. So no face becomes degenerate that was not, where
    SuGaR's projection leaves thousands of them.

    Args:
        mesh: welded.
        points: of the surface.
        farthest: that a vertex may move, in world units.

    Raises:
        MeshError: the distance is below 0.
    """
    if not farthest >= 0:
        raise MeshError(f"vertices may move by {farthest} at the most: give a distance of 0 or more, in world units")
    if not len(points) or not len(mesh.vertices):
        return mesh
    distance, row = nearest(search_tree(points.points), mesh.vertices, 1)
    is_moved = distance[:, 0] <= farthest
    targets = points.points[row[:, 0]]
    colours = mesh.colours if points.colours is None else points.colours[row[:, 0]]
    # Undoing one vertex may spoil a neighboring face: repeat until all faces are sound.
    while is_moved.any():
        positions = np.where(is_moved[:, None], targets, mesh.vertices)
        degraded = _degraded_faces(mesh, positions) & is_moved[mesh.faces].any(1)
        if not degraded.any():
            break
        is_moved[mesh.faces[degraded].reshape(-1)] = False  # ends: vertices only ever go back
    return replace(mesh, vertices=np.where(is_moved[:, None], targets, mesh.vertices), colours=colours)


def _degraded_faces(mesh: Triangles, positions: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, "m"]:
    """Return faces that other places of the vertices would turn, shrink or flatten."""
    first, second, third = np.moveaxis(positions[mesh.faces], 1, 0)
    span = np.cross(second - first, third - first)
    area = np.linalg.norm(span, axis=1) / 2
    sides = np.square(second - first).sum(1) + np.square(third - second).sum(1) + np.square(first - third).sum(1)
    before = np.square(mesh.side_lengths).sum(1)
    # `span` is twice the area long, hence the factor 2.
    turned = np.einsum("mi,mi->m", span, mesh.normals) < 2 * _MIN_COSINE * area
    flat = area * before < _MIN_SHAPE_SHARE * mesh.areas * sides
    return (turned | flat | (area < _MIN_AREA_SHARE * mesh.areas) | (area == 0)) & (mesh.areas > 0)
