"""Visual hull of masks on a grid, and its silhouettes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.ndimage import binary_closing, binary_fill_holes

from fieldwatch.recon.data.masking.model import MaskingView

_CELLS = 72
"""Cells along a side of the grid."""
_DISSENT = 0.08  # fraction of the photos that may show the background at a point of the hull
_SQUARE = np.ones((3, 3), bool)


class MaskHull:
    """Points of a grid that (nearly) all masks show as object.

    Args:
        center: center of the grid.
        reach: half its side.
        views: photos.
    """

    def __init__(self, center: Float64[np.ndarray, "3"], reach: float, views: Sequence[MaskingView]) -> None:
        ticks = (np.arange(_CELLS) + 0.5) / _CELLS * 2 - 1
        grid = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), -1).reshape(-1, 3)
        grid = grid[np.linalg.norm(grid, axis=1) <= 1]
        self._points = center + reach * grid
        self._views = views
        self._chosen = np.zeros(len(grid), bool)

    def carve(self, masks: Sequence[Bool[np.ndarray, "height width"]]) -> None:
        """Keep the points that at most a few of the masks in whose photos they lie show as background."""
        seen = np.zeros(len(self._points), np.int32)
        against = seen.copy()
        for view, mask in zip(self._views, masks, strict=True):
            where, inside = _pixels(view, self._points)
            seen[inside] += 1
            against[inside] += ~mask.ravel()[where[inside]]
        enough = seen >= max(2, len(self._views) // 3)
        self._chosen = enough & (against <= np.ceil(_DISSENT * seen))

    def silhouette(self, view: MaskingView) -> Bool[np.ndarray, "height width"]:
        """Return the pixels of a photo at which the hull is."""
        found = np.zeros(view.image.shape[:2], bool)
        where, inside = _pixels(view, self._points[self._chosen])
        found.ravel()[where[inside]] = True
        # Centers of cells are more than a pixel apart.
        padded = np.pad(found, 4)
        closed = np.asarray(binary_closing(padded, _SQUARE, iterations=2), np.bool_)
        return np.asarray(binary_fill_holes(closed), np.bool_)[4:-4, 4:-4]


def _pixels(
    view: MaskingView, points: Float64[np.ndarray, "n 3"]
) -> tuple[Int64[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return the number of the pixel at which each point is, and whether it is in the image."""
    height, width = view.image.shape[:2]
    places, inside = view.project(points)
    # The formulas of some lenses have no value far outside of the image.
    column, row = np.where(np.isfinite(places), places, -1.0).T.astype(np.int64)
    inside = inside & (column >= 0) & (row >= 0) & (column < width) & (row < height)
    return np.where(inside, row * width + column, 0), inside
