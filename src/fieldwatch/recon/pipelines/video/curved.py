"""Interpolation between training frames along curved paths.

Each point p of the image to make follows the path p + s v + s^2 / 2 a, with the time s from that image, a velocity v
and an acceleration a. Lucas and Kanade (1981), coarse to fine: v and a minimize, per Gaussian window, the sum of
w |next(p + path(s')) - this(p + path(s))|^2 over the pairs of successive images. The weight w decreases where the
images disagree, and is 0 where a path leaves one of the images. v and a are refined in turn; a is pulled to 0. A 3 x 3
median after every round removes outliers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.pipelines.video.motion import blur, enlarge, gradient, median_filter, pyramid, warp

ROUNDS = 10
"""Refinements per level of the pyramid."""
STRAIGHT_ROUNDS = 2
"""Refinements of the velocity alone at the beginning of a level."""
_WINDOW = 2.0  # standard deviation of the windows, pixels
_AROUND = 8.0  # of the windows from which those without texture take their velocity, pixels
_ROBUST = 0.03  # squared difference of colors above which a pixel counts less
_OUTER = 0.5  # weight of pairs on one side of the gap beside that of the pair around it
_DAMPING = 2e-3  # of the difference from the velocity around, against windows without texture
_STIFFNESS = 0.015  # of the acceleration
_DOUBT = 0.08  # difference of colors that divides a weight by e
_MOST_CHANGE = 1.0  # pixels per round, for which the linearization holds


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Paths of all pixels of an image: p + s velocity + s^2 / 2 acceleration.

    Attributes:
        velocity: pixels per unit of time.
        acceleration: pixels per squared unit of time.
    """

    velocity: Float[Tensor, "1 2 height width"]
    acceleration: Float[Tensor, "1 2 height width"]

    def at(self, time: float) -> Float[Tensor, "1 2 height width"]:
        """Return the displacement (dx, dy) of every pixel at a time."""
        return time * self.velocity + (time * time / 2) * self.acceleration


@torch.no_grad()
def interpolate_curved(
    pictures: Float[Tensor, "pictures 3 height width"], times: Sequence[float]
) -> Float[Tensor, "3 height width"]:
    """Return the image at time 0, from images at other times.

    Between two images, the nearest on both sides are warped and blended. The nearer one counts more, and so does one
    that the image beyond it confirms; one that a path leaves does not count. If all images are on one side, the
    nearest is warped along straight paths.

    Args:
        pictures: at least two images in [0, 1].
        times: times of the images, ascending; none is 0. The two next to 0 should be about 2 units apart.
    """
    paths = estimate_paths(pictures, times)
    moved = [
        warp(picture[None], paths.at(time), mode="bicubic").clamp(0, 1)
        for picture, time in zip(pictures, times, strict=True)
    ]
    after = sum(time < 0 for time in times)
    if after in {0, len(times)}:
        return moved[after - 1 if after else 0][0]
    before = after - 1
    # Blurred by less than a pixel, so that no seam shows.
    weights = [blur(_inside(paths.at(times[i])), 0.5) for i in (before, after)]
    if before > 0 and after + 1 < len(times):
        # A point that is hidden in one image shows another color there than in the image beyond it.
        differences = [(moved[i] - moved[j]).abs().mean(1, keepdim=True) for i, j in ((0, before), (-1, after))]
        weights = [
            weight * torch.exp(-blur(difference, _WINDOW) / _DOUBT)
            for weight, difference in zip(weights, differences, strict=True)
        ]
    share = -times[before] / (times[after] - times[before])
    parts = [(1 - share) * weights[0], share * weights[1]]
    total = parts[0] + parts[1]
    # Where both images lack the point, time alone decides.
    weight = torch.where(total > 0, parts[1] / total.clamp_min(1e-9), share)
    return torch.lerp(moved[before], moved[after], weight)[0]


@torch.no_grad()
def estimate_paths(pictures: Float[Tensor, "pictures 3 height width"], times: Sequence[float]) -> Paths:
    """Return the paths of the pixels of the image at time 0 through images at other times.

    Paths are curved if there are at least three images, and straight through two.

    Args:
        pictures: at least two images in [0, 1]; two if all are on one side.
        times: times of the images, ascending; none is 0.
    """
    if not times[0] < 0 < times[-1]:
        return _arriving(pictures, times)
    # Two images do not tell a curved path from a straight one.
    curved = len(times) > 2
    nothing = pictures.new_zeros(1, 2, 1, 1)
    paths = Paths(velocity=nothing, acceleration=nothing)
    for level in reversed(pyramid([picture[None] for picture in pictures])):
        size = level[0].shape[-2:]
        paths = Paths(velocity=enlarge(paths.velocity, size), acceleration=enlarge(paths.acceleration, size))
        for number in range(ROUNDS):
            velocity = median_filter(paths.velocity + _step(level, times, paths, accelerate=False))
            paths = Paths(velocity=velocity, acceleration=paths.acceleration)
            if curved and number >= STRAIGHT_ROUNDS:
                acceleration = median_filter(paths.acceleration + _step(level, times, paths, accelerate=True))
                paths = Paths(velocity=paths.velocity, acceleration=acceleration)
    return paths


