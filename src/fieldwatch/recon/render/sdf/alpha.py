"""Opacity of ray sections in a signed distance field (NeuS)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.sdf.compositing_native import fits_native, native_alpha, scalar_fits


def section_alpha(
    start: Float[Tensor, "*batch"], end: Float[Tensor, "*batch"], inverse_deviation: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch"]:
    """Return the opacity of sections with the signed distance known at both ends (Wang 2021, NeuS, eq. 13).

    The opacity max(0, (S(s f0) - S(s f1)) / S(s f0)), with S the sigmoid, is computed as
    1 - exp(log S(s f1) - log S(s f0)). Without a division it is exact for any sharpness and depth inside the surface,
    where the common form with 1e-5 in the denominator becomes 1. As in the equation, the gradient is zero only where a
    ray leaves the surface (f1 > f0). Single precision on the CPU runs in a native kernel, which computes in double
    precision and is not twice differentiable.

    Args:
        start: signed distance at the start of the section, positive outside.
        end: signed distance at the end of the section.
        inverse_deviation: s, the inverse width of the surface, in inverse units of the distances.
    """
    # The kernel does not broadcast.
    one_shape = start.shape == end.shape and start.dim() > 0
    if one_shape and fits_native(start, end) and scalar_fits(inverse_deviation):
        return native_alpha(start, end, inverse_deviation)
    return section_alpha_reference(start, end, inverse_deviation)


def section_alpha_reference(
    start: Float[Tensor, "*batch"], end: Float[Tensor, "*batch"], inverse_deviation: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch"]:
    """Compute `section_alpha` in plain torch, on any device and in any precision."""
    # The quotient of sigmoids as a difference of logarithms: no division, no epsilon in a denominator.
    change = functional.logsigmoid(inverse_deviation * end) - functional.logsigmoid(inverse_deviation * start)
    return -torch.expm1(change.clamp_max(0))


def neus_alpha(
    sdf: Float[Tensor, "*batch"],
    cosine: Float[Tensor, "*batch"],
    length: Float[Tensor, "*batch"],
    inverse_deviation: Float[Tensor, ""] | float,
    anneal: float = 1.0,
) -> Float[Tensor, "*batch"]:
    """Return the opacity of sections with the signed distance known at the midpoint only (Wang 2021, NeuS, eq. 13).

    The distances at both ends are extrapolated as for a plane: f -+ c * length / 2, with the cosine c <= 0 of an
    approaching ray. Early in training, c is -relu(0.5 - cosine / 2) instead of -relu(-cosine), halfway to a
    perpendicular ray, so that sections seen from behind get gradients too (the annealing of the authors).

    Args:
        sdf: signed distance at the midpoint of the section, positive outside.
        cosine: <ray direction, gradient>, negative where the ray enters.
        length: length of the section in the unit of the distances.
        inverse_deviation: s, the inverse width of the surface.
        anneal: progress of the annealing, from 0 at the start to 1 for the true cosine.

    Raises:
        ValueError: `anneal` is not in [0, 1].
    """
    if not 0 <= anneal <= 1:
        raise ValueError(f"anneal must be from 0 to 1, the finished fraction of the annealing, got {anneal}")
    # NeuS blends from relu(0.5 - cosine / 2) to relu(-cosine), the true value.
    closing = functional.relu(-cosine) * anneal
    if anneal < 1:
        closing = closing + functional.relu(0.5 - 0.5 * cosine) * (1 - anneal)
    # The signed distance falls toward the surface: larger at the start, smaller at the end.
    half = 0.5 * closing * length
    return section_alpha(sdf + half, sdf - half, inverse_deviation)
