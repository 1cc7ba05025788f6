"""Opacity of a section of a ray through a signed distance field (NeuS)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.sdf.compositing_native import fits_native, native_alpha, scalar_fits


def section_alpha(
    start: Float[Tensor, "*batch"], end: Float[Tensor, "*batch"], inverse_deviation: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch"]:
    """Opacity of sections whose signed distance is known at both ends (Wang 2021, NeuS, eq. 13).

    max(0, (S(s f0) - S(s f1)) / S(s f0)) with S the sigmoid, computed as 1 - exp(log S(s f1) - log S(s f0)): nothing is
    divided, so it is right however sharp the surface and however deep inside the section, where the usual quotient with
    1e-5 added turns to 1. Gradients end only where a ray leaves the surface (f1 > f0), as the equation has it.
    Single precision on the CPU runs in a native kernel, which calculates in double and is not twice differentiable.

    Args:
        start: signed distance where the section begins, positive outside.
        end: the same where it ends.
        inverse_deviation: s, one over the width of the surface, in one over the unit of the distances.
    """
    one_shape = start.shape == end.shape and start.dim() > 0
    if one_shape and fits_native(start, end) and scalar_fits(inverse_deviation):
        return native_alpha(start, end, inverse_deviation)
    return section_alpha_reference(start, end, inverse_deviation)


def section_alpha_reference(
    start: Float[Tensor, "*batch"], end: Float[Tensor, "*batch"], inverse_deviation: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch"]:
    """Compute the same in plain torch, on any device and in any precision. Arguments as of `section_alpha`."""
    # The quotient of sigmoids as a difference of logarithms: no division, no small constant in a denominator.
    change = functional.logsigmoid(inverse_deviation * end) - functional.logsigmoid(inverse_deviation * start)
    return -torch.expm1(change.clamp_max(0))


def neus_alpha(
    sdf: Float[Tensor, "*batch"],
    cosine: Float[Tensor, "*batch"],
    length: Float[Tensor, "*batch"],
    inverse_deviation: Float[Tensor, ""] | float,
    anneal: float = 1.0,
) -> Float[Tensor, "*batch"]:
    """Opacity of sections whose signed distance is known in the middle only (Wang 2021, NeuS, eq. 13).

    Distances at the two ends are those of a plane: f -+ c * length / 2, with c <= 0 the cosine by which the ray comes
    closer. At the start of training c is not -relu(-cosine) but -relu(0.5 - cosine / 2), half way to a ray that meets
    the surface head on, so that sections seen from behind have gradients as well (the authors' annealing).

    Args:
        sdf: signed distance in the middle of the section, positive outside.
        cosine: of the angle between ray and gradient, <direction, gradient>: negative where the ray enters.
        length: of the section, in the unit of the distances.
        inverse_deviation: s, one over the width of the surface.
        anneal: 0 at the start, 1 (the true cosine) when the field has settled.

    Raises:
        ValueError: `anneal` is not in [0, 1].
    """
    if not 0 <= anneal <= 1:
        raise ValueError(
            f"the cosine is annealed from 0 to 1, got {anneal}: give the share of the annealing that is done"
        )
    # NeuS anneals between relu(0.5 - cosine / 2) and relu(-cosine), the true one.
    closing = functional.relu(-cosine) * anneal
    if anneal < 1:
        closing = closing + functional.relu(0.5 - 0.5 * cosine) * (1 - anneal)
    half = 0.5 * closing * length
    return section_alpha(sdf + half, sdf - half, inverse_deviation)
