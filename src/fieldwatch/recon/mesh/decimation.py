"""Mesh decimation by quadric edge collapse."""

import fast_simplification
import numpy as np

from fieldwatch.recon.mesh.cleaning import cleaned
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.triangles import Triangles

_MAX_ROUNDS = 12
_MIN_REACHED_SHARE = 0.9  # smallest accepted fraction of the requested number
_AGGRESSION = 5.0


def decimated(mesh: Triangles, *, triangles: int | None = None, vertices: int | None = None) -> Triangles:
    """Reduce a mesh to a maximum number of triangles or vertices by quadric edge collapse (Garland & Heckbert 1997).

    The collapse is done by fast-simplification, whose result may miss the number slightly. It is therefore repeated
    until the result has at most the requested number and, if possible, at least 90 % of it. A closed mesh stays closed.
    Vertices take the colors of the nearest original vertices; texture coordinates are dropped with the original faces.

    Args:
        mesh: mesh with merged vertices; returned unchanged if it is small enough or has no faces.
        triangles: maximum number of faces.
        vertices: maximum number of vertices. Give either this or `triangles`.

    Raises:
        MeshError: neither or both numbers are given, the number is below 4, the mesh has too many components to become
            that small, or memory ran out.
    """
    goal = _goal(triangles, vertices)
    if not len(mesh.faces) or _size(mesh, triangles) <= goal:
        return mesh
    # fast-simplification counts faces: estimate them from the ratio of faces to vertices.
    target = goal if triangles is not None else int(goal * len(mesh.faces) / len(mesh.vertices))
    # Bracket of targets: `low` gives a mesh that is too small, `high` one that is too large.
    low = 0
    high = len(mesh.faces)
    best: Triangles | None = None
    for round_number in range(_MAX_ROUNDS):
        # Later rounds simplify more aggressively, which reaches smaller sizes.
        simplified = _collapsed(mesh, target, _AGGRESSION + round_number // 4)
        size = _size(simplified, triangles)
        if size <= goal and len(simplified.faces):
            best = simplified if best is None or size > _size(best, triangles) else best
            if size >= _MIN_REACHED_SHARE * goal:
                break
            low = max(low, target)
        else:
            high = min(high, target)
        guess = int(target * goal / max(size, 1)) if size else target
        # A proportional guess if it is inside the bracket, else bisection.
        target = guess if low < guess < high else (low + high) // 2
        if target in (low, high) or target < 1:
            break
    if best is None:
        kind = "vertices" if triangles is None else "triangles"
        raise MeshError(
            f"{len(mesh.faces)} faces cannot be decimated to {goal} {kind}: each of the "
            f"{int(mesh.pieces.max()) + 1} pieces and their holes needs some. Remove small pieces, or allow more"
        )
    return _with_colors(best, mesh)


def _goal(triangles: int | None, vertices: int | None) -> int:
    given = [number for number in (triangles, vertices) if number is not None]
    if len(given) != 1 or given[0] < 4:
        raise MeshError(
            f"give either triangles or vertices, at least 4, got triangles={triangles} and vertices={vertices}"
        )
    return given[0]


def _size(mesh: Triangles, triangles: int | None) -> int:
    return len(mesh.vertices) if triangles is None else len(mesh.faces)


def _collapsed(mesh: Triangles, target: int, aggression: float) -> Triangles:
    # Scaled to about 1: the thresholds of fast-simplification are absolute.
    middle = mesh.vertices.mean(0)
    scale = float(np.abs(mesh.vertices - middle).max()) or 1.0
    normalized = np.ascontiguousarray((mesh.vertices - middle) / scale)
    try:
        simpler = fast_simplification.simplify(normalized, mesh.faces, target_count=target, agg=aggression)
    except MemoryError as error:
        raise MeshError(
            f"not enough memory to decimate {len(mesh.faces)} faces: extract the mesh at a lower resolution, or free "
            "memory"
        ) from error
    result = Triangles(vertices=simpler[0].astype(np.float64) * scale + middle, faces=simpler[1].astype(np.int64))
    return cleaned(result)


def _with_colors(mesh: Triangles, source: Triangles) -> Triangles:
    if source.colors is None:
        return mesh
    _, row = nearest(search_tree(source.vertices), mesh.vertices, 1)
    return Triangles(vertices=mesh.vertices, faces=mesh.faces, colors=source.colors[row[:, 0]])
