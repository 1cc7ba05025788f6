"""Fewer points than snapshots, without losing what stands out."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.memory.trace import Floats

BUCKETS = 300


def thinned(values: Floats, also: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return rows to draw: of each of 300 equal parts the lowest and the highest, the first, the last and some more.

    Args:
        values: ``[n]``, the quantity whose extremes are kept.
        also: rows that must be among them.
    """
    count = len(values)
    if count <= 2 * BUCKETS:
        return np.arange(count)
    edges = np.linspace(0, count, BUCKETS + 1).astype(int)
    parts = [np.where(np.isfinite(part), part, np.inf) for part in np.split(values, edges[1:-1])]
    lowest = [start + int(np.argmin(part)) for start, part in zip(edges[:-1], parts, strict=True)]
    highest = [
        start + int(np.argmax(np.where(np.isfinite(p), p, -np.inf))) for start, p in zip(edges[:-1], parts, strict=True)
    ]
    return np.unique(np.concatenate((lowest, highest, also, [0, count - 1])).astype(np.intp))
