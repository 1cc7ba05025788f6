"""Triangulation of the polygons in mesh files."""

import numpy as np
from jaxtyping import Int64

from fieldwatch.recon.mesh.error import MeshError


def fans(counts: Int64[np.ndarray, "p"]) -> Int64[np.ndarray, "m 3"]:
    """Return the triangles of polygons as indices into the concatenated list of their corners.

    Each polygon becomes a triangle fan around its first corner, which is correct for convex polygons.

    Args:
        counts: number of corners of each polygon.

    Raises:
        MeshError: a polygon has fewer than three corners.
    """
    if (counts < 3).any():
        row = int((counts < 3).argmax())
        msg = f"face {row} has {int(counts[row])} corners, expected at least 3: the file is damaged, copy it again"
        raise MeshError(msg)
    # Position of the first corner of each polygon in the concatenated list.
    start = np.cumsum(counts) - counts
    triangle_counts = counts - 2
    first = np.repeat(start, triangle_counts)
    # Number of the triangle within its polygon: a running count minus the count at the polygon's start.
    step = np.arange(int(triangle_counts.sum()))
    step -= np.repeat(np.cumsum(triangle_counts) - triangle_counts, triangle_counts)
    return np.stack([first, first + step + 1, first + step + 2], axis=1)
