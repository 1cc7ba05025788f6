"""Gaussians as shapes: the normal of each, samples near them, and the terms that ask for opaque, flat ones."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from fieldwatch.recon.geometry import quaternion_to_matrix

_SMALLEST_SCALE = 1e-8  # in world units: thinner Gaussians count as this thick
_LOG_EPSILON = 1e-10  # added inside the logarithms of the entropy, as the authors' code does


@dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoids:
    """Gaussians with their activated values, as the surface terms see them.

    What is derived from them is computed once, so make a new one for every step (its graph dies with `backward`).

    Attributes:
        means: centres, in world units.
        scales: standard deviations along the three axes, in world units.
        quaternions: w, x, y, z of any length but 0.
        opacities: 0 .. 1.
    """

    means: Float[Tensor, "n 3"]
    scales: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    opacities: Float[Tensor, " n"]

    @functools.cached_property
    def rotations(self) -> Float[Tensor, "n 3 3"]:
        """Rotation matrices; their columns are the axes."""
        return quaternion_to_matrix(self.quaternions)

    @functools.cached_property
    def whitening(self) -> Float[Tensor, "n 3 3"]:
        """Matrices that turn an offset from the centre into standard deviations along the axes."""
        return self.rotations.transpose(-1, -2) / self.scales.clamp_min(_SMALLEST_SCALE)[..., None]

    @functools.cached_property
    def thickness(self) -> Float[Tensor, " n"]:
        """The smallest scale of each."""
        return self.scales.amin(-1)

    @functools.cached_property
    def normals(self) -> Float[Tensor, "n 3"]:
        """The axis of the smallest scale, with either sign."""
        return _thinnest_axes(self.scales, self.rotations)


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Points in space, each drawn near one Gaussian.

    Attributes:
        points: in world units.
        owners: the Gaussian each was drawn from.
    """

    points: Float[Tensor, "samples 3"]
    owners: Int64[Tensor, " samples"]


def smallest_axis_normals(
    scales: Float[Tensor, "n 3"],
    quaternions: Float[Tensor, "n 4"],
    *,
    towards: Float[Tensor, "n 3"] | None = None,
) -> Float[Tensor, "n 3"]:
    """Return the unit axis of each Gaussian's smallest scale (SuGaR, section 4.1).

    Args:
        scales: along the three axes; equal ones: the first of them.
        quaternions: w, x, y, z.
        towards: directions to turn the normals to, say from the centres to the camera; None leaves the sign as it is.
    """
    normals = _thinnest_axes(scales, quaternion_to_matrix(quaternions))
    return normals if towards is None else facing(normals, towards)


def facing(normals: Float[Tensor, "*batch 3"], towards: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """Turn round the normals that point away from `towards`; those at right angles to it stay."""
    away = (normals.detach() * towards.detach()).sum(-1, keepdim=True) < 0
    return torch.where(away, -normals, normals)


def sample_near(
    ellipsoids: Ellipsoids,
    count: int,
    *,
    visible: Bool[Tensor, " n"] | None = None,
    spread: float = 1.5,
    generator: torch.Generator | None = None,
) -> Samples:
    """Draw points from visible Gaussians, every Gaussian being as likely as any other (SuGaR, eq. 9 and its code).

    p = mean + rotation (spread * scales * noise). The points move with their Gaussian: gradients reach its mean, scales
    and quaternion through them; detach them to hold them where they are. Any number of Gaussians will do
    (`torch.multinomial` ends at 2^24).

    Args:
        ellipsoids: to draw from.
        count: points.
        visible: those to draw from; None is all.
        spread: standard deviations of the points, in those of their Gaussian.
        generator: of the device of the Gaussians.

    Returns:
        `count` samples, in the order of their owners; none where no Gaussian is visible.
    """
    device = ellipsoids.means.device
    candidates = torch.arange(len(ellipsoids.means), device=device) if visible is None else visible.nonzero()[:, 0]
    count = count if len(candidates) else 0
    # Owner indices drawn uniformly; max(..., 1) because randint refuses an empty range.
    picks = torch.randint(max(len(candidates), 1), (count,), generator=generator, device=device)
    # in order of their owners, gathering neighbours and summing their gradients visits memory just seen
    owners = candidates[picks.sort().values]
    means = ellipsoids.means.index_select(0, owners)
    scales = ellipsoids.scales.index_select(0, owners)
    noise = torch.randn(means.shape, generator=generator, device=device, dtype=means.dtype)
    rotations = ellipsoids.rotations.index_select(0, owners)
    points = means + (rotations * (spread * scales * noise)[:, None, :]).sum(-1)
    return Samples(points=points, owners=owners)


def opacity_entropy(opacities: Float[Tensor, " n"], visible: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Mean binary entropy of the opacities of visible Gaussians, in nats; 0 where all are 0 or 1, ln 2 at one half.

    -o ln(o + 1e-10) - (1 - o) ln(1 - o + 1e-10), SuGaR section 5 and its code. The gradient stays below 24 in size.
    """
    # Both logarithms are shifted inside, so that opacities of 0 and 1 stay finite.
    rest = 1 - opacities
    entropy = -opacities * (opacities + _LOG_EPSILON).log() - rest * (rest + _LOG_EPSILON).log()
    return weighted_mean(entropy, visible)


def flatness_error(scales: Float[Tensor, "n 3"], visible: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Mean smallest scale of visible Gaussians, in world units: 0 where all are discs (NeuSG, PGSR: loss of scales)."""
    return weighted_mean(scales.amin(-1), visible)


def weighted_mean(
    values: Float[Tensor, "*batch"], weights: Float[Tensor, "*batch"] | Bool[Tensor, "*batch"] | None
) -> Float[Tensor, ""]:
    """Mean over a mask or with weights (no gradient to them), without a host read; 0 where nothing has a weight."""
    weights = torch.ones_like(values) if weights is None else weights.detach().to(values.dtype)
    total = weights.sum()
    return (values * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))


def gathered_columns(
    values: Float[Tensor, "n columns"], rows: Int[Tensor, "samples k"]
) -> Float[Tensor, "columns samples k"]:
    """Values of some rows, one plane per column: sums over three axes then run along memory, not across it.

    torch adds gradients by int32 numbers one row at a time, ten times as slow as by int64 ones.
    """
    return values.T.contiguous().index_select(1, rows.reshape(-1).long()).view(-1, *rows.shape)


def _thinnest_axes(scales: Float[Tensor, "n 3"], rotations: Float[Tensor, "n 3 3"]) -> Float[Tensor, "n 3"]:
    return rotations.take_along_dim(scales.detach().argmin(-1)[:, None, None], -1)[..., 0]
