"""Losses between embeddings."""

from jaxtyping import Float
from torch import Tensor

_MIN_SQUARED_NORM = 1e-24  # squared norm below which a vector has no direction


def _length(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    """Return the L2 norm; 1 for zero vectors, which also avoids the infinite slope of the square root at 0."""
    squared = vectors.square().sum(-1)
    # Clamping instead would bias the cosine of short vectors.
    return squared.masked_fill(squared <= _MIN_SQUARED_NORM, 1).sqrt()


def cosine(a: Float[Tensor, "*batch dim"], b: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    """Return the cosine of the angle between vectors; 0 if one of them is zero, with finite gradients."""
    return (a * b).sum(-1) / (_length(a) * _length(b))


def cosine_error(prediction: Float[Tensor, "*batch dim"], target: Float[Tensor, "*batch dim"]) -> Float[Tensor, ""]:
    """Return the mean of 1 - cosine: 0 for equal directions, 1 for orthogonal ones, 2 for opposite ones."""
    return (1 - cosine(prediction, target)).mean()
