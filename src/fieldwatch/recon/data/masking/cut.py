"""Binary segmentation by a minimum cut, as in GrabCut (Rother, Kolmogorov and Blake 2004)."""

import numpy as np
from jaxtyping import Bool, Float32
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

# Directions to half of the eight neighbors: (down, right) and the distance.
_NEIGHBORS = ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 2**0.5), (1, -1, 2**0.5))
_SCALE = 256  # capacities are whole numbers
_MIN_VARIANCE = 1e-6


def minimum_cut(
    image: Float32[np.ndarray, "height width 3"],
    odds: Float32[np.ndarray, "height width"],
    smoothness: float,
    free: Bool[np.ndarray, "height width"] | None = None,
) -> Bool[np.ndarray, "height width"]:
    """Return the mask with the smallest energy: the log odds of its pixels, and the contrast along its edge.

    A pair of neighbors with different labels costs ``smoothness * exp(-d / (2 * mean(d))) / distance``, where d is the
    squared difference of their colors.

    Args:
        image: colors.
        odds: log odds of the foreground for every pixel.
        smoothness: cost of an edge between equal colors.
        free: pixels to decide; the others keep the sign of their odds. None decides all.
    """
    free = np.ones(odds.shape, bool) if free is None else free
    fixed = odds > 0
    number = np.full(odds.shape, -1, np.int64)
    number[free] = np.arange(int(free.sum()))
    towards = np.zeros(odds.shape)
    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for first, second, cost in _edges(image, smoothness):
        a = number[first]
        b = number[second]
        both = (a >= 0) & (b >= 0)
        pairs.append((a[both], b[both], cost[both]))
        # A neighbor that is fixed pulls to its own side.
        for here, there, at in ((a, fixed[second], first), (b, fixed[first], second)):
            alone = (here >= 0) & ~both
            np.add.at(towards, tuple(axis[alone] for axis in at), np.where(there[alone], cost[alone], -cost[alone]))
    total = np.rint(_SCALE * (odds + towards)[free]).astype(np.int64)
    result = fixed.copy()
    result[free] = _source_side(total, pairs)
    return result


def _edges(
    image: Float32[np.ndarray, "height width 3"], smoothness: float
) -> list[tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], np.ndarray]]:
    """Return pairs of neighbors, as indices of their pixels, and the cost of separating them."""
    height, width = image.shape[:2]
    rows = np.repeat(np.arange(height)[:, None], width, 1)
    columns = np.repeat(np.arange(width)[None, :], height, 0)
    found: list[tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], np.ndarray, float]] = []
    for down, right, distance in _NEIGHBORS:
        left = slice(max(-right, 0), width - max(right, 0))
        over = slice(max(right, 0), width + min(right, 0))
        upper = slice(0, height - down)
        lower = slice(down, height)
        apart = np.square(image[upper, left] - image[lower, over]).sum(-1).ravel()
        first = (rows[upper, left].ravel(), columns[upper, left].ravel())
        second = (rows[lower, over].ravel(), columns[lower, over].ravel())
        found.append((first, second, apart, distance))
    usual = max(float(np.concatenate([each[2] for each in found]).mean()), _MIN_VARIANCE)
    return [(a, b, smoothness * np.exp(-apart / (2 * usual)) / distance) for a, b, apart, distance in found]


def _source_side(odds: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return which nodes remain connected to the source after a minimum cut."""
    count = len(odds)
    source = count
    sink = count + 1
    a, b = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    cost = np.rint(_SCALE * np.concatenate([pair[2] for pair in pairs])).astype(np.int64)
    ahead = np.flatnonzero(odds > 0)
    behind = np.flatnonzero(odds < 0)
    start = np.concatenate([a, b, np.full(len(ahead), source), behind])
    end = np.concatenate([b, a, ahead, np.full(len(behind), sink)])
    capacity = np.concatenate([cost, cost, odds[ahead], -odds[behind]]).astype(np.int32)
    graph = csr_matrix((capacity, (start, end)), shape=(count + 2, count + 2))
    residual = graph - maximum_flow(graph, source, sink).flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    side = np.zeros(count + 2, bool)
    side[breadth_first_order(residual, source, return_predecessors=False)] = True
    return side[:count]
