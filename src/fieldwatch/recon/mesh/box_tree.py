"""A tree of oriented bounding boxes, which prunes triangles that are farther from a point than a bound."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float64, Int64

_WAYS = 4  # children per box


@dataclass(frozen=True, kw_only=True, eq=False)
class _Level:
    """Oriented boxes of one level of the tree, aligned with the principal axes of their triangles.

    Attributes:
        middles: centers of the boxes.
        axes: three unit axes per box, in rows.
        reaches: half lengths of the sides.
    """

    middles: Float64[np.ndarray, "b 3"]
    axes: Float64[np.ndarray, "b 3 3"]
    reaches: Float64[np.ndarray, "b 3"]

    def bounds(self, points: Float64[np.ndarray, "k 3"], boxes: Int64[np.ndarray, "k"]) -> Float64[np.ndarray, "k"]:
        """Return the squared distance of each point from its box, 0 inside. The boxes have a slack for rounding."""
        # `take` copies whole rows; indexing by an array takes twice as long.
        offsets = points - np.take(self.middles, boxes, axis=0)
        within = np.einsum("kij,kj->ki", np.take(self.axes, boxes, axis=0), offsets)
        beyond = np.maximum(np.abs(within) - np.take(self.reaches, boxes, axis=0), 0)
        return np.einsum("ki,ki->k", beyond, beyond)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxTree:
    """A four-way tree of oriented boxes around triangles (Gottschalk, Lin & Manocha, OBBTree, 1996).

    Boxes aligned with the surface are thin, so for a distant point few of them are as near as the nearest triangle.

    Attributes:
        order: triangle of each leaf.
        levels: boxes of each level, from the root to the leaves.
        starts: for each level, the first leaf of each box, followed by the number of leaves.
    """

    order: Int64[np.ndarray, "m"]
    levels: tuple[_Level, ...]
    starts: tuple[np.ndarray, ...]

    @classmethod
    def around(cls, corners: Float64[np.ndarray, "m 3 3"]) -> Self:
        """Build the tree of triangles."""
        depth = 0
        # Smallest depth at which every triangle has its own leaf.
        while _WAYS**depth < len(corners):
            depth += 1
        order = np.arange(len(corners))
        centers = corners.mean(1)
        starts = [np.array([0, len(corners)])]
        for _ in range(2 * depth):  # two binary cuts make four children
            order, cuts = _cut(centers, order, starts[-1])
            starts.append(cuts)
        chosen = tuple(starts[2::2]) if depth else (starts[0],)
        return cls(order=order, starts=chosen, levels=tuple(_boxes(corners[order], each) for each in chosen))

    def within(
        self, points: Float64[np.ndarray, "n 3"], squares: Float64[np.ndarray, "n"]
    ) -> tuple[Int64[np.ndarray, "k"], Int64[np.ndarray, "k"], Float64[np.ndarray, "k"]]:
        """Find pairs of points and triangles that may be within a distance.

        Args:
            points: query points.
            squares: squared distance limit of each point.

        Returns:
            Rows of `points`, triangles, and lower bounds of their squared distances.
        """
        root_count = len(self.starts[0]) - 1
        rows = np.repeat(np.arange(len(points)), root_count)
        boxes = np.tile(np.arange(root_count), len(points))
        bounds = np.zeros(len(rows))
        for number, (level, starts) in enumerate(zip(self.levels, self.starts, strict=True)):
            # Prune: a box farther away than the bound cannot hold the nearest triangle.
            bounds = level.bounds(np.take(points, rows, axis=0), boxes)
            # The second condition drops empty boxes: there may be fewer triangles than leaves.
            keep = (bounds <= squares[rows]) & (starts[boxes] < starts[boxes + 1])
            rows = rows[keep]
            boxes = boxes[keep]
            bounds = bounds[keep]
            if number + 1 < len(self.levels):
                # Descend: replace each remaining box by its children.
                rows = np.repeat(rows, _WAYS)
                boxes = (_WAYS * boxes[:, None] + np.arange(_WAYS)).reshape(-1)
        return rows, self.order[self.starts[-1][boxes]], bounds


def _cut(centers: np.ndarray, order: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort each range of triangles along its longest extent and cut it in half."""
    sizes = np.diff(starts)
    full = np.flatnonzero(sizes > 0)
    positions = centers[order]
    longest = np.zeros(len(sizes), np.int64)
    low = np.minimum.reduceat(positions, starts[full], axis=0)
    high = np.maximum.reduceat(positions, starts[full], axis=0)
    longest[full] = (high - low).argmax(1)
    range_number = np.repeat(np.arange(len(sizes)), sizes)
    along = positions[np.arange(len(order)), longest[range_number]]
    cuts = np.empty(2 * len(sizes) + 1, np.int64)
    cuts[::2] = starts
    # The first half gets the odd triangle.
    cuts[1::2] = starts[:-1] + (sizes + 1) // 2
    return order[np.lexsort((along, range_number))], cuts


def _boxes(corners: Float64[np.ndarray, "m 3 3"], starts: np.ndarray) -> _Level:
    """Return the oriented box of each range of triangles; boxes of empty ranges are zero."""
    sizes = np.diff(starts)
    full = np.flatnonzero(sizes > 0)
    # reduceat does not support empty ranges.
    begins = starts[full]
    range_number = np.repeat(np.arange(len(full)), sizes[full])
    means = np.add.reduceat(corners.mean(1), begins, axis=0) / sizes[full, None]
    offsets = corners - np.take(means, range_number, axis=0)[:, None]
    spreads = np.add.reduceat(np.einsum("mci,mcj->mij", offsets, offsets), begins, axis=0)
    # The eigenvectors of the second moments align the boxes with the surface.
    axes = np.linalg.eigh(spreads)[1].transpose(0, 2, 1)
    local = np.einsum("mij,mcj->mci", np.take(axes, range_number, axis=0), offsets)
    low = np.minimum.reduceat(local.min(1), begins, axis=0)
    high = np.maximum.reduceat(local.max(1), begins, axis=0)
    # Slack, so that rounding leaves no corner outside its box.
    slack = 1e-12 * (np.abs(low).max(1) + np.abs(high).max(1) + np.abs(means).max(1))
    middles = means + np.einsum("bij,bi->bj", axes, (low + high) / 2)
    level = _Level(
        middles=np.zeros((len(sizes), 3)), axes=np.zeros((len(sizes), 3, 3)), reaches=np.zeros((len(sizes), 3))
    )
    level.middles[full] = middles
    level.axes[full] = axes
    level.reaches[full] = (high - low) / 2 + slack[:, None]
    return level
