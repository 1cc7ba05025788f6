"""Errors between embeddings."""

import torch
from jaxtyping import Float
from torch import Tensor

_MIN_SQUARED_NORM = 1e-24  # squared norm below which a vector has no direction


def _length(vectors: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    """L2 norm, 1 for zero vectors; the inner `where` keeps the square root's infinite slope at 0 out of the graph."""
    squared = vectors.square().sum(-1)
    return torch.where(squared > _MIN_SQUARED_NORM, squared, torch.ones_like(squared)).sqrt()


def cosine(a: Float[Tensor, "*batch dim"], b: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    """Cosine of the angle between vectors; 0 where one of them is zero, with finite gradients there too."""
    return (a * b).sum(-1) / (_length(a) * _length(b))


def cosine_error(prediction: Float[Tensor, "*batch dim"], target: Float[Tensor, "*batch dim"]) -> Float[Tensor, ""]:
    """Mean of 1 - cosine; 0 perfect, 1 unrelated, 2 opposite."""
    return (1 - cosine(prediction, target)).mean()
