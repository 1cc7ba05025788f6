"""Filling texels without samples: from nearby texels on the surface, and between charts from the charts."""

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.spatial import KDTree

from fieldwatch.recon.mesh.texels import Texels
from fieldwatch.recon.mesh.triangles import Triangles

_MAX_SEEN = 100_000
"""Largest number of seen texels to search; a regular subset is used if there are more."""
_NEIGHBORS = 6
_SEARCH_TOLERANCE = 0.5
"""Relative error allowed in neighbor distances: exact search is several times slower."""
_NORMAL_WEIGHT = 0.1
"""Distance for a unit normal difference, as a fraction of the diagonal: opposite sides of a thin wall are not near."""
_BLOCK = 1 << 18


def fill_unseen(
    mesh: Triangles,
    texels: Texels,
    colors: Float32[np.ndarray, "t 3"],
    seen: Bool[np.ndarray, "t"],
) -> Float32[np.ndarray, "t 3"]:
    """Replace the colors of unseen texels by the mean of the nearest seen ones on the surface.

    Distance combines position and normal; the weights are inverse squared distances.

    Args:
        mesh: textured surface.
        texels: texels of its texture.
        colors: color of each texel.
        seen: True for texels with a sample.
    """
    seen_rows = np.flatnonzero(seen)
    unseen_rows = np.flatnonzero(~seen)
    if not len(seen_rows) or not len(unseen_rows):
        return colors
    # Every k-th seen texel bounds the tree's size.
    seen_rows = seen_rows[:: -(-len(seen_rows) // _MAX_SEEN)]
    normal_scale = _NORMAL_WEIGHT * float(np.linalg.norm(np.ptp(mesh.vertices[mesh.faces.reshape(-1)], axis=0)))
    tree = KDTree(_features(mesh, texels, seen_rows, normal_scale))
    filled = colors.copy()
    for start in range(0, len(unseen_rows), _BLOCK):
        rows = unseen_rows[start : start + _BLOCK]
        number = min(_NEIGHBORS, len(seen_rows))
        gap, near = tree.query(_features(mesh, texels, rows, normal_scale), k=number, eps=_SEARCH_TOLERANCE)
        # With one neighbor, scipy drops the second dimension.
        gap = np.reshape(gap, (-1, number))
        near = np.reshape(near, (-1, number))
        # Inverse squared distance; the floor keeps coincident texels finite.
        weights = 1 / np.maximum(gap / max(normal_scale, 1e-300), 1e-9) ** 2
        weights /= weights.sum(1, keepdims=True)
        filled[rows] = (weights[..., None] * colors[seen_rows[near]]).sum(1)
    return filled


def _features(
    mesh: Triangles, texels: Texels, rows: Int64[np.ndarray, "k"], normal_scale: float
) -> Float64[np.ndarray, "k 6"]:
    # Position and scaled normal: near means close by and facing alike.
    return np.concatenate([texels.points(mesh, rows), normal_scale * mesh.normals[texels.faces[rows]]], axis=1)


def pad_texture(texels: Texels, colors: Float32[np.ndarray, "t 3"]) -> UInt8[np.ndarray, "size size 3"]:
    """Return the whole texture, with unused texels filled by the pull-push algorithm.

    Source: Gortler et al., The lumigraph, 1996. An unused texel takes the mean of the smallest aligned square of 2, 4,
    8 ... texels around it that has any color, which is what the mipmaps show there.
    """
    size = texels.size
    picture = np.zeros((size, size, 3), np.float32)
    known = np.zeros((size, size), np.float32)
    picture.reshape(-1, 3)[texels.indices] = colors
    known.reshape(-1)[texels.indices] = 1
    _pull_push(picture, known)
    return np.rint(picture).clip(0, 255).astype(np.uint8)


def _pull_push(picture: Float32[np.ndarray, "height width 3"], known: Float32[np.ndarray, "height width"]) -> None:
    """Fill the unknown texels of an image in place, level by level."""
    # Nothing to fill, or nothing to fill with.
    if known.all() or not known.any():
        return
    height, width = known.shape
    padding = ((0, height % 2), (0, width % 2))
    weight = _sum_quads(np.pad(known, padding))
    smaller = _sum_quads(np.pad(picture * known[..., None], (*padding, (0, 0))))
    # Mean over the known texels only; squares without any remain unknown for the next level.
    smaller /= np.maximum(weight, 1)[..., None]
    _pull_push(smaller, (weight > 0).astype(np.float32))
    larger = smaller.repeat(2, 0)[:height].repeat(2, 1)[:, :width]
    missing = known == 0
    picture[missing] = larger[missing]


def _sum_quads(values: Float32[np.ndarray, "height width *c"]) -> Float32[np.ndarray, "rows columns *c"]:
    """Sum over squares of 2 x 2 texels."""
    return values[::2, ::2] + values[1::2, ::2] + values[::2, 1::2] + values[1::2, 1::2]
