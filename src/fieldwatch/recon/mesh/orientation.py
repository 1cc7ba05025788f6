"""Orientation of surfaces: consistent, outward winding."""

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.triangles import Triangles

# A direction that is parallel to none of the faces and edges common in modeled or gridded meshes.
_RAY = np.array([0.5773, 0.2113, 0.7887])


def facing_outward(mesh: Triangles, points: OrientedPoints | None = None) -> Triangles:
    """Wind all faces counter-clockwise as seen from outside.

    In each connected component, the minority of faces is flipped so that neighbors agree. A closed component then gets
    a positive volume. Inside an odd number of other closed components, it is the wall of a cavity and gets a negative
    one. An open component is oriented by the normals of the nearest points, or without points by the majority of its
    faces.

    Args:
        mesh: mesh with merged vertices. Components that cannot be oriented (Möbius strips) are not changed.
        points: points with outward normals.
    """
    if not len(mesh.faces):
        return mesh
    consistent = mesh.turned(mesh.misoriented)
    edges = consistent.edges
    not_manifold = np.zeros(int(consistent.pieces.max()) + 1, np.bool_)
    piece_of_half = consistent.pieces[edges.face]
    not_manifold[piece_of_half[edges.uses[edges.edge] != 2]] = True
    unorientable = np.zeros_like(not_manifold)
    unorientable[consistent.pieces[edges.neighbors[edges.opposed].reshape(-1)]] = True
    # A volume of exactly 0 has no inside, so such a component counts as open.
    volumes = _volumes(consistent)
    closed = ~not_manifold & ~unorientable & (volumes != 0)
    flip = np.zeros_like(not_manifold)
    depth = _depths(consistent, closed)
    # Outer shells need a positive volume, shells inside an odd number of others a negative one.
    flip[closed] = (volumes[closed] > 0) != (depth[closed] % 2 == 0)
    if points is not None and len(points):
        agreement = _agreement(consistent, points)
        flip[~closed & ~unorientable] = agreement[~closed & ~unorientable] < 0
    flip_faces = flip[consistent.pieces]
    oriented = consistent.turned(flip_faces) if flip_faces.any() else consistent
    if unorientable.any():  # restore the winding of these components
        faces = np.where(unorientable[mesh.pieces][:, None], mesh.faces, oriented.faces)
        agreed_faces = unorientable[mesh.pieces] & mesh.misoriented
        oriented = oriented.turned(agreed_faces) if (faces != oriented.faces).any() else oriented
    return oriented


def _volumes(mesh: Triangles) -> Float64[np.ndarray, "k"]:
    """Return the signed volume of each component, relative to its first corner to avoid cancellation of large terms."""
    first = np.full(int(mesh.pieces.max()) + 1, -1)
    # With repeated indices the last assignment wins, so reverse order leaves the first face of each component.
    first[mesh.pieces[::-1]] = np.arange(len(mesh.faces))[::-1]
    corners = mesh.corners - mesh.corners[first[mesh.pieces], :1]
    parts = np.einsum("mi,mi->m", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])) / 6
    return np.bincount(mesh.pieces, parts)


def _agreement(mesh: Triangles, points: OrientedPoints) -> Float64[np.ndarray, "k"]:
    """Return the area of each component weighted by the cosines between its normals and those of the nearest points."""
    _, row = nearest(search_tree(points.points), mesh.corners.mean(1), 1)
    cosine = np.einsum("mi,mi->m", mesh.normals, points.normals[row[:, 0]])
    return np.bincount(mesh.pieces, mesh.areas * cosine)


def _depths(mesh: Triangles, closed: Bool[np.ndarray, "k"]) -> np.ndarray:
    """Return the number of other closed components that contain each closed component."""
    depth = np.zeros(len(closed), np.int64)
    if closed.sum() < 2:
        return depth
    order = np.argsort(mesh.pieces, kind="stable")
    starts = np.searchsorted(mesh.pieces[order], np.arange(len(closed) + 1))
    corners_of_piece = {int(k): mesh.corners[order[starts[k] : starts[k + 1]]] for k in np.flatnonzero(closed)}
    boxes = {k: (corners.min((0, 1)), corners.max((0, 1))) for k, corners in corners_of_piece.items()}
    # One point per component suffices: closed components do not intersect.
    probes = np.array([corners_of_piece[k][0].mean(0) for k in corners_of_piece])
    piece_numbers = np.array(list(corners_of_piece))
    for k, corners in corners_of_piece.items():
        low, high = boxes[k]
        within = ((probes >= low) & (probes <= high)).all(1) & (piece_numbers != k)
        for number in np.flatnonzero(within):
            depth[piece_numbers[number]] += _inside(probes[number], corners)
    return depth


def _inside(place: Float64[np.ndarray, "3"], corners: Float64[np.ndarray, "m 3 3"]) -> bool:
    """Return True if a ray from a point crosses a closed surface an odd number of times (Möller & Trumbore 1997)."""
    first = corners[:, 1] - corners[:, 0]
    second = corners[:, 2] - corners[:, 0]
    across = np.cross(_RAY, second)
    # Determinant of the Möller-Trumbore system; 0 for rays parallel to the face.
    size = np.einsum("mi,mi->m", first, across)
    safe = np.where(size == 0, np.inf, size)
    off = place - corners[:, 0]
    u = np.einsum("mi,mi->m", off, across) / safe
    turned = np.cross(off, first)
    v = turned @ _RAY / safe
    along = np.einsum("mi,mi->m", second, turned) / safe
    hit = (size != 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (along > 0)
    return bool(hit.sum() % 2)
