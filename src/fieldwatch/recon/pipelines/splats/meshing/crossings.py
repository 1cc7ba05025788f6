"""First crossings of rays with level sets of the Gaussians' density (SuGaR, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.losses import Ellipsoids

SAMPLES = 21
"""Number of evenly spaced samples along each ray, as in SuGaR; the peak of every neighbor is sampled as well."""
REACH = 3.0
"""Range of the samples to both sides, in standard deviations, along the ray, of the Gaussian that was hit."""
# Bisection narrows the interval between two samples by 2^16.
_HALVINGS = 16
_SMALLEST_CURVATURE = 1e-20
_MIN_EXPONENT = -30.0  # contributions are negligible here; far below, exp returns denormal numbers, which are slow


@dataclass(frozen=True, kw_only=True, eq=False)
class Crossings:
    """First crossings of rays with a level of the density, from below.

    Attributes:
        found: mask of the rays that cross the level.
        points: positions of the crossings, world units; undefined for other rays.
        normals: unit directions of decreasing density at the crossings, pointing out of the object.
    """

    found: Bool[Tensor, " rays"]
    points: Float[Tensor, "rays 3"]
    normals: Float[Tensor, "rays 3"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Profiles:
    """Gaussians along rays: each is a one-dimensional Gaussian of the distance.

    Attributes:
        peaks: distances of the maximum density, world units.
        halves: factors of squared distances in the exponents, that is, -1/2 of the curvatures.
        heights: densities at the peaks.
    """

    peaks: Float[Tensor, "rays k"]
    halves: Float[Tensor, "rays k"]
    heights: Float[Tensor, "rays k"]

    def density(self, distances: Float[Tensor, "rays samples"]) -> Float[Tensor, "rays samples"]:
        offsets = distances[:, :, None] - self.peaks[:, None]
        exponents = (offsets.square_().mul_(self.halves[:, None])).clamp_min_(_MIN_EXPONENT)
        return exponents.exp_().mul_(self.heights[:, None]).sum(-1)


@torch.no_grad()
def level_crossings(  # noqa: PLR0913, PLR0917  rays and the Gaussians that they hit
    origins: Float[Tensor, "rays 3"],
    directions: Float[Tensor, "rays 3"],
    hit: Int[Tensor, " rays"],
    neighbors: Int[Tensor, "gaussians k"],
    ellipsoids: Ellipsoids,
    levels: Sequence[float],
) -> list[Crossings]:
    """Find the first crossing of each ray with each level.

    A ray is sampled from 3 standard deviations in front of its origin to 3 behind it. If the first sample is not below
    the level, there is no crossing. SuGaR interpolates linearly between the two samples around the crossing. Here, the
    crossing is found by bisection, and the samples include the peak of each neighbor, because thin discs would
    otherwise be missed between samples.

    Args:
        origins: points on the rendered surface, world units.
        directions: unit vectors from the camera.
        hit: row of the Gaussian that each ray hits.
        neighbors: neighbor indices of every Gaussian, itself included.
        ellipsoids: Gaussians.
        levels: levels of the density, in (0, 1).
    """
    rows = neighbors[hit].long()
    whitening = ellipsoids.whitening[rows]
    profiles = _profiles(origins, directions, whitening, ellipsoids.means[rows], ellipsoids.opacities[rows])
    spans = REACH * _spread(directions, hit, ellipsoids)
    even = torch.linspace(-1, 1, SAMPLES, dtype=origins.dtype, device=origins.device) * spans[:, None]
    # Clamped instead of removed, so that all rays have the same number of samples; the ends are sampled anyway.
    peaks = torch.minimum(torch.maximum(profiles.peaks, -spans[:, None]), spans[:, None])
    distances = torch.cat([even, peaks], 1).sort(1).values
    values = profiles.density(distances)
    crossings: list[Crossings] = []
    for level in levels:
        crossed, distance = _first_crossing(profiles, distances, values, level)
        points = origins + distance[:, None] * directions
        normals = _outward(points, rows, whitening, ellipsoids)
        # A normal has length 1, or 0 if the density has no gradient.
        crossings.append(Crossings(found=crossed & (normals.square().sum(-1) > 0.5), points=points, normals=normals))
    return crossings


def _profiles(
    origins: Float[Tensor, "rays 3"],
    directions: Float[Tensor, "rays 3"],
    whitening: Float[Tensor, "rays k 3 3"],
    means: Float[Tensor, "rays k 3"],
    opacities: Float[Tensor, "rays k"],
) -> _Profiles:
    offsets = (whitening * (origins[:, None] - means)[:, :, None]).sum(-1)
    steps = (whitening * directions[:, None, None]).sum(-1)
    # In standard deviations, the squared distance along the ray is |offset + t step|^2, a parabola in t.
    curvatures = steps.square().sum(-1).clamp_min(_SMALLEST_CURVATURE)
    peaks = -(offsets * steps).sum(-1) / curvatures
    nearest = (offsets + peaks[..., None] * steps).square().sum(-1)
    return _Profiles(
        peaks=peaks, halves=-0.5 * curvatures, heights=opacities * (-0.5 * nearest).clamp_min(_MIN_EXPONENT).exp()
    )


def _spread(
    directions: Float[Tensor, "rays 3"], hit: Int[Tensor, " rays"], ellipsoids: Ellipsoids
) -> Float[Tensor, " rays"]:
    """Return the standard deviation, along the ray, of the Gaussian that it hits."""
    in_axes = (ellipsoids.rotations[hit] * directions[:, :, None]).sum(1)
    return (in_axes * ellipsoids.scales[hit]).norm(dim=-1)


def _first_crossing(
    profiles: _Profiles, distances: Float[Tensor, "rays samples"], values: Float[Tensor, "rays samples"], level: float
) -> tuple[Bool[Tensor, " rays"], Float[Tensor, " rays"]]:
    above = values > level
    # `argmax` returns the first of equal values, that is, the first sample above the level.
    first = above.int().argmax(1)
    # If the first sample is above the level, the ray starts inside and does not cross from below.
    crossed = above.any(1) & (first > 0)
    after = first.clamp_min(1)[:, None]
    low = distances.gather(1, after - 1)
    high = distances.gather(1, after)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = profiles.density(middle) > level
        low = torch.where(inside, low, middle)
        high = torch.where(inside, middle, high)
    return crossed, high[:, 0]


def _outward(
    points: Float[Tensor, "rays 3"],
    rows: Int[Tensor, "rays k"],
    whitening: Float[Tensor, "rays k 3 3"],
    ellipsoids: Ellipsoids,
) -> Float[Tensor, "rays 3"]:
    """Return the normalized negative gradient of the density; 0 where the gradient vanishes."""
    offsets = (whitening * (points[:, None] - ellipsoids.means[rows])[:, :, None]).sum(-1)
    weights = ellipsoids.opacities[rows] * (-0.5 * offsets.square().sum(-1)).exp()
    # The gradient of o exp(-|W d|^2 / 2) is -W^T W d times the density; summed over the neighbors.
    falling = ((whitening * offsets[..., None]).sum(-2) * weights[..., None]).sum(1)
    return torch.nn.functional.normalize(falling, dim=-1)
