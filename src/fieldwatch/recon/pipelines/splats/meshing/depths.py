"""Depth as the training cameras see it, and the empty space in front of it."""

import math

import numpy as np
from jaxtyping import Float32, Float64

from fieldwatch.recon.render import View

VOTES = 2
"""Cameras that must have seen through a place before it counts as empty: one alone may be mistaken."""


class DepthMaps:
    """Depth maps of views, coarse enough to be held together.

    Args:
        views: how many will come.
        budget: bytes for all of them; every so many-th pixel of each is kept.
    """

    def __init__(self, views: int, budget: int) -> None:
        self._each = max(budget // max(views, 1) // 4, 1)
        self._maps: list[tuple[View, int, Float32[np.ndarray, "height width"]]] = []

    def add(self, view: View, depth: Float32[np.ndarray, "height width"]) -> None:
        """Take the depth, along the optical axis, that a view sees; 0 where nothing is, NaN where it is not known."""
        stride = max(math.ceil(math.sqrt(depth.size / self._each)), 1)
        self._maps.append((view, stride, np.ascontiguousarray(depth[::stride, ::stride])))

    def emptiness(self, points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
        """Return how far points lie in front of what is seen behind them, world units, by the second best witness.

        Above 0 a place has been seen to be empty; infinite where nothing was behind it; minus infinite where fewer
        than two cameras had it in their picture.
        """
        best = np.full(len(points), -np.inf)
        second = best.copy()
        for view, stride, depth in self._maps:
            gap = _gap(points, view, stride, depth)
            second = np.maximum(second, np.minimum(best, gap))
            best = np.maximum(best, gap)
        return second


def _gap(
    points: Float64[np.ndarray, "n 3"], view: View, stride: int, depth: Float32[np.ndarray, "rows columns"]
) -> Float64[np.ndarray, " n"]:
    pose = view.camera_from_world.double().cpu().numpy()
    x, y, z = (points @ pose[:3, :3].T + pose[:3, 3]).T
    ahead = z > view.near
    safe = np.where(ahead, z, 1.0)
    column = view.fx * x / safe + view.cx
    row = view.fy * y / safe + view.cy
    seen = ahead & (column >= 0) & (column < view.width) & (row >= 0) & (row < view.height)
    found = np.zeros(len(points))
    found[seen] = depth[row[seen].astype(np.int64) // stride, column[seen].astype(np.int64) // stride]
    gap = np.where(found > 0, found - z, np.inf)
    return np.where(seen & ~np.isnan(found), gap, -np.inf)
