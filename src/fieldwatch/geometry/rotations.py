"""Rotations as quaternions (w, x, y, z) and as matrices; safe to differentiate."""

import torch
from jaxtyping import Float
from torch import Tensor

_SMALLEST = 1e-12  # of a squared length: below it a quaternion has no direction in float32


def normalized_quaternions(quaternions: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Scale quaternions to length 1; one of length 0 stays 0, with a gradient that is finite."""
    return quaternions * (quaternions.square().sum(-1, keepdim=True) + _SMALLEST**2).rsqrt()


def quaternion_to_matrix(quaternions: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Turn quaternions of any length but 0 into rotation matrices.

    Args:
        quaternions: w, x, y, z; normalised here, so the gradient is orthogonal to them.
    """
    w, x, y, z = normalized_quaternions(quaternions).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def matrix_to_quaternion(matrices: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Turn rotation matrices into unit quaternions (w, x, y, z) with w >= 0.

    Four times the outer product of the quaternion with itself is linear in the matrix; its row with the largest
    diagonal entry (at least 1) is the quaternion times a factor, whatever the angle.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in matrices.unbind(-2))
    one = torch.ones_like(xx)
    outer = [
        one + xx + yy + zz, zy - yz, xz - zx, yx - xy,
        zy - yz, one + xx - yy - zz, xy + yx, xz + zx,
        xz - zx, xy + yx, one - xx + yy - zz, yz + zy,
        yx - xy, xz + zx, yz + zy, one - xx - yy + zz,
    ]  # fmt: skip
    table = torch.stack(outer, -1).unflatten(-1, (4, 4))
    best = table.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = table.take_along_dim(best[..., None, None], -2)[..., 0, :]
    quaternion = row / row.norm(dim=-1, keepdim=True)
    return torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
