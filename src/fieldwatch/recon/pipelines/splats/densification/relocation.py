"""Several Gaussians in place of one, so that the image stays the same: Kheradmand 2024, eq. 9."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

MAX_COPIES = 51
"""Largest N of eq. 9; more copies share opacity and scale as if they were so many."""


def relocated_opacity(opacities: Float[Tensor, " n"], copies: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Opacity of each of N copies that blend to the opacity of one: 1 - (1 - o)^(1/N).

    Args:
        opacities: in (0, 1).
        copies: N, 1 or more, the original counted.
    """
    # log1p and expm1 keep the digits of opacities near 0.
    return -torch.expm1(torch.log1p(-opacities) / copies)


def relocated_scale_factor(opacities: Float[Tensor, " n"], copies: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Factor of the standard deviations with which N copies blend, along a line, to the light of one.

    N Gaussians x g at one position blend to 1 - (1 - x g)^N = sum over j of C(N, j) (-1)^(j-1) x^j g^j, and g^j is
    narrower than g by sqrt(j) along a line: the light of the copies is D = sum of C(N, j) (-1)^(j-1) x^j / sqrt(j)
    times their width, that of the original is o. The factor is o / D; the paper's double sum over i and k is the same
    by sum over i of C(i-1, k) = C(N, k+1).

    Args:
        opacities: of the original, in (0, 1).
        copies: N, from 1 to `MAX_COPIES`.
    """
    # The terms alternate in sign: with many copies, their sum would lose most of its digits in single precision.
    opacities = opacities.double()
    number = copies.double()[:, None]
    share = relocated_opacity(opacities, copies)[:, None]
    most = int(copies.max()) if len(copies) else 1
    j = torch.arange(1, most + 1, dtype=torch.float64, device=opacities.device)
    # Binomial coefficients by logarithms; the terms j > N of rows with fewer copies are left out below.
    left = (number - j).clamp_min(0)
    log_terms = torch.lgamma(number + 1) - torch.lgamma(j + 1) - torch.lgamma(left + 1) + j * share.log()
    signs = 1 - 2 * ((j - 1) % 2)
    terms = torch.where(j <= number, signs * log_terms.exp() / j.sqrt(), 0)
    return opacities / terms.sum(1)
