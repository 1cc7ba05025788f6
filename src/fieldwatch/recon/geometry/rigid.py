"""Rigid motions as 4x4 matrices, spelled `to_from_from`: `world_from_camera` takes camera coordinates to the world."""

import torch
from jaxtyping import Float
from torch import Tensor


def rigid(rotation: Float[Tensor, "*batch 3 3"], translation: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4 4"]:
    """Join a rotation and a translation: x -> rotation @ x + translation."""
    upper = torch.cat([rotation, translation[..., None]], -1)
    lower = torch.zeros_like(upper[..., :1, :])
    lower[..., 3] = 1
    return torch.cat([upper, lower], -2)


def inverse_rigid(motion: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
    """Return the motion back; exact up to rounding where the upper left 3x3 part is a rotation."""
    inverse_rotation = motion[..., :3, :3].mT
    return rigid(inverse_rotation, -(inverse_rotation @ motion[..., :3, 3, None])[..., 0])


def transform_points(motion: Float[Tensor, "4 4"], points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Move points."""
    return points @ motion[:3, :3].T + motion[:3, 3]
