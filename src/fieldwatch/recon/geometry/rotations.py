"""Rotations as quaternions (w, x, y, z), matrices and rotation vectors, with finite gradients everywhere."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.transfers import constant

_SMALL_ANGLE = 1e-6
"""Squared angle (radians) below which `exponential` uses a series, with a truncation error below 1e-14."""
_MIN_SQUARED_LENGTH = 1e-12  # squared length below which a quaternion has no direction in float32


def normalized_quaternions(quaternions: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Scale quaternions to length 1; zero quaternions stay zero, with finite gradients."""
    return quaternions * (quaternions.square().sum(-1, keepdim=True) + _MIN_SQUARED_LENGTH**2).rsqrt()


def quaternion_to_matrix(quaternions: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Convert quaternions to rotation matrices.

    Args:
        quaternions: quaternions (w, x, y, z) of any nonzero length. They are normalized here, so their gradients are
            orthogonal to them.
    """
    if quaternions.is_cuda:
        return _matrices_on_gpu(normalized_quaternions(quaternions))
    # Standard formula for unit quaternions, for example in Shoemake, Animating rotation with quaternion curves, 1985.
    w, x, y, z = normalized_quaternions(quaternions).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def _matrices_on_gpu(quaternions: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Convert unit quaternions by few operations on vectors, each of which is a kernel on a GPU.

    R = (1 - 2 v^2) I + 2 v v^T + 2 w [v]x, in which v is the vector part (Rodrigues' formula).
    """
    w = quaternions[..., :1, None]
    v = quaternions[..., 1:]
    axes = constant((1, 0, 0, 0, 1, 0, 0, 0, 1), quaternions).view(3, 3)
    # Rows of the transpose: images of the axes.
    across = torch.linalg.cross(v[..., None, :].expand(*v.shape, 3), axes.expand(*v.shape, 3))
    images = torch.addcmul(v[..., :, None] * v[..., None, :], w, across)
    shrunk = 0.5 - v.square().sum(-1)[..., None, None]
    return (2 * torch.addcmul(images, shrunk, axes)).mT


def matrix_to_quaternion(matrices: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Convert rotation matrices to unit quaternions (w, x, y, z) with w >= 0.

    Four times the outer product of the quaternion with itself is linear in the matrix. Its row with the largest
    diagonal entry, which is at least 1 for any angle, is a multiple of the quaternion.
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
    # Choosing the largest diagonal entry avoids division by a component near 0 (Shepperd's method).
    best = table.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = table.take_along_dim(best[..., None, None], -2)[..., 0, :]
    quaternion = row / row.norm(dim=-1, keepdim=True)
    # q and -q are the same rotation; w >= 0 makes the result unique.
    return torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)


def exponential(rotation_vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3 3"]:
    """Convert rotation vectors (axis times angle in radians) to rotation matrices: exp of so(3), Rodrigues' formula.

    I + a K + b K^2 with a = sin(t) / t and b = (1 - cos(t)) / t^2 = sinc(t / 2)^2 / 2. Near 0, series of a and b give
    correct gradients at the identity, from which poses are optimized.
    """
    squared = rotation_vectors.square().sum(-1)[..., None, None]
    # `where` evaluates both branches; the inner one keeps the gradient of the unused branch finite.
    small = squared < _SMALL_ANGLE
    angle = torch.where(small, 1, squared).sqrt()
    a = torch.where(small, 1 - squared / 6, angle.sin() / angle)
    b = torch.where(small, 0.5 - squared / 24, 2 * ((0.5 * angle).sin() / angle).square())
    x, y, z = rotation_vectors.unbind(-1)
    zero = torch.zeros_like(x)
    skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))
    return torch.eye(3, dtype=skew.dtype, device=skew.device) + a * skew + b * (skew @ skew)
