"""Polygons cut into triangles, as mesh files need it."""

import numpy as np
from jaxtyping import Int64

from fieldwatch.recon.mesh.error import MeshError


def fans(counts: Int64[np.ndarray, "p"]) -> Int64[np.ndarray, "m 3"]:
    """Return the triangles of polygons whose corners stand one after the other, as rows of that list of corners.

    Each polygon is a fan around its first corner: right where it is convex.

    Args:
        counts: corners of each polygon.

    Raises:
        MeshError: a polygon has fewer than three corners.
    """
    if (counts < 3).any():
        row = int((counts < 3).argmax())
        msg = f"face {row} has {int(counts[row])} corners, a face has three or more: the file is damaged, copy it again"
        raise MeshError(msg)
    start = np.cumsum(counts) - counts
    pieces = counts - 2
    first = np.repeat(start, pieces)
    step = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return np.stack([first, first + step + 1, first + step + 2], axis=1)
