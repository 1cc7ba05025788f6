"""Opacity and scale of N copies that replace one Gaussian without changing the image: Kheradmand 2024, eq. 9."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_COPIES = 51
"""Largest N of eq. 9; opacity and scale are computed for this number if there are more copies."""


def relocated_opacity(opacities: Float[Tensor, " n"], copies: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the opacity of each of N copies that blend to the original's opacity: 1 - (1 - o)^(1/N).

    Args:
        opacities: opacities of the originals, in (0, 1).
        copies: N, at least 1, including the original.
    """
    # log1p and expm1 preserve the precision of opacities near 0.
    return -torch.expm1(torch.log1p(-opacities) / copies)


def relocated_scale_factor(opacities: Float[Tensor, " n"], copies: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the factor of the standard deviations with which N copies blend, along a line, to the original's light.

    N Gaussians x g at one position blend to 1 - (1 - x g)^N = sum over j of C(N, j) (-1)^(j-1) x^j g^j, and g^j is
    narrower than g by sqrt(j) along a line: the light of the copies is D = sum of C(N, j) (-1)^(j-1) x^j / sqrt(j)
    times their width, that of the original is o. The factor is o / D; the paper's double sum over i and k is the same
    by sum over i of C(i-1, k) = C(N, k+1).

    Args:
        opacities: opacities of the originals, in (0, 1).
        copies: N, from 1 to `MAX_COPIES`, including the original.
    """
    # The terms alternate in sign: with many copies, cancellation would lose most digits in single precision.
    opacities = opacities.double()
    number = copies.double()[:, None]
    share = relocated_opacity(opacities, copies)[:, None]
    most = int(copies.max()) if len(copies) else 1
    j = torch.arange(1, most + 1, dtype=torch.float64, device=opacities.device)
    # Logarithms of the binomial coefficients. Rows with fewer copies have no terms j > N: masked out below.
    left = (number - j).clamp_min(0)
    log_terms = torch.lgamma(number + 1) - torch.lgamma(j + 1) - torch.lgamma(left + 1) + j * share.log()
    signs = 1 - 2 * ((j - 1) % 2)
    terms = torch.where(j <= number, signs * log_terms.exp() / j.sqrt(), 0)
    return opacities / terms.sum(1)
