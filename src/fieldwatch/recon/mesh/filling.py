"""Colours for texels that no photo shows: on the surface from seen ones nearby, between charts from the charts."""

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.spatial import KDTree

from fieldwatch.recon.mesh.texels import Texels
from fieldwatch.recon.mesh.triangles import Triangles

_MOST = 100_000
"""Seen texels that are looked at: of more, an even choice."""
_NEIGHBOURS = 6
_NEARLY = 0.5
"""Share by which a neighbour may be farther away than the nearest: exact search is several times slower."""
_TURN = 0.1
"""Share of the mesh's diagonal that facing another way counts for: the other side of a thin wall is not near."""
_BLOCK = 1 << 18


def from_seen_nearby(
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
    known = np.flatnonzero(seen)
    wanted = np.flatnonzero(~seen)
    if not len(known) or not len(wanted):
        return colours
    known = known[:: -(-len(known) // _MOST)]
    turn = _TURN * float(np.linalg.norm(np.ptp(mesh.vertices[mesh.faces.reshape(-1)], axis=0)))
    tree = KDTree(_features(mesh, texels, known, turn))
    made = colours.copy()
    for start in range(0, len(wanted), _BLOCK):
        rows = wanted[start : start + _BLOCK]
        number = min(_NEIGHBOURS, len(known))
        gap, near = tree.query(_features(mesh, texels, rows, turn), k=number, eps=_NEARLY)
        gap = np.reshape(gap, (-1, number))
        near = np.reshape(near, (-1, number))
        weights = 1 / np.maximum(gap / max(turn, 1e-300), 1e-9) ** 2
        weights /= weights.sum(1, keepdims=True)
        made[rows] = (weights[..., None] * colours[known[near]]).sum(1)
    return made


def _features(mesh: Triangles, texels: Texels, rows: Int64[np.ndarray, "k"], turn: float) -> Float64[np.ndarray, "k 6"]:
    return np.concatenate([texels.points(mesh, rows), turn * mesh.normals[texels.faces[rows]]], axis=1)


def filled_picture(texels: Texels, colours: Float32[np.ndarray, "t 3"]) -> UInt8[np.ndarray, "size size 3"]:
    """Return the whole picture: texels in their places, and between them means over ever larger squares.

    Push and pull (Gortler et al., The lumigraph, 1996): a texel without colour takes the mean of the smallest square of
    2, 4, 8 .. texels around it that has any, which is what smaller copies of the picture show there.
    """
    size = texels.size
    picture = np.zeros((size, size, 3), np.float32)
    known = np.zeros((size, size), np.float32)
    picture.reshape(-1, 3)[texels.places] = colours
    known.reshape(-1)[texels.places] = 1
    _fill(picture, known)
    return np.rint(picture).clip(0, 255).astype(np.uint8)


def _fill(picture: Float32[np.ndarray, "height width 3"], known: Float32[np.ndarray, "height width"]) -> None:
    """Fill the unknown places of a picture, in place."""
    if known.all() or not known.any():
        return
    height, width = known.shape
    even = ((0, height % 2), (0, width % 2))
    weight = _quartered(np.pad(known, even))
    smaller = _quartered(np.pad(picture * known[..., None], (*even, (0, 0))))
    smaller /= np.maximum(weight, 1)[..., None]
    _fill(smaller, (weight > 0).astype(np.float32))
    larger = smaller.repeat(2, 0)[:height].repeat(2, 1)[:, :width]
    missing = known == 0
    picture[missing] = larger[missing]


def _quartered(values: Float32[np.ndarray, "height width *c"]) -> Float32[np.ndarray, "rows columns *c"]:
    """Sums over squares of two by two."""
    return values[::2, ::2] + values[1::2, ::2] + values[::2, 1::2] + values[1::2, 1::2]
