"""Rigid transformations as 4x4 matrices, named `target_from_source`, such as `world_from_camera`."""

import torch
from jaxtyping import Float
from torch import Tensor


def rigid(rotation: Float[Tensor, "*batch 3 3"], translation: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4 4"]:
    """Return the matrix of x -> rotation @ x + translation."""
    upper = torch.cat([rotation, translation[..., None]], -1)
    lower = torch.zeros_like(upper[..., :1, :])
    lower[..., 3] = 1
    return torch.cat([upper, lower], -2)


def inverse_rigid(motion: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
    """Return the inverse transformation; the upper left 3x3 part must be a rotation."""
    # The transpose is faster and more accurate than a general inverse.
    inverse_rotation = motion[..., :3, :3].mT
    return rigid(inverse_rotation, -(inverse_rotation @ motion[..., :3, 3, None])[..., 0])


def transform_points(motion: Float[Tensor, "4 4"], points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Apply a transformation to points."""
    return points @ motion[:3, :3].T + motion[:3, 3]
