"""Pixelwise losses."""

from jaxtyping import Float
from torch import Tensor


def l1(prediction: Float[Tensor, "*batch"], target: Float[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Return the mean absolute difference over all pixels and channels."""
    return (prediction - target).abs().mean()


def l2(prediction: Float[Tensor, "*batch"], target: Float[Tensor, "*batch"]) -> Float[Tensor, ""]:
    """Return the mean squared difference over all pixels and channels."""
    return (prediction - target).square().mean()
