"""Depth maps of the training cameras, and the empty space in front of them."""

import math

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from scipy.ndimage import maximum_filter, minimum_filter

from fieldwatch.recon.render import View

_POINTS_AT_ONCE = 1 << 15
_AROUND = 3  # pixels: near an edge, depth within this window counts


class DepthMaps:
    """Depth maps of views, subsampled to fit into memory together.

    Args:
        views: number of views that will be added.
        budget: memory for all depth maps, bytes; it determines the stride of the kept pixels.
    """

    def __init__(self, views: int, budget: int) -> None:
        self._pixels_per_view = max(budget // max(views, 1) // 4, 1)  # 4 bytes per float32 pixel
        self._maps: list[tuple[View, int, Float32[np.ndarray, "height width"]]] = []

    def add(self, view: View, depth: Float32[np.ndarray, "height width"]) -> None:
        """Add the depth of a view along the optical axis; 0 for empty pixels, NaN for unknown ones."""
        # The same stride in both directions, so that the map keeps its aspect ratio.
        stride = max(math.ceil(math.sqrt(depth.size / self._pixels_per_view)), 1)
        self._maps.append((view, stride, np.ascontiguousarray(depth[::stride, ::stride])))

    def emptiness(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Return the distance of points to the surface behind them, world units: the second largest over all views.

        The largest is not used because a single camera may be wrong. Above 0, at least two cameras saw the point as
        empty. The value is infinite if there was nothing behind the point, and minus infinity if fewer than two cameras
        had it in their image.
        """
        # Running largest and second largest values, because an array per view would take too much memory.
        best = np.full(len(points), -np.inf)
        second = best.copy()
        for view, stride, depth in self._maps:
            gap = _gap(points, view, stride, depth)
            second = np.maximum(second, np.minimum(best, gap))
            best = np.maximum(best, gap)
        return second

    def sightings(
        self,
        points: Float64[np.ndarray, "n 3"],
        tolerance: Float64[np.ndarray, " n"],
        most: int,
    ) -> Int64[np.ndarray, " n"]:
        """Return the number of views that see points of a surface, counted up to a limit.

        A view sees a point if its depth map has that depth there, or at a pixel beside it, to within the tolerance.

        Args:
            points: points of the surface.
            tolerance: largest difference of depth for each point, world units.
            most: limit of the count; points that reach it are not examined further.
        """
        counts = np.zeros(len(points), np.int64)
        for view, stride, depth in self._maps:
            # Empty and unknown pixels show no surface.
            known = depth > 0
            nearest = minimum_filter(np.where(known, depth, np.inf), _AROUND)
            farthest = maximum_filter(np.where(known, depth, -np.inf), _AROUND)
            left = np.flatnonzero(counts < most)
            for start in range(0, len(left), _POINTS_AT_ONCE):
                some = left[start : start + _POINTS_AT_ONCE]
                row, column, z, seen = _places(points[some], view)
                place = (row[seen] // stride, column[seen] // stride)
                slack = tolerance[some][seen]
                seen[seen] = (z[seen] >= nearest[place] - slack) & (z[seen] <= farthest[place] + slack)
                counts[some] += seen
        return counts


def _places(
    points: Float64[np.ndarray, "n 3"], view: View
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Float64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return row, column and depth of points, and whether they are in the image; elsewhere, row and column are 0."""
    pose = view.camera_from_world.double().cpu().numpy()
    x, y, z = (points @ pose[:3, :3].T + pose[:3, 3]).T
    ahead = z > view.near
    safe = np.where(ahead, z, 1.0)
    column = view.fx * x / safe + view.cx
    row = view.fy * y / safe + view.cy
    # Points outside the image are unknown to this view, not empty.
    visible = ahead & (column >= 0) & (column < view.width) & (row >= 0) & (row < view.height)
    whole = [np.where(visible, each, 0.0).astype(np.int64) for each in (row, column)]
    return whole[0], whole[1], z, visible


def _gap(
    points: Float64[np.ndarray, "n 3"], view: View, stride: int, depth: Float32[np.ndarray, "rows columns"]
) -> Float64[np.ndarray, " n"]:
    row, column, z, visible = _places(points, view)
    behind = np.zeros(len(points))
    behind[visible] = depth[row[visible] // stride, column[visible] // stride]
    # Both are along the optical axis. A depth of 0 means that nothing is behind the point.
    gap = np.where(behind > 0, behind - z, np.inf)
    return np.where(visible & ~np.isnan(behind), gap, -np.inf)
