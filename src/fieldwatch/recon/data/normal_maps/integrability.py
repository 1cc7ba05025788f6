"""Whether the normals of a view are those of one surface: errors that change slowly over a map contradict that."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from fieldwatch.recon.data.normal_maps.agreement import spread_views
from fieldwatch.recon.data.normal_maps.model import NormalView

_SIDE = 0.3  # side of a loop, as a fraction of that of a square with the area of the mask
_SMALLEST = 8  # pixels
_GRAZING = 0.3  # minimum cosine between a normal and its ray; beside it, slopes grow beyond all bounds
_FEWEST = 200  # loops
_OF_NOISE = 0.7  # gap of a loop of one pixel for noise of one degree


def integrability_gap(views: Sequence[NormalView], noise: float = 0.0) -> float | None:
    """Return by how many degrees normals contradict a common surface; None if there are too few loops.

    The logarithm of the depth has the gradient -(n_x, n_y) / (f n . r), r being the ray at depth 1, so that its steps
    sum to zero around every closed loop (Horn and Brooks 1986). What is left of them around squares of nearly a third
    of the mask, divided by the length of the loop, is the mean error of the normals along it. Only errors with a curl
    are seen: slopes that are too flat everywhere, or the normals of another object, are those of a surface.

    Args:
        views: views; a few dozen of them are used.
        noise: noise from pixel to pixel, degrees about each axis, whose share is subtracted.
    """
    gaps: list[Float64[np.ndarray, " loops"]] = []
    shares: list[float] = []
    for view in spread_views(views):
        side = round(_SIDE * math.sqrt(float(view.valid.sum())))
        if side < max(_SMALLEST, 1) or side >= min(view.size):
            continue
        found = _loops(view, side)
        gaps.append(found)
        # Independent errors along a loop average out.
        shares.append(_OF_NOISE * noise / math.sqrt(side))
    every = np.concatenate(gaps) if gaps else np.zeros(0)
    if len(every) < _FEWEST:
        return None
    gap = math.degrees(float(np.median(every)))
    return math.sqrt(max(gap**2 - float(np.mean(shares)) ** 2, 0.0))


def _loops(view: NormalView, side: int) -> Float64[np.ndarray, " loops"]:
    """Return what is left around all squares whose pixels all have a normal, as an angle in radians."""
    normals = view.normals.double()
    cosine = (normals * view.camera.directions().double()).sum(-1)
    known = view.valid & (cosine < -_GRAZING)
    slopes = torch.where(known[..., None], -normals[..., :2] / cosine.clamp(max=-_GRAZING)[..., None], 0.0)
    across, down = (slopes[..., axis].numpy() for axis in (0, 1))
    # Sums along rows and columns, by trapezoids between pixel centers; differences give those along any side.
    rows = np.cumsum(np.pad((across[:, 1:] + across[:, :-1]) / 2, ((0, 0), (1, 0))), 1)
    columns = np.cumsum(np.pad((down[1:] + down[:-1]) / 2, ((1, 0), (0, 0))), 0)
    upper = rows[:-side, side:] - rows[:-side, :-side]
    lower = rows[side:, side:] - rows[side:, :-side]
    left = columns[side:, :-side] - columns[:-side, :-side]
    right = columns[side:, side:] - columns[:-side, side:]
    left_over = np.abs(upper + right - lower - left)[_filled(known.numpy(), side)]
    # Slopes are per pixel and focal length, which cancels.
    return np.asarray(left_over / (4 * side), np.float64)


def _filled(known: NDArray[np.bool_], side: int) -> Bool[np.ndarray, "rows columns"]:
    """Return the corners of all squares without a gap."""
    counts = np.pad(np.cumsum(np.cumsum(known.astype(np.int64), 0), 1), ((1, 0), (1, 0)))
    span = side + 1
    sums = counts[span:, span:] - counts[:-span, span:] - counts[span:, :-span] + counts[:-span, :-span]
    return np.asarray(sums == span**2, np.bool_)
