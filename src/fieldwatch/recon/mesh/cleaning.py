"""Making a mesh manifold again: what welding, snapping and simplification leave behind."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fieldwatch.recon.mesh.edges import Edges
from fieldwatch.recon.mesh.triangles import Triangles

_SEPARATION = 1e-3  # of the way to the middle of its faces: how far a vertex is put that stood at another's place


def cleaned(mesh: Triangles) -> Triangles:
    """Return a mesh in which every edge has one or two faces and every vertex one fan of them.

    Vertices at the same place become one. Faces that name a vertex twice go, and copies of a face; two faces back to
    back cancel. The longest side of a face without area is flipped. Faces with a rim that hang on an edge of three
    faces or more go. Where more than two still meet, those that enclose material between them stay together, and the
    others are cut off, with vertices of their own a thousandth of a side away; what remains tangled loses its smallest
    faces. Vertices of no face go. So two solids that touch become two closed pieces.

    Args:
        mesh: any; texture coordinates stay with their faces, and then no sides are flipped.
    """
    welded = mesh.welded()
    a, b, c = welded.faces.T
    welded = welded.chosen((a != b) & (b != c) & (c != a))
    welded = welded.chosen(_keep_one_of_copies(welded.faces))
    if welded.uvs is None:
        welded = _flip_flat_faces(welded)
    # Removing a flap may leave another one with a rim: repeat until none hangs.
    while (hanging := _hanging_faces(welded)).any():
        welded = welded.chosen(~hanging)
    split = _split_fans(welded)
    while len(split.edges.non_manifold):  # faces that meet in tangles no pairing resolves
        split = split.chosen(~_smallest_at_crowded_edges(split))
    return _split_fans(split)


def _smallest_at_crowded_edges(mesh: Triangles) -> Bool[np.ndarray, "m"]:
    """Return of each edge of three faces or more the smallest of these."""
    half = np.flatnonzero(mesh.edges.uses[mesh.edges.edge] > 2)
    half = half[np.lexsort((mesh.areas[mesh.edges.face[half]], mesh.edges.edge[half]))]
    _, first = np.unique(mesh.edges.edge[half], return_index=True)
    chosen = np.zeros(len(mesh.faces), np.bool_)
    chosen[mesh.edges.face[half[first]]] = True
    return chosen


def _hanging_faces(mesh: Triangles) -> Bool[np.ndarray, "m"]:
    """Return faces with a rim that hang on an edge of three faces or more."""
    uses = mesh.edges.uses[mesh.edges.edge]
    rim = np.bincount(mesh.edges.face, uses == 1, minlength=len(mesh.faces)) > 0
    crowded = np.bincount(mesh.edges.face, uses > 2, minlength=len(mesh.faces)) > 0
    return rim & crowded


def _keep_one_of_copies(faces: Int64[np.ndarray, "m 3"]) -> Bool[np.ndarray, "m"]:
    """Return which faces to keep of those with the same corners: one, or none where as many face each way."""
    if not len(faces):
        return np.ones(0, np.bool_)
    order = np.sort(faces, axis=1)
    _, group = np.unique(order, axis=0, return_inverse=True)
    group = group.reshape(-1)
    lowest_corner = faces.argmin(1)
    rows = np.arange(len(faces))
    # Which way round the three vertices run, independent of where the face starts.
    orientation = np.where(faces[rows, (lowest_corner + 1) % 3] < faces[rows, (lowest_corner + 2) % 3], 1, -1)
    balance = np.bincount(group, orientation)[group]
    majority = np.sign(balance) == orientation
    keep = np.zeros(len(faces), np.bool_)
    chosen = np.flatnonzero(majority)
    _, position = np.unique(group[chosen], return_index=True)
    keep[chosen[position]] = True
    return keep


def _flip_flat_faces(mesh: Triangles) -> Triangles:
    """Return a mesh whose faces without area, though with three corners, share their longest side no more."""
    # Relative to the longest side, so that the scale of the scene does not matter.
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
        neighbours = [other for other in faces_of_edge.get((min(a, b), max(a, b)), []) if other != face]
        if len(neighbours) != 1 or {face, neighbours[0]} & touched:
            continue
        apex = int(next(v for v in faces[neighbours[0]].tolist() if v not in (a, b)))
        new_edge = (min(c, apex), max(c, apex))
        # Never create an edge that exists already: the mesh would stop being manifold.
        if apex == c or new_edge in edges:
            continue
        faces[face] = (a, apex, c)
        faces[neighbours[0]] = (apex, b, c)
        edges.add(new_edge)
        touched |= {face, neighbours[0]}
    return replace(mesh, faces=faces)


def _faces_of_edges(edges: Edges) -> dict[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for edge, face in zip(edges.ends[edges.edge].tolist(), edges.face.tolist(), strict=True):
        found.setdefault((edge[0], edge[1]), []).append(face)
    return found


def _split_fans(mesh: Triangles) -> Triangles:
    """Return a mesh in which each fan of faces around a vertex has a vertex of its own."""
    if not len(mesh.faces):
        return mesh
    pairs = np.concatenate([_interior_pairs(mesh.edges), _crowded_pairs(mesh)])
    corner = _corners_of_sides(mesh)
    start = corner[pairs[:, 0]].reshape(-1)
    end = corner[pairs[:, 1]].reshape(-1)
    count = 3 * len(mesh.faces)
    # Corners joined across shared edges form the fans around each vertex.
    _, fan = connected_components(coo_array((np.ones(len(start)), (start, end)), (count, count)), directed=False)
    vertex = mesh.faces.reshape(-1)
    _, first = np.unique(fan, return_index=True)
    owner = vertex[first]  # of each fan, the vertex
    _, first_fan = np.unique(owner, return_index=True)
    if len(first_fan) == len(owner):
        return mesh
    is_extra = np.ones(len(owner), np.bool_)
    is_extra[first_fan] = False
    middles = mesh.corners.mean(1).repeat(3, axis=0)
    sizes = np.bincount(fan)
    fan_centre = np.stack([np.bincount(fan, middles[:, axis]) for axis in range(3)], axis=1) / sizes[:, None]
    positions = mesh.vertices[owner]
    positions = np.where(is_extra[:, None], positions + _SEPARATION * (fan_centre - positions), positions)
    colours = None if mesh.colours is None else mesh.colours[owner]
    faces = fan.reshape(-1, 3).astype(np.int64)
    return replace(mesh, vertices=positions, faces=faces, colours=colours)


def _corners_of_sides(mesh: Triangles) -> Int64[np.ndarray, "h 2"]:
    """Return for each half-edge the corners (numbered through all faces) at its lower and its higher vertex."""
    side = np.arange(len(mesh.edges.face)) % 3
    start = 3 * mesh.edges.face + side
    end = 3 * mesh.edges.face + (side + 1) % 3
    way = mesh.edges.forward
    return np.stack([np.where(way, start, end), np.where(way, end, start)], axis=1)


def _interior_pairs(edges: Edges) -> Int64[np.ndarray, "i 2"]:
    chosen = np.flatnonzero(edges.uses[edges.edge] == 2)
    return chosen[np.argsort(edges.edge[chosen], kind="stable")].reshape(-1, 2)


def _crowded_pairs(mesh: Triangles) -> Int64[np.ndarray, "k 2"]:
    """Return pairs of half-edges at edges of three faces or more, whose faces enclose material between them."""
    edges = mesh.edges
    chosen = np.flatnonzero(edges.uses[edges.edge] > 2)
    chosen = chosen[np.argsort(edges.edge[chosen], kind="stable")]
    groups = np.split(chosen, np.flatnonzero(np.diff(edges.edge[chosen])) + 1) if len(chosen) else []
    pairs = [pair for group in groups for pair in _wedges(mesh, group)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _wedges(mesh: Triangles, group: Int64[np.ndarray, "g"]) -> list[tuple[int, int]]:
    """Pair the faces around one edge.

    A face that runs along the edge forward has its material on the side of smaller angles: it belongs to the nearest
    one before it, by angle, that runs backward. They match like brackets around a circle.
    """
    edges = mesh.edges
    low, high = mesh.vertices[edges.ends[edges.edge[group[0]]]]
    angle = _angles(mesh.corners[edges.face[group]].sum(1) - low - high - low, high - low)
    ring = group[np.argsort(angle, kind="stable")].tolist()
    pairs: list[tuple[int, int]] = []
    waiting: list[int] = []
    # Twice around the circle, as brackets may match across the start.
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
    """Return angles around a direction, counter-clockwise as seen against it, from any fixed start."""
    across = np.cross(along, np.eye(3)[np.abs(along).argmin()])
    second = np.cross(along, across) / max(float(np.linalg.norm(along)), 1e-300)
    return np.arctan2(away @ second, away @ across)
