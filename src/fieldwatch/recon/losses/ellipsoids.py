"""Gaussians as ellipsoids: normals, samples near them, and regularizers for opaque, flat Gaussians."""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from fieldwatch.recon.geometry import quaternion_to_matrix

_SMALLEST_SCALE = 1e-8  # world units: lower bound of scales where they are divisors
_DRAW_BITS = 32  # of a random number
_DRAWS = 2**_DRAW_BITS - 1  # largest range of a random number
_LOG_EPSILON = 1e-10  # added inside the logarithms of the entropy, as in SuGaR's code


@dataclass(frozen=True, kw_only=True, eq=False)
class Ellipsoids:
    """Gaussians with activated parameters, the input of the surface terms.

    Derived quantities are computed once and cached, so create a new instance for every step: `backward` frees their
    graph.

    Attributes:
        means: centers in world units.
        scales: standard deviations along the three axes in world units.
        quaternions: rotations as (w, x, y, z), of any nonzero length.
        opacities: opacities, 0 to 1.
    """

    means: Float[Tensor, "n 3"]
    scales: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    opacities: Float[Tensor, " n"]

    @functools.cached_property
    def rotations(self) -> Float[Tensor, "n 3 3"]:
        """Rotation matrices, whose columns are the axes of the Gaussians."""
        return quaternion_to_matrix(self.quaternions)

    @functools.cached_property
    def whitening(self) -> Float[Tensor, "n 3 3"]:
        """Matrices that convert an offset from the center to standard deviations along the axes."""
        return self.rotations.transpose(-1, -2) / self.scales.clamp_min(_SMALLEST_SCALE)[..., None]

    @functools.cached_property
    def thickness(self) -> Float[Tensor, " n"]:
        """Smallest scale of each Gaussian in world units."""
        return self.scales.amin(-1)

    @functools.cached_property
    def normals(self) -> Float[Tensor, "n 3"]:
        """Unit axis of the smallest scale, with arbitrary sign."""
        return _thinnest_axes(self.scales, self.rotations)


@dataclass(frozen=True, kw_only=True, eq=False)
class Samples:
    """Points in space, each sampled near one Gaussian.

    Attributes:
        points: sample positions in world units.
        owners: index of the Gaussian that each point was sampled from.
        some: whether there was a Gaussian to sample from, on a GPU, where the host does not know it; if there was none,
            the samples are of no use. None: every sample is of use.
    """

    points: Float[Tensor, "samples 3"]
    owners: Int64[Tensor, " samples"]
    some: Bool[Tensor, ""] | None = None


def smallest_axis_normals(
    scales: Float[Tensor, "n 3"],
    quaternions: Float[Tensor, "n 4"],
    *,
    towards: Float[Tensor, "n 3"] | None = None,
) -> Float[Tensor, "n 3"]:
    """Return the unit axis of each Gaussian's smallest scale (SuGaR, section 4.1).

    Args:
        scales: scales along the three axes; of equal ones, the first is used.
        quaternions: rotations as (w, x, y, z).
        towards: directions that the normals should face, for example from the centers to the camera; None leaves the
            signs arbitrary.
    """
    normals = _thinnest_axes(scales, quaternion_to_matrix(quaternions))
    return normals if towards is None else facing(normals, towards)


