"""Colours for texels that no photo shows: on the surface from seen ones nearby, between charts from the charts."""

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.spatial import KDTree

from fieldwatch.recon.mesh.texels import Texels
from fieldwatch.recon.mesh.triangles import Triangles

_MAX_SEEN = 100_000
"""Seen texels that are looked at: of more, an even choice."""
_NEIGHBOURS = 6
_SEARCH_TOLERANCE = 0.5
"""Share by which a neighbour may be farther away than the nearest: exact search is several times slower."""
_NORMAL_WEIGHT = 0.1
"""Share of the mesh's diagonal that facing another way counts for: the other side of a thin wall is not near."""
_BLOCK = 1 << 18


def fill_unseen(
    mesh: Triangles,
    texels: Texels,
    colours: Float32[np.ndarray, "t 3"],
    seen: Bool[np.ndarray, "t"],
) -> Float32[np.ndarray, "t 3"]:
    """Return colours with those of unseen texels replaced: mean of the nearest seen ones on the surface.

    Near is meant in space and direction together; means are by one over the square of the distance.

    Args:
        mesh: the surface.
        texels: of its texture.
        colours: of the texels.
        seen: which of them count.
    """
    seen_rows = np.flatnonzero(seen)
    unseen_rows = np.flatnonzero(~seen)
    if not len(seen_rows) or not len(unseen_rows):
        return colours
    # Every k-th seen texel bounds the tree's size.
    seen_rows = seen_rows[:: -(-len(seen_rows) // _MAX_SEEN)]
    normal_scale = _NORMAL_WEIGHT * float(np.linalg.norm(np.ptp(mesh.vertices[mesh.faces.reshape(-1)], axis=0)))
    tree = KDTree(_features(mesh, texels, seen_rows, normal_scale))
    filled = colours.copy()
    for start in range(0, len(unseen_rows), _BLOCK):
        rows = unseen_rows[start : start + _BLOCK]
        number = min(_NEIGHBOURS, len(seen_rows))
        gap, near = tree.query(_features(mesh, texels, rows, normal_scale), k=number, eps=_SEARCH_TOLERANCE)
        gap = np.reshape(gap, (-1, number))
        near = np.reshape(near, (-1, number))
        # Inverse squared distance; the floor keeps coincident texels finite.
        weights = 1 / np.maximum(gap / max(normal_scale, 1e-300), 1e-9) ** 2
        weights /= weights.sum(1, keepdims=True)
        filled[rows] = (weights[..., None] * colours[seen_rows[near]]).sum(1)
    return filled


def _features(
    mesh: Triangles, texels: Texels, rows: Int64[np.ndarray, "k"], normal_scale: float
) -> Float64[np.ndarray, "k 6"]:
    return np.concatenate([texels.points(mesh, rows), normal_scale * mesh.normals[texels.faces[rows]]], axis=1)


def pad_texture(texels: Texels, colours: Float32[np.ndarray, "t 3"]) -> UInt8[np.ndarray, "size size 3"]:
    """Return the whole picture: texels in their places, and between them means over ever larger squares.

    Push and pull (Gortler et al., The lumigraph, 1996): a texel without colour takes the mean of the smallest square of
    2, 4, 8 .. texels around it that has any, which is what smaller copies of the picture show there.
    """
    size = texels.size
    picture = np.zeros((size, size, 3), np.float32)
    known = np.zeros((size, size), np.float32)
    picture.reshape(-1, 3)[texels.indices] = colours
    known.reshape(-1)[texels.indices] = 1
    _pull_push(picture, known)
    return np.rint(picture).clip(0, 255).astype(np.uint8)


def _pull_push(picture: Float32[np.ndarray, "height width 3"], known: Float32[np.ndarray, "height width"]) -> None:
    """Fill the unknown places of a picture, in place."""
    if known.all() or not known.any():
        return
    height, width = known.shape
    padding = ((0, height % 2), (0, width % 2))
    weight = _sum_quads(np.pad(known, padding))
    smaller = _sum_quads(np.pad(picture * known[..., None], (*padding, (0, 0))))
    # Mean over the known texels only; squares without any stay 0 and unknown.
    smaller /= np.maximum(weight, 1)[..., None]
    _pull_push(smaller, (weight > 0).astype(np.float32))
    larger = smaller.repeat(2, 0)[:height].repeat(2, 1)[:, :width]
    missing = known == 0
    picture[missing] = larger[missing]


def _sum_quads(values: Float32[np.ndarray, "height width *c"]) -> Float32[np.ndarray, "rows columns *c"]:
    """Sums over squares of two by two."""
    return values[::2, ::2] + values[1::2, ::2] + values[::2, 1::2] + values[1::2, 1::2]
