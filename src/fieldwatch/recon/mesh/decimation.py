"""Fewer triangles for the same surface."""

import fast_simplification
import numpy as np

from fieldwatch.recon.mesh.cleaning import cleaned
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import nearest, search_tree
from fieldwatch.recon.mesh.triangles import Triangles

_MAX_ROUNDS = 12
_MIN_REACHED_SHARE = 0.9  # of the number asked for, at the least
_AGGRESSION = 5.0


def decimated(mesh: Triangles, *, triangles: int | None = None, vertices: int | None = None) -> Triangles:
    """Return a mesh of at most so many triangles, or vertices, by quadric edge collapse (Garland & Heckbert 1997).

    The work is fast-simplification's. Its result may miss the number by a little: it is repeated until at most as many
    remain as asked for, and 90 % of them or more where that is possible. A closed mesh stays closed. Colours are
    those of the nearest former vertices; texture coordinates belong to the former faces and go.

    Args:
        mesh: welded. It is returned as it is if it is small enough, or has no faces.
        triangles: the largest number of faces.
        vertices: the largest number of vertices; either this or `triangles`.

    Raises:
        MeshError: neither or both numbers given, one below 4, the mesh cannot be made as small as that (its pieces are
            too many), or the memory does not suffice.
    """
    goal = _goal(triangles, vertices)
    if not len(mesh.faces) or _size(mesh, triangles) <= goal:
        return mesh
    target = goal if triangles is not None else int(goal * len(mesh.faces) / len(mesh.vertices))
    # targets that give too little and too much
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
        # A proportional guess where it stays inside the bracket, else bisection.
        target = guess if low < guess < high else (low + high) // 2
        if target in (low, high) or target < 1:
            break
    if best is None:
        kind = "vertices" if triangles is None else "triangles"
        raise MeshError(
            f"{len(mesh.faces)} faces cannot be simplified to {goal} {kind}: each of the mesh's "
            f"{int(mesh.pieces.max()) + 1} pieces and holes needs some. Remove small pieces first, or allow more"
        )
    return _with_colours(best, mesh)


def _goal(triangles: int | None, vertices: int | None) -> int:
    given = [number for number in (triangles, vertices) if number is not None]
    if len(given) != 1 or given[0] < 4:
        raise MeshError(
            f"a mesh is to have at most {triangles} triangles and {vertices} vertices: give one of the two numbers, "
            "4 or more"
        )
    return given[0]


def _size(mesh: Triangles, triangles: int | None) -> int:
    return len(mesh.vertices) if triangles is None else len(mesh.faces)


def _collapsed(mesh: Triangles, target: int, aggression: float) -> Triangles:
    # scaled to about 1: the library's thresholds are absolute
    middle = mesh.vertices.mean(0)
    scale = float(np.abs(mesh.vertices - middle).max()) or 1.0
    normalised = np.ascontiguousarray((mesh.vertices - middle) / scale)
    try:
        simpler = fast_simplification.simplify(normalised, mesh.faces, target_count=target, agg=aggression)
    except MemoryError as error:
        raise MeshError(
            f"simplifying {len(mesh.faces)} faces takes more memory than there is: extract the mesh at a lower "
            "resolution, or free memory"
        ) from error
    result = Triangles(vertices=simpler[0].astype(np.float64) * scale + middle, faces=simpler[1].astype(np.int64))
    return cleaned(result)


def _with_colours(found: Triangles, source: Triangles) -> Triangles:
    if source.colours is None:
        return found
    _, row = nearest(search_tree(source.vertices), found.vertices, 1)
    return Triangles(vertices=found.vertices, faces=found.faces, colours=source.colours[row[:, 0]])
