"""A tree of turned boxes around triangles: which of them may be as near to a point as a bound says."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float64, Int64

_WAYS = 4  # children of a box


@dataclass(frozen=True, kw_only=True, eq=False)
class _Level:
    """Boxes of one level of the tree, each around its share of the triangles, along the axes in which these spread.

    Attributes:
        middles: of the boxes.
        axes: three rows of unit length per box.
        reaches: half the lengths of the sides.
    """

    middles: Float64[np.ndarray, "b 3"]
    axes: Float64[np.ndarray, "b 3 3"]
    reaches: Float64[np.ndarray, "b 3"]

    def bounds(self, points: Float64[np.ndarray, "k 3"], boxes: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k"]:
        """The squared distance of each point from its box, 0 inside; a little less, for what was rounded."""
        within = np.einsum("kij,kj->ki", self.axes[boxes], points - self.middles[boxes])
        beyond = np.maximum(np.abs(within) - self.reaches[boxes], 0)
        return np.einsum("ki,ki->k", beyond, beyond)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxTree:
    """Boxes around triangles, four in each larger one (oriented boxes: Gottschalk, Lin & Manocha, OBBTree, 1996).

    Boxes that lie along the surface are thin, so that far from it few of them are as near as the nearest triangle.

    Attributes:
        order: triangles in the order of the leaves; every leaf is one triangle.
        levels: from few boxes to the leaves.
        starts: for each level, the first leaf of each box, and the number of leaves at the end.
    """

    order: Int64[np.ndarray, "m"]
    levels: tuple[_Level, ...]
    starts: tuple[np.ndarray, ...]

    @classmethod
    def around(cls, corners: Float64[np.ndarray, "m 3 3"]) -> Self:
        """Return the tree of some triangles."""
        depth = 0
        # Levels of a four-way tree that give every triangle a leaf of its own.
        while _WAYS**depth < len(corners):
            depth += 1
        order = np.arange(len(corners))
        centres = corners.mean(1)
        starts = [np.array([0, len(corners)])]
        for _ in range(2 * depth):  # two cuts in half make four
            order, cuts = _cut(centres, order, starts[-1])
            starts.append(cuts)
        chosen = tuple(starts[2::2]) if depth else (starts[0],)
        return cls(order=order, starts=chosen, levels=tuple(_boxes(corners[order], each) for each in chosen))

    def within(
        self, points: Float64[np.ndarray, "n 3"], squares: Float64[np.ndarray, "n"]
    ) -> tuple[Int64[np.ndarray, "k"], Int64[np.ndarray, "k"], Float64[np.ndarray, "k"]]:
        """Return pairs of points and triangles that may be as near as a bound, and how far apart they are at least.

        Args:
            points: places.
            squares: for each, the square of the bound.

        Returns:
            Rows of `points`, numbers of triangles, and squares of the least distance that the boxes leave open.
        """
        root_count = len(self.starts[0]) - 1
        rows = np.repeat(np.arange(len(points)), root_count)
        boxes = np.tile(np.arange(root_count), len(points))
        bounds = np.zeros(len(rows))
        for number, (level, starts) in enumerate(zip(self.levels, self.starts, strict=True)):
            # Prune: a box farther away than the bound cannot hold the nearest triangle.
            bounds = level.bounds(points[rows], boxes)
            # empty boxes: there are fewer triangles than leaves
            keep = (bounds <= squares[rows]) & (starts[boxes] < starts[boxes + 1])
            rows = rows[keep]
            boxes = boxes[keep]
            bounds = bounds[keep]
            if number + 1 < len(self.levels):
                rows = np.repeat(rows, _WAYS)
                boxes = (_WAYS * boxes[:, None] + np.arange(_WAYS)).reshape(-1)
        return rows, self.order[self.starts[-1][boxes]], bounds


def _cut(centres: np.ndarray, order: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort each range of the order along its longest extent, and cut it in half."""
    sizes = np.diff(starts)
    full = np.flatnonzero(sizes > 0)
    positions = centres[order]
    longest = np.zeros(len(sizes), np.int64)
    low = np.minimum.reduceat(positions, starts[full], axis=0)
    high = np.maximum.reduceat(positions, starts[full], axis=0)
    longest[full] = (high - low).argmax(1)
    range_number = np.repeat(np.arange(len(sizes)), sizes)
    along = positions[np.arange(len(order)), longest[range_number]]
    cuts = np.empty(2 * len(sizes) + 1, np.int64)
    cuts[::2] = starts
    cuts[1::2] = starts[:-1] + (sizes + 1) // 2
    return order[np.lexsort((along, range_number))], cuts


def _boxes(corners: Float64[np.ndarray, "m 3 3"], starts: np.ndarray) -> _Level:
    """The box around each range of triangles; empty ranges have a box of their own without meaning."""
    sizes = np.diff(starts)
    full = np.flatnonzero(sizes > 0)
    # reduceat needs ranges that are not empty.
    begins = starts[full]
    range_number = np.repeat(np.arange(len(full)), sizes[full])
    means = np.add.reduceat(corners.mean(1), begins, axis=0) / sizes[full, None]
    offsets = corners - means[range_number, None]
    spreads = np.add.reduceat(np.einsum("mci,mcj->mij", offsets, offsets), begins, axis=0)
    # Eigenvectors of the second moments: boxes turned along the surface.
    axes = np.linalg.eigh(spreads)[1].transpose(0, 2, 1)
    local = np.einsum("mij,mcj->mci", axes[range_number], offsets)
    low = np.minimum.reduceat(local.min(1), begins, axis=0)
    high = np.maximum.reduceat(local.max(1), begins, axis=0)
    # rounding must not leave a corner outside
    slack = 1e-12 * (np.abs(low).max(1) + np.abs(high).max(1) + np.abs(means).max(1))
    middles = means + np.einsum("bij,bi->bj", axes, (low + high) / 2)
    level = _Level(
        middles=np.zeros((len(sizes), 3)), axes=np.zeros((len(sizes), 3, 3)), reaches=np.zeros((len(sizes), 3))
    )
    level.middles[full] = middles
    level.axes[full] = axes
    level.reaches[full] = (high - low) / 2 + slack[:, None]
    return level
