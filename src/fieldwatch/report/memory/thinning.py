"""Thinning of memory histories for charts, without losing extremes and jumps."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.memory.trace import Floats

BUCKETS = 300
"""Number of parts of a chart, each with up to two points: finer than the pixels of a narrow page."""


def thinned(values: Floats, required: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the rows to draw: the first, the last, the extremes of each of 300 equal parts, and required rows.

    Args:
        values: ``[n]`` values whose extremes are kept.
        required: rows that are kept in any case.
    """
    count = len(values)
    if count <= 2 * BUCKETS:
        return np.arange(count)
    edges = np.linspace(0, count, BUCKETS + 1).astype(int)
    # Infinite values cannot be the lowest; below, minus infinity takes their place.
    parts = [np.where(np.isfinite(part), part, np.inf) for part in np.split(values, edges[1:-1])]
    lowest = [start + int(np.argmin(part)) for start, part in zip(edges[:-1], parts, strict=True)]
    highest = [
        start + int(np.argmax(np.where(np.isfinite(p), p, -np.inf))) for start, p in zip(edges[:-1], parts, strict=True)
    ]
    return np.unique(np.concatenate((lowest, highest, required, [0, count - 1])).astype(np.intp))
