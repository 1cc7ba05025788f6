"""Repair of non-manifold geometry, such as welding, snapping and decimation leave behind."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fieldwatch.recon.mesh.edges import Edges
from fieldwatch.recon.mesh.triangles import Triangles

_SEPARATION = 1e-3
"""Displacement of a split vertex, as a fraction of the way to the center of its faces."""


def cleaned(mesh: Triangles) -> Triangles:
    """Return a manifold mesh: every edge has one or two faces, and every vertex one fan of faces.

    The steps, in order:

    1. Merge vertices at equal positions.
    2. Remove faces that reference a vertex twice and duplicate faces; two faces back to back cancel.
    3. Flip the longest side of faces without area.
    4. Remove faces that have a boundary edge and also an edge of three or more faces.
    5. At the remaining edges of more than two faces, keep those faces joined that enclose material between them. Split
       the others off, with new vertices displaced by a thousandth of a side. Two solids that touch become two closed
       components.
    6. Where no such pairing exists, remove the smallest faces.

    Unreferenced vertices are removed.

    Args:
        mesh: any mesh. Texture coordinates stay with their faces; in a mesh that has them, no side is flipped.
    """
    welded = mesh.welded()
    a, b, c = welded.faces.T
    welded = welded.chosen((a != b) & (b != c) & (c != a))
    welded = welded.chosen(_keep_one_of_copies(welded.faces))
    if welded.uvs is None:
        welded = _flip_flat_faces(welded)
    # Removing a flap may expose the next one: repeat until none is left.
    while (hanging := _hanging_faces(welded)).any():
        welded = welded.chosen(~hanging)
    split = _split_fans(welded)
    while len(split.edges.non_manifold):  # no pairing of the faces resolves these edges
        split = split.chosen(~_smallest_at_crowded_edges(split))
    return _split_fans(split)


def _smallest_at_crowded_edges(mesh: Triangles) -> Bool[np.ndarray, "m"]:
    """Return the smallest face of each edge that has three or more."""
    half = np.flatnonzero(mesh.edges.uses[mesh.edges.edge] > 2)
    half = half[np.lexsort((mesh.areas[mesh.edges.face[half]], mesh.edges.edge[half]))]
    _, first = np.unique(mesh.edges.edge[half], return_index=True)
    chosen = np.zeros(len(mesh.faces), np.bool_)
    chosen[mesh.edges.face[half[first]]] = True
    return chosen


def _hanging_faces(mesh: Triangles) -> Bool[np.ndarray, "m"]:
    """Return flaps: faces with a boundary edge and an edge of three or more faces."""
    uses = mesh.edges.uses[mesh.edges.edge]
    rim = np.bincount(mesh.edges.face, uses == 1, minlength=len(mesh.faces)) > 0
    crowded = np.bincount(mesh.edges.face, uses > 2, minlength=len(mesh.faces)) > 0
    return rim & crowded


def _keep_one_of_copies(faces: Int64[np.ndarray, "m 3"]) -> Bool[np.ndarray, "m"]:
    """Keep one of the faces with the same corners, or none if equally many face each way."""
    if not len(faces):
        return np.ones(0, np.bool_)
    order = np.sort(faces, axis=1)
    _, group = np.unique(order, axis=0, return_inverse=True)
    group = group.reshape(-1)
    lowest_corner = faces.argmin(1)
    rows = np.arange(len(faces))
    # Winding direction, independent of the corner that the face starts with.
    orientation = np.where(faces[rows, (lowest_corner + 1) % 3] < faces[rows, (lowest_corner + 2) % 3], 1, -1)
    balance = np.bincount(group, orientation)[group]
    majority = np.sign(balance) == orientation
    keep = np.zeros(len(faces), np.bool_)
    chosen = np.flatnonzero(majority)
    _, position = np.unique(group[chosen], return_index=True)
    keep[chosen[position]] = True
    return keep


def _flip_flat_faces(mesh: Triangles) -> Triangles:
    """Flip the longest side of each face that has three distinct corners and no area."""
    # Relative to the longest side, so that the test does not depend on the scale of the scene.
    flat = np.flatnonzero(mesh.areas <= 1e-12 * np.square(mesh.side_lengths).max(1, initial=0))
    if not len(flat):
        return mesh
    faces = mesh.faces.copy()
    faces_of_edge = _faces_of_edges(mesh.edges)
    edges = {tuple(pair) for pair in mesh.edges.ends.tolist()}
    touched: set[int] = set()
    for face in flat.tolist():
        side = int(mesh.side_lengths[face].argmax())
        a, b, c = np.roll(faces[face], -side).tolist()
        neighbors = [other for other in faces_of_edge.get((min(a, b), max(a, b)), []) if other != face]
        # A boundary side cannot be flipped, and a face may change only once per pass: `edges` would be stale.
        if len(neighbors) != 1 or {face, neighbors[0]} & touched:
            continue
        apex = int(next(v for v in faces[neighbors[0]].tolist() if v not in (a, b)))
        new_edge = (min(c, apex), max(c, apex))
        # A second edge between the same vertices would make the mesh non-manifold.
        if apex == c or new_edge in edges:
            continue
        faces[face] = (a, apex, c)
        faces[neighbors[0]] = (apex, b, c)
        edges.add(new_edge)
        touched |= {face, neighbors[0]}
    return replace(mesh, faces=faces)


def _faces_of_edges(edges: Edges) -> dict[tuple[int, int], list[int]]:
    mapping: dict[tuple[int, int], list[int]] = {}
    for edge, face in zip(edges.ends[edges.edge].tolist(), edges.face.tolist(), strict=True):
        mapping.setdefault((edge[0], edge[1]), []).append(face)
    return mapping


def _split_fans(mesh: Triangles) -> Triangles:
    """Duplicate vertices so that each fan of faces around a vertex has a separate one."""
    if not len(mesh.faces):
        return mesh
    # Pairs of half-edges whose faces stay connected.
    pairs = np.concatenate([_interior_pairs(mesh.edges), _crowded_pairs(mesh)])
    corner = _corners_of_sides(mesh)
    start = corner[pairs[:, 0]].reshape(-1)
    end = corner[pairs[:, 1]].reshape(-1)
    count = 3 * len(mesh.faces)
    # Corners joined across shared edges form the fans around each vertex.
    _, fan = connected_components(coo_array((np.ones(len(start)), (start, end)), (count, count)), directed=False)
    vertex = mesh.faces.reshape(-1)
    _, first = np.unique(fan, return_index=True)
    owner = vertex[first]  # original vertex of each fan
    _, first_fan = np.unique(owner, return_index=True)
    if len(first_fan) == len(owner):
        return mesh
    # The first fan keeps the vertex in place. The others move, or the next weld would undo the split.
    is_extra = np.ones(len(owner), np.bool_)
    is_extra[first_fan] = False
    middles = mesh.corners.mean(1).repeat(3, axis=0)
    sizes = np.bincount(fan)
    fan_center = np.stack([np.bincount(fan, middles[:, axis]) for axis in range(3)], axis=1) / sizes[:, None]
    positions = mesh.vertices[owner]
    positions = np.where(is_extra[:, None], positions + _SEPARATION * (fan_center - positions), positions)
    colors = None if mesh.colors is None else mesh.colors[owner]
    faces = fan.reshape(-1, 3).astype(np.int64)
    return replace(mesh, vertices=positions, faces=faces, colors=colors)


def _corners_of_sides(mesh: Triangles) -> Int64[np.ndarray, "h 2"]:
    """Return the face corners (numbered across all faces) at the lower and the higher vertex of each half-edge."""
    side = np.arange(len(mesh.edges.face)) % 3
    start = 3 * mesh.edges.face + side
    end = 3 * mesh.edges.face + (side + 1) % 3
    is_forward = mesh.edges.forward
    return np.stack([np.where(is_forward, start, end), np.where(is_forward, end, start)], axis=1)


def _interior_pairs(edges: Edges) -> Int64[np.ndarray, "i 2"]:
    chosen = np.flatnonzero(edges.uses[edges.edge] == 2)
    return chosen[np.argsort(edges.edge[chosen], kind="stable")].reshape(-1, 2)


def _crowded_pairs(mesh: Triangles) -> Int64[np.ndarray, "k 2"]:
    """Pair the half-edges at edges of three or more faces such that both faces enclose material between them."""
    edges = mesh.edges
    chosen = np.flatnonzero(edges.uses[edges.edge] > 2)
    chosen = chosen[np.argsort(edges.edge[chosen], kind="stable")]
    groups = np.split(chosen, np.flatnonzero(np.diff(edges.edge[chosen])) + 1) if len(chosen) else []
    pairs = [pair for group in groups for pair in _wedges(mesh, group)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _wedges(mesh: Triangles, group: Int64[np.ndarray, "g"]) -> list[tuple[int, int]]:
    """Pair the faces around one edge.

    The material of a face that runs forward along the edge is on the side of smaller angles. Its partner is therefore
    the nearest unpaired backward face before it, by angle. They match like brackets around a circle.
    """
    edges = mesh.edges
    low, high = mesh.vertices[edges.ends[edges.edge[group[0]]]]
    # The sum of the corners less both ends is the third corner; less `low` again, its offset from the edge.
    angle = _angles(mesh.corners[edges.face[group]].sum(1) - low - high - low, high - low)
    ring = group[np.argsort(angle, kind="stable")].tolist()
    pairs: list[tuple[int, int]] = []
    waiting: list[int] = []
    # Twice around the circle: brackets may match across the start.
    for half in ring + ring:
        if any(half in pair for pair in pairs):
            continue
        if not edges.forward[half]:
            if half not in waiting:
                waiting.append(half)
        elif waiting:
            pairs.append((waiting.pop(), half))
    return pairs


def _angles(away: Float64[np.ndarray, "g 3"], along: Float64[np.ndarray, "3"]) -> Float64[np.ndarray, "g"]:
    """Return angles around an axis, counter-clockwise as seen against it, from an arbitrary fixed start."""
    # The coordinate axis least aligned with the edge gives the best-conditioned perpendicular.
    across = np.cross(along, np.eye(3)[np.abs(along).argmin()])
    second = np.cross(along, across) / max(float(np.linalg.norm(along)), 1e-300)
    return np.arctan2(away @ second, away @ across)
