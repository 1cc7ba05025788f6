"""Masks of an object that all cameras look at: colors, contrast and agreement between photos, in turn."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy.ndimage import distance_transform_edt

from fieldwatch.recon.data.masking.colors import ColorModel
from fieldwatch.recon.data.masking.cut import minimum_cut
from fieldwatch.recon.data.masking.hull import MaskHull
from fieldwatch.recon.data.masking.model import MaskingView, Progress

ROUNDS = 6
_CORE = 0.45  # radius, in radii of the ball, within which the first round expects the object
_SMOOTHNESS = 3.0
_PRIOR = 2.0  # log odds that position alone contributes
_RAMP = 4.0  # pixels around a silhouette over which the log odds of position rise
_REACH = 1.25  # half side of the hull's grid, radii of the ball


def segment(
    views: Sequence[MaskingView], center: Float64[np.ndarray, "3"], radius: float, progress: Progress
) -> tuple[list[Bool[np.ndarray, "height width"]], list[Bool[np.ndarray, "height width"]]]:
    """Return the mask of every photo, and the silhouette of the hull of all masks in it.

    The first round knows only that the object is in the middle of the ball that all cameras look at, and that nothing
    outside of it belongs to the object. Each round learns the colors inside and outside of the masks, cuts every photo
    (GrabCut), intersects the masks in space, and expects the object in the next round where the intersection is.

    Args:
        views: photos.
        center: center of the ball.
        radius: its radius.
        progress: called after every photo of a round.
    """
    hull = MaskHull(center, _REACH * radius, views)
    outside = [view.nearness > 1 for view in views]
    inside = [view.nearness < _CORE for view in views]
    positions = [_from_ball(view.nearness) for view in views]
    masks = inside
    total = ROUNDS * len(views)
    silhouettes = inside
    for number in range(ROUNDS):
        colors = ColorModel(zip((view.image for view in views), inside, outside, strict=True))
        masks = []
        for view, position in zip(views, positions, strict=True):
            odds = colors.odds(view.image) + position
            masks.append(minimum_cut(view.image, odds, _SMOOTHNESS))
            progress(number * len(views) + len(masks), total)
        hull.carve(masks)
        silhouettes = [hull.silhouette(view) for view in views]
        positions = [_from_silhouette(each) for each in silhouettes]
        inside = [mask & shown for mask, shown in zip(masks, silhouettes, strict=True)]
        outside = [~mask & ~shown for mask, shown in zip(masks, silhouettes, strict=True)]
    return masks, silhouettes


def separation(views: Sequence[MaskingView], masks: Sequence[Bool[np.ndarray, "height width"]]) -> float:
    """Return how well colors tell the object from what is around it: the fraction of pixels that they assign correctly.

    Each half of the photos is judged by the colors of the other half, in and around the object's ball; both sides count
    the same. 0.5 means that colors say nothing, and that the masks are guesses from position alone.
    """
    near = [view.nearness < _REACH for view in views]
    rates: list[tuple[int, int, int, int]] = []
    for half in (0, 1):
        learned = [number for number in range(len(views)) if number % 2 != half]
        colors = ColorModel((views[i].image, masks[i], near[i] & ~masks[i]) for i in learned)
        for i in range(half, len(views), 2):
            positive = colors.odds(views[i].image) > 0
            outside = near[i] & ~masks[i]
            found = positive & masks[i]
            rejected = ~positive & outside
            rates.append((int(masks[i].sum()), int(found.sum()), int(outside.sum()), int(rejected.sum())))
    object_pixels, found_pixels, other_pixels, rejected_pixels = np.sum(rates, axis=0)
    return float(found_pixels / max(object_pixels, 1) + rejected_pixels / max(other_pixels, 1)) / 2


def _from_ball(nearness: Float32[np.ndarray, "height width"]) -> Float32[np.ndarray, "height width"]:
    """Return the log odds of position in the first round: highest in the middle of the ball, never outside of it."""
    slope = _PRIOR * (1 - nearness / (0.5 * (1 + _CORE)))
    return np.where(nearness > 1, -1e3, slope).astype(np.float32)


def _from_silhouette(shown: Bool[np.ndarray, "height width"]) -> Float32[np.ndarray, "height width"]:
    """Return the log odds of position: rising from outside to inside of the hull's silhouette."""
    if not shown.any():
        return np.full(shown.shape, -_PRIOR, np.float32)
    within, without = (np.asarray(distance_transform_edt(side), np.float64) for side in (shown, ~shown))
    apart = within - without
    return (_PRIOR * (apart / _RAMP).clip(-1, 1)).astype(np.float32)
