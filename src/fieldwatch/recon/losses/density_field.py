"""The density of neighbouring Gaussians, the one it should be, and the signed distance that it stands for (SuGaR)."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import Ellipsoids, gathered_columns

BetaMode = Literal["average", "learnable", "weighted_average"]
"""Where the thickness of the surface at a sample comes from: see `beta`."""

_MAX_SQUARED_DISTANCE = 1e8  # of a squared distance in standard deviations: exp(-0.5 * it) is 0 long before
_SMALLEST_DENSITY = 1e-16
_SMALLEST_BETA = 1e-8  # in world units
_LINEAR_BELOW = 1e-4  # of -2 ln(density): below it the square root goes on as a straight line, so its slope ends at 50


def contributions(
    points: Float[Tensor, "samples 3"], neighbours: Int[Tensor, "samples k"], ellipsoids: Ellipsoids
) -> Float[Tensor, "samples k"]:
    """Return what each neighbour adds to the density at each point (SuGaR, section 4.1).

    o_j exp(-0.5 min(|diag(1/s_j) R_j^T (p - mu_j)|^2, 1e8))

    Args:
        points: in world units.
        neighbours: Gaussians that count at each point: the row of the Gaussian it was drawn from in the table of
            neighbours.
        ellipsoids: all Gaussians.
    """
    attributes = [ellipsoids.means, ellipsoids.whitening.flatten(1), ellipsoids.opacities[:, None]]
    columns = gathered_columns(torch.cat(attributes, 1), neighbours)
    offsets = points.T[:, :, None] - columns[:3]
    # |diag(1/s) R^T (p - mu)|^2: the Mahalanobis distance.
    squared = (columns[3:12].unflatten(0, (3, 3)) * offsets).sum(1).square().sum(0)
    return columns[12] * (-0.5 * squared.clamp_max(_MAX_SQUARED_DISTANCE)).exp()


def density(contributed: Float[Tensor, "samples k"]) -> Float[Tensor, " samples"]:
    """Sum of what the neighbours contribute (SuGaR, section 4.1); it can exceed 1."""
    return contributed.sum(-1)


def beta(
    thickness: Float[Tensor, "samples k"],
    mode: BetaMode = "average",
    *,
    contributed: Float[Tensor, "samples k"] | None = None,
    log_beta: Float[Tensor, ""] | None = None,
) -> Float[Tensor, " samples"]:
    """Return how thick the surface is at each sample, in world units (s* of SuGaR, eq. 5, as its code takes it).

    Args:
        thickness: smallest scales of the neighbours.
        mode: average: mean of the neighbours; weighted_average: mean weighted by what they contribute (the largest
            where none does); learnable: exp(log_beta) everywhere.
        contributed: of `contributions`, for weighted_average.
        log_beta: for learnable.

    Raises:
        ValueError: the tensor that a mode needs was not given.
    """
    if mode == "average":
        return thickness.mean(-1)
    if mode == "learnable":
        if log_beta is None:
            raise ValueError("beta mode 'learnable' needs log_beta, a scalar parameter: pass log_beta=...")
        return log_beta.exp().expand(len(thickness))
    if contributed is None:
        raise ValueError("beta mode 'weighted_average' needs what the neighbours contribute: pass contributed=...")
    total = contributed.sum(-1)
    any_weight = total.detach() > _SMALLEST_DENSITY
    # A denominator of 1 where there is no weight keeps the unused branch's gradient finite.
    safe = torch.where(any_weight, total, torch.ones_like(total))
    return torch.where(any_weight, (contributed * thickness).sum(-1) / safe, thickness.amax(-1))


def ideal_density(
    distance: Float[Tensor, " samples"], thickness: Float[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """Density near flat, opaque Gaussians on the surface: exp(-distance^2 / (2 beta^2)) (SuGaR, eq. 5).

    Args:
        distance: to the surface, in world units, with either sign.
        thickness: `beta` at the samples.
    """
    # Clamped below and above, so that a vanishing thickness gives 0 and not NaN.
    ratio = distance / thickness.clamp_min(_SMALLEST_BETA)
    return (-0.5 * ratio.square().clamp_max(_MAX_SQUARED_DISTANCE)).exp()


def density_error(density: Float[Tensor, " samples"], ideal: Float[Tensor, " samples"]) -> Float[Tensor, ""]:
    """Mean absolute difference of the density and the ideal one (SuGaR, eq. 8 with densities): term `sdf_density`."""
    return (density - ideal).abs().sum() / max(len(density), 1)


def sdf_from_density(
    density: Float[Tensor, " samples"], thickness: Float[Tensor, " samples"]
) -> Float[Tensor, " samples"]:
    """Distance at which the ideal density is this one: beta sqrt(-2 ln density) (SuGaR, eq. 7), 0 from density 1 on.

    Densities of 1 and more count as 1 but keep their gradient, as in the authors' code; there the square root would
    have an infinite slope, so below 0.01 beta (density above 0.99995) it goes on as a straight line to 0.
    """
    # the density over itself is 1, with a slope
    relative = torch.where(density.detach() >= 1, density / density.detach().clamp_min(1), density)
    exponent = -2 * relative.clamp_min(_SMALLEST_DENSITY).log()
    near_surface = exponent.detach() < _LINEAR_BELOW
    # The inner `where` keeps the square root's infinite slope at 0 out of the graph.
    curved = torch.where(near_surface, torch.full_like(exponent, _LINEAR_BELOW), exponent).sqrt()
    return thickness * torch.where(near_surface, exponent / _LINEAR_BELOW**0.5, curved)