def facing(normals: Float[Tensor, "*batch 3"], towards: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    """Flip the normals that point away from `towards`; normals perpendicular to it are kept."""
    # The choice of sign is not differentiable.
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
    """Sample points near visible Gaussians, all with equal probability (SuGaR, eq. 9 and its code).

    p = mean + rotation (spread * scales * noise). Gradients flow through the points to means, scales and quaternions;
    detach the points to prevent this. The number of Gaussians is not limited (`torch.multinomial` is limited to 2^24
    categories).

    Args:
        ellipsoids: Gaussians to sample from.
        count: number of points.
        visible: mask of the Gaussians to sample from; None means all.
        spread: standard deviation of the points relative to that of their Gaussian.
        generator: random generator on the device of the Gaussians.

    Returns:
        `count` samples sorted by owner; if no Gaussian is visible, no samples, or on a GPU samples that say so.
    """
    device = ellipsoids.means.device
    some = None
    if visible is not None and visible.is_cuda and len(visible):
        owners, some = _draw_visible(visible, count, generator)
    else:
        everyone = torch.arange(len(ellipsoids.means), device=device)
        candidates = everyone if visible is None else visible.nonzero()[:, 0]
        count = count if len(candidates) else 0
        # randint does not accept an empty range, even for 0 samples.
        picks = torch.randint(max(len(candidates), 1), (count,), generator=generator, device=device)
        # Sorting by owner makes gathering neighbors and accumulating their gradients cache friendly.
        owners = candidates[picks.sort().values]
    means = take_rows(ellipsoids.means, owners)
    scales = take_rows(ellipsoids.scales, owners)
    noise = torch.randn(means.shape, generator=generator, device=device, dtype=means.dtype)
    rotations = take_rows(ellipsoids.rotations, owners)
    points = means + (rotations * (spread * scales * noise)[:, None, :]).sum(-1)
    return Samples(points=points, owners=owners, some=some)


def _draw_visible(
    visible: Bool[Tensor, " n"], count: int, generator: torch.Generator | None
) -> tuple[Int64[Tensor, " count"], Bool[Tensor, ""]]:
    """Return sorted indices of visible Gaussians, and whether there are any, without asking the device how many."""
    ends = visible.cumsum(0)
    total = ends[-1]
    # A random number of 32 bits is scaled to the range, which the host does not know.
    draws = torch.randint(_DRAWS, (count,), generator=generator, device=visible.device).sort().values
    owners = torch.searchsorted(ends, draws * total >> _DRAW_BITS, right=True)
    return owners.clamp_max(len(visible) - 1), total > 0


def opacity_entropy(opacities: Float[Tensor, " n"], visible: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Return the mean binary entropy of the opacities of visible Gaussians in nats; 0 if all are 0 or 1.

    -o ln(o + 1e-10) - (1 - o) ln(1 - o + 1e-10), SuGaR section 5 and its code, with the maximum ln 2 at one half. The
    magnitude of the gradient is below 24.
    """
    # The epsilons keep value and gradient finite for opacities of 0 and 1.
    rest = 1 - opacities
    entropy = -opacities * (opacities + _LOG_EPSILON).log() - rest * (rest + _LOG_EPSILON).log()
    return weighted_mean(entropy, visible)


def flatness_error(scales: Float[Tensor, "n 3"], visible: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Return the mean smallest scale of visible Gaussians in world units; 0 for flat discs (NeuSG, PGSR)."""
    return weighted_mean(scales.amin(-1), visible)


def weighted_mean(
    values: Float[Tensor, "*batch"], weights: Float[Tensor, "*batch"] | Bool[Tensor, "*batch"] | None
) -> Float[Tensor, ""]:
    """Return a mean over a mask or with (detached) weights, without a device sync; 0 if all weights are 0."""
    weights = torch.ones_like(values) if weights is None else weights.detach().to(values.dtype)
    total = weights.sum()
    return (values * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))


def take_rows(values: Float[Tensor, "n *dims"], rows: Int64[Tensor, " samples"]) -> Float[Tensor, "samples *dims"]:
    """Return rows of a tensor; gradients of rows taken several times are added in a fixed order, on a GPU too."""
    # On a GPU, indexing sorts the rows before it adds their gradients, `index_select` adds in any order. On a CPU, both
    # have a fixed order, and `index_select` is faster.
    return values[rows] if values.is_cuda else values.index_select(0, rows)


def gathered_columns(
    values: Float[Tensor, "n columns"], rows: Int[Tensor, "samples k"]
) -> Float[Tensor, "columns samples k"]:
    """Gather rows and return one plane per column, so that sums over three axes access contiguous memory."""
    if values.is_cuda:
        return values[rows.reshape(-1).long()].T.unflatten(1, rows.shape)
    # torch accumulates gradients of int32 indices row by row, ten times slower than those of int64 indices.
    return values.T.contiguous().index_select(1, rows.reshape(-1).long()).view(-1, *rows.shape)


def _thinnest_axes(scales: Float[Tensor, "n 3"], rotations: Float[Tensor, "n 3 3"]) -> Float[Tensor, "n 3"]:
    # The index of the thinnest axis has no gradient; the axis itself receives it through the rotation.
    if rotations.is_cuda:
        # The gradient of `take_along_dim` adds in any order on a GPU.
        thinnest = scales.detach().argmin(-1)[:, None, None] == torch.arange(3, device=scales.device)
        return torch.where(thinnest, rotations, 0).sum(-1)
    return rotations.take_along_dim(scales.detach().argmin(-1)[:, None, None], -1)[..., 0]
