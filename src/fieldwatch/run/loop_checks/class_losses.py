"""`loss_misfits`: whether a gradient is that of a cross-entropy of probabilities, or of one without a logarithm.

A loop may hand over its losses detached, or sum them up in pieces, so that the operations behind them are not seen. The
gradient of the outputs tells all the same: each formula pulls at the classes in its own proportions.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_APART = 0.05
"""Misfit of a cross-entropy of logits from which other formulas can be told from it: while all chances are equal, the
gradients of all of them are."""
_ONE = 1e-3
"""Largest difference of 1 and the sum of probabilities, for half types."""


def loss_misfits(
    values: Float[Tensor, "places classes"],
    gradient: Float[Tensor, "places classes"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return how far a gradient is from that of a cross-entropy of probabilities, and of one without a logarithm.

    Args:
        values: outputs; logits, or probabilities if they are none.
        gradient: their gradient.

    Returns:
        Shares of the squared gradient that the softmax before a cross-entropy, and the mean of probabilities in place
        of their logarithms, do not explain: 0 for exactly these losses. NaN if a cross-entropy of logits explains it.
    """
    chances = values.softmax(dim=1)
    # All of these formulas pull each class in proportion to its chance; only the pull at the right one is negative.
    targets = (gradient / chances.clamp_min(1e-20)).argmin(dim=1)
    right = functional.one_hot(targets, values.shape[1]).to(values.dtype)
    plain = chances - right
    outer = chances.softmax(dim=1) - right
    twice = chances * (outer - (chances * outer).sum(dim=1, keepdim=True))
    unlogged = (chances * right).sum(dim=1, keepdim=True) * plain
    of_plain = _misfit(gradient, plain)
    known = torch.where(of_plain > _APART, 1.0, torch.nan)
    # Outputs that are probabilities have had their softmax within the module.
    given = (values >= 0).all() & ((values.sum(dim=1) - 1).abs() < _ONE).all()
    return (
        torch.where(given, of_plain, _misfit(gradient, twice) * known),
        torch.where(given, _misfit(gradient, -right), _misfit(gradient, unlogged) * known),
    )


def _misfit(gradient: Float[Tensor, "places classes"], expected: Float[Tensor, "places classes"]) -> Float[Tensor, ""]:
    """Return the share of a squared gradient that an expected one of any scale does not explain.

    Places without a gradient do not count.
    """
    expected = expected * (gradient.abs().amax(dim=1, keepdim=True) > 0)
    scale = (gradient * expected).sum() / expected.square().sum().clamp_min(1e-30)
    apart = (gradient - scale.clamp_min(0) * expected).square().sum()
    return apart / gradient.square().sum().clamp_min(1e-30)
