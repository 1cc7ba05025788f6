"""Which side of a surface is out."""

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.triangles import Triangles

# no ray along this direction runs along the faces and edges that people and grids make
_RAY = np.array([0.5773, 0.2113, 0.7887])


def facing_outward(mesh: Triangles, points: OrientedPoints | None = None) -> Triangles:
    """Return a mesh whose faces are wound counter-clockwise, seen from outside.

    Within each piece the fewer faces are turned, so that neighbours agree. A closed piece then encloses a positive
    volume; one that lies inside an odd number of others is the wall of a hollow, and faces into it. An open piece faces
    the way of the normals of the points nearest to it; without points it stays as most of its faces are.

    Args:
        mesh: welded; a piece that cannot be oriented (a Möbius strip) is left as it is.
        points: with normals that point out.
    """
    if not len(mesh.faces):
        return mesh
    consistent = mesh.turned(mesh.misoriented)
    edges = consistent.edges
    not_manifold = np.zeros(int(consistent.pieces.max()) + 1, np.bool_)
    piece_of_half = consistent.pieces[edges.face]
    not_manifold[piece_of_half[edges.uses[edges.edge] != 2]] = True
    unorientable = np.zeros_like(not_manifold)
    unorientable[consistent.pieces[edges.neighbours[edges.opposed].reshape(-1)]] = True
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
    if unorientable.any():  # these no turning brings to agree
        faces = np.where(unorientable[mesh.pieces][:, None], mesh.faces, oriented.faces)
        agreed_faces = unorientable[mesh.pieces] & mesh.misoriented
        oriented = oriented.turned(agreed_faces) if (faces != oriented.faces).any() else oriented
    return oriented


def _volumes(mesh: Triangles) -> Float64[np.ndarray, "k"]:
    """Return the signed volume of each piece; each about its own first corner, so that large terms do not cancel."""
    first = np.full(int(mesh.pieces.max()) + 1, -1)
    first[mesh.pieces[::-1]] = np.arange(len(mesh.faces))[::-1]
    corners = mesh.corners - mesh.corners[first[mesh.pieces], :1]
    parts = np.einsum("mi,mi->m", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])) / 6
    return np.bincount(mesh.pieces, parts)


def _agreement(mesh: Triangles, points: OrientedPoints) -> Float64[np.ndarray, "k"]:
    """Return for each piece the area that faces as the nearest points do, less the area that faces against them."""
    _, row = nearest(search_tree(points.points), mesh.corners.mean(1), 1)
    cosine = np.einsum("mi,mi->m", mesh.normals, points.normals[row[:, 0]])
    return np.bincount(mesh.pieces, mesh.areas * cosine)


def _depths(mesh: Triangles, closed: Bool[np.ndarray, "k"]) -> np.ndarray:
    """Return for each closed piece how many other closed pieces it lies in."""
    depth = np.zeros(len(closed), np.int64)
    if closed.sum() < 2:
        return depth
    order = np.argsort(mesh.pieces, kind="stable")
    starts = np.searchsorted(mesh.pieces[order], np.arange(len(closed) + 1))
    corners_of_piece = {int(k): mesh.corners[order[starts[k] : starts[k + 1]]] for k in np.flatnonzero(closed)}
    boxes = {k: (corners.min((0, 1)), corners.max((0, 1))) for k, corners in corners_of_piece.items()}
    probes = np.array([corners_of_piece[k][0].mean(0) for k in corners_of_piece])
    piece_numbers = np.array(list(corners_of_piece))
    for k, corners in corners_of_piece.items():
        low, high = boxes[k]
        within = ((probes >= low) & (probes <= high)).all(1) & (piece_numbers != k)
        for number in np.flatnonzero(within):
            depth[piece_numbers[number]] += _inside(probes[number], corners)
    return depth


def _inside(place: Float64[np.ndarray, "3"], corners: Float64[np.ndarray, "m 3 3"]) -> bool:
    """True if a ray from a place crosses a closed surface an odd number of times (Möller & Trumbore 1997)."""
    first = corners[:, 1] - corners[:, 0]
    second = corners[:, 2] - corners[:, 0]
    across = np.cross(_RAY, second)
    # Determinant of Möller and Trumbore's system; 0 for rays parallel to the face.
    size = np.einsum("mi,mi->m", first, across)
    safe = np.where(size == 0, np.inf, size)
    off = place - corners[:, 0]
    u = np.einsum("mi,mi->m", off, across) / safe
    turned = np.cross(off, first)
    v = turned @ _RAY / safe
    along = np.einsum("mi,mi->m", second, turned) / safe
    hit = (size != 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (along > 0)
    return bool(hit.sum() % 2)