def _arriving(pictures: Float[Tensor, "pictures 3 height width"], times: Sequence[float]) -> Paths:
    """Return the paths at time 0 through images that are all before it, or all after it.

    The motion is found in the middle of these images. Each pixel takes that of the point which arrives there; beyond
    the border, that of the border.
    """
    middle = (times[0] + times[-1]) / 2
    found = estimate_paths(pictures, [time - middle for time in times]).velocity
    velocity = found
    for _ in range(ROUNDS):
        velocity = warp(found, middle * velocity)
    return Paths(velocity=velocity, acceleration=torch.zeros_like(velocity))


def _step(
    level: Sequence[Float[Tensor, "1 3 height width"]], times: Sequence[float], paths: Paths, *, accelerate: bool
) -> Float[Tensor, "1 2 height width"]:
    """Return the update of velocities or accelerations that solves the 2 x 2 normal equations of every window."""
    # Derivatives of the displacement at each time.
    factors = [time * time / 2 if accelerate else time for time in times]
    displacements = [paths.at(time) for time in times]
    moved = [warp(picture, displacement) for picture, displacement in zip(level, displacements, strict=True)]
    slopes = [gradient(picture) for picture in moved]
    inside = [_inside(displacement) for displacement in displacements]
    sums = torch.zeros_like(inside[0]).repeat(1, 5, 1, 1)
    for one, other in pairwise(range(len(times))):
        gx, gy = (factors[other] * b - factors[one] * a for a, b in zip(slopes[one], slopes[other], strict=True))
        error = moved[other] - moved[one]
        # Iteratively reweighted least squares for a robust norm reduces the influence of occluded pixels.
        weight = (error.square().sum(1, keepdim=True) + _ROBUST).rsqrt() * inside[one] * inside[other]
        if not times[one] < 0 < times[other]:
            weight = weight * _OUTER
        products = (gx * gx, gx * gy, gy * gy, gx * error, gy * error)
        sums = sums + torch.cat([weight * product.sum(1, keepdim=True) for product in products], dim=1)
    xx, xy, yy, xe, ye = blur(sums, _WINDOW).split(1, dim=1)
    if accelerate:
        xx = xx + _STIFFNESS
        yy = yy + _STIFFNESS
        xe = xe + _STIFFNESS * paths.acceleration[:, :1]
        ye = ye + _STIFFNESS * paths.acceleration[:, 1:]
    else:
        # A window without texture, or that left the images, moves like those around it.
        difference = paths.velocity - _typical(paths.velocity, xx + yy)
        xx = xx + _DAMPING
        yy = yy + _DAMPING
        xe = xe + _DAMPING * difference[:, :1]
        ye = ye + _DAMPING * difference[:, 1:]
    # Cramer's rule for the 2 x 2 system.
    change = torch.cat([xy * ye - yy * xe, xy * xe - xx * ye], dim=1) / (xx * yy - xy * xy)
    return change.clamp(-_MOST_CHANGE, _MOST_CHANGE)


def _typical(
    velocity: Float[Tensor, "1 2 height width"], texture: Float[Tensor, "1 1 height width"]
) -> Float[Tensor, "1 2 height width"]:
    """Return the mean velocity in wide windows, in which texture counts."""
    weight = texture + 1e-6
    sums = blur(torch.cat([weight * velocity, weight], dim=1), _AROUND)
    return sums[:, :2] / sums[:, 2:]


def _inside(displacement: Float[Tensor, "1 2 height width"]) -> Float[Tensor, "1 1 height width"]:
    """Return 1 where a displaced pixel lies in the image, else 0."""
    height, width = displacement.shape[-2:]
    rows = torch.arange(height, dtype=displacement.dtype, device=displacement.device)[:, None]
    columns = torch.arange(width, dtype=displacement.dtype, device=displacement.device)
    x = columns + displacement[:, :1]
    y = rows + displacement[:, 1:]
    within = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
    return within.to(displacement.dtype)
