"""Consistency of rendered normals with the normals of rendered depth (SuGaR's depth-normal term, 2DGS)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean

_MIN_SQUARED_LENGTH = 1e-4  # blended normals shorter than 0.01 are not scaled to length 1
_MIN_SQUARED_Z = 1e-6  # lower bound of z^2, which limits the slope of its square root to 500


def depth_normal_error(
    rendered: Float[Tensor, "height width 3"],
    from_depth: Float[Tensor, "height width 3"],
    weights: Float[Tensor, "height width"] | Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of 1 - cosine over pixels: 0 for equal normals, 2 for opposite ones.

    Normals are scaled to length 1 first, unless they are shorter than 0.01; a normal of length 0 has an error of 1.
    Gradients flow to both arguments.

    Args:
        rendered: blended normals in the same frame as `from_depth`.
        from_depth: result of `fieldwatch.recon.geometry.normals_from_depth`; 0 where there is no normal.
        weights: mask or weights of the pixels, detached (for example alpha where the normal from depth is valid). None
            weights all pixels equally, including the border, as in SuGaR's public code.
    """
    # Blended normals are shorter than 1 where Gaussians disagree or alpha is small.
    cosine = (_unit(rendered) * _unit(from_depth)).sum(-1)
    return weighted_mean(1 - cosine, weights)


def rederived_normals(blended: Float[Tensor, "height width 3"]) -> Float[Tensor, "height width 3"]:
    """Keep x and y of blended normals and set z = -sqrt(1 - x^2 - y^2), as in SuGaR's public code.

    The normals are in camera axes (x right, y down, z forward), so the result faces the camera; the background is
    (0, 0, -1). The radicand is at least 1e-6, since at grazing normals the slope would be infinite.
    """
    x = blended[..., 0]
    y = blended[..., 1]
    return torch.stack([x, y, -(1 - x.square() - y.square()).clamp_min(_MIN_SQUARED_Z).sqrt()], -1)


def normal_consistency_error(
    blended: Float[Tensor, "height width 3"],
    alpha: Float[Tensor, "height width"],
    from_depth: Float[Tensor, "height width 3"],
    valid: Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean over pixels of sum_i w_i (1 - <n_i, N>) = alpha - <blended, N> (2DGS, eq. 14; also in RaDe-GS).

    The term is linear in the rendered normals, so every Gaussian along the ray receives a gradient proportional to its
    blending weight, and there is no division.

    Args:
        blended: blended normals sum_i w_i n_i, not divided by alpha.
        alpha: accumulated opacity sum_i w_i.
        from_depth: unit normals N of the rendered depth in the same frame.
        valid: pixels with a normal from depth; None means all.
    """
    # sum_i w_i = alpha and sum_i w_i n_i = blended, so the sum over Gaussians needs no extra rendering.
    return weighted_mean(alpha - (blended * from_depth).sum(-1), valid)


def _unit(vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    return vectors * vectors.square().sum(-1, keepdim=True).clamp_min(_MIN_SQUARED_LENGTH).rsqrt()
