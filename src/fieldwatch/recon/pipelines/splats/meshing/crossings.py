"""Where rays first enter the density of Gaussians: level sets along lines of sight (SuGaR, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.losses import Ellipsoids

SAMPLES = 21
"""Evenly spaced samples along each ray, as in SuGaR; every neighbour's own peak is looked at besides."""
REACH = 3.0
"""How far they go to both sides, in standard deviations of the Gaussian that was hit, along the ray."""
_HALVINGS = 16
_SMALLEST_CURVATURE = 1e-20
_NOTHING = -30.0  # exponents from which a Gaussian adds nothing; far below it processors take a slow path


@dataclass(frozen=True, kw_only=True, eq=False)
class Crossings:
    """Where rays cross a level of the density for the first time, from below.

    Attributes:
        found: which rays do.
        points: where, world units; meaningless for the others.
        normals: unit directions of decreasing density there: out of the object.
    """

    found: Bool[Tensor, " rays"]
    points: Float[Tensor, "rays 3"]
    normals: Float[Tensor, "rays 3"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Profiles:
    """Gaussians along their ray: each is a Gaussian of the distance, too."""

    peaks: Float[Tensor, "rays k"]
    halves: Float[Tensor, "rays k"]
    heights: Float[Tensor, "rays k"]

    def density(self, distances: Float[Tensor, "rays samples"]) -> Float[Tensor, "rays samples"]:
        offsets = distances[:, :, None] - self.peaks[:, None]
        exponents = (offsets.square_().mul_(self.halves[:, None])).clamp_min_(_NOTHING)
        return exponents.exp_().mul_(self.heights[:, None]).sum(-1)


@torch.no_grad()
def level_crossings(  # noqa: PLR0913, PLR0917  rays, and the Gaussians that they meet
    origins: Float[Tensor, "rays 3"],
    directions: Float[Tensor, "rays 3"],
    hit: Int[Tensor, " rays"],
    neighbours: Int[Tensor, "gaussians k"],
    ellipsoids: Ellipsoids,
    levels: Sequence[float],
) -> list[Crossings]:
    """Find where each ray first crosses each level.

    The ray is looked at from 3 standard deviations before its origin to 3 behind; one whose first sample is not below
    the level has no crossing. SuGaR joins the two samples around the crossing by a line; here the crossing is found by
    halving, and the samples include the place where each neighbour is densest, since thin discs lie between others.

    Args:
        origins: on the surface as it is drawn, world units.
        directions: unit vectors, from the camera.
        hit: the Gaussian that each ray meets.
        neighbours: of every Gaussian, itself included.
        ellipsoids: the Gaussians.
        levels: of the density, above 0 and below 1.
    """
    rows = neighbours[hit].long()
    whitening = ellipsoids.whitening[rows]
    profiles = _profiles(origins, directions, whitening, ellipsoids.means[rows], ellipsoids.opacities[rows])
    spans = REACH * _spread(directions, hit, ellipsoids)
    even = torch.linspace(-1, 1, SAMPLES, dtype=origins.dtype, device=origins.device) * spans[:, None]
    peaks = torch.minimum(torch.maximum(profiles.peaks, -spans[:, None]), spans[:, None])
    distances = torch.cat([even, peaks], 1).sort(1).values
    values = profiles.density(distances)
    found: list[Crossings] = []
    for level in levels:
        crossed, at = _first_crossing(profiles, distances, values, level)
        points = origins + at[:, None] * directions
        normals = _outward(points, rows, whitening, ellipsoids)
        found.append(Crossings(found=crossed & (normals.square().sum(-1) > 0.5), points=points, normals=normals))
    return found


def _profiles(
    origins: Float[Tensor, "rays 3"],
    directions: Float[Tensor, "rays 3"],
    whitening: Float[Tensor, "rays k 3 3"],
    means: Float[Tensor, "rays k 3"],
    opacities: Float[Tensor, "rays k"],
) -> _Profiles:
    offsets = (whitening * (origins[:, None] - means)[:, :, None]).sum(-1)
    steps = (whitening * directions[:, None, None]).sum(-1)
    curvatures = steps.square().sum(-1).clamp_min(_SMALLEST_CURVATURE)
    peaks = -(offsets * steps).sum(-1) / curvatures
    nearest = (offsets + peaks[..., None] * steps).square().sum(-1)
    return _Profiles(
        peaks=peaks, halves=-0.5 * curvatures, heights=opacities * (-0.5 * nearest).clamp_min(_NOTHING).exp()
    )


def _spread(
    directions: Float[Tensor, "rays 3"], hit: Int[Tensor, " rays"], ellipsoids: Ellipsoids
) -> Float[Tensor, " rays"]:
    """Standard deviation, along the ray, of the Gaussian that it meets."""
    own = (ellipsoids.rotations[hit] * directions[:, :, None]).sum(1)
    return (own * ellipsoids.scales[hit]).norm(dim=-1)


def _first_crossing(
    profiles: _Profiles, distances: Float[Tensor, "rays samples"], values: Float[Tensor, "rays samples"], level: float
) -> tuple[Bool[Tensor, " rays"], Float[Tensor, " rays"]]:
    above = values > level
    first = above.int().argmax(1)
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
    """Minus the gradient of the density, of length 1; 0 where there is none."""
    offsets = (whitening * (points[:, None] - ellipsoids.means[rows])[:, :, None]).sum(-1)
    weights = ellipsoids.opacities[rows] * (-0.5 * offsets.square().sum(-1)).exp()
    falling = ((whitening * offsets[..., None]).sum(-2) * weights[..., None]).sum(1)
    return torch.nn.functional.normalize(falling, dim=-1)
