"""Normals that were drawn, compared with those of the depth that was drawn (SuGaR's depth-normal term, 2DGS)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean

_MIN_SQUARED_LENGTH = 1e-4  # of a squared length: a blended normal shorter than 0.01 is not stretched to 1
_MIN_SQUARED_Z = 1e-6  # of a squared z: where the slope of its square root ends, at 500


def depth_normal_error(
    rendered: Float[Tensor, "height width 3"],
    from_depth: Float[Tensor, "height width 3"],
    weights: Float[Tensor, "height width"] | Bool[Tensor, "height width"] | None = None,
) -> Float[Tensor, ""]:
    """Mean of 1 - cosine over pixels: 0 where both agree, 2 where they are opposite.

    Both are stretched to length 1 first, except where a blended normal is shorter than 0.01; a normal of length 0 has
    an error of 1. Gradients flow into both.

    Args:
        rendered: blended normals, in the same frame as `from_depth`.
        from_depth: of `fieldwatch.recon.geometry.normals_from_depth`; 0 where there is none.
        weights: pixels that count, as a mask or as weights (alpha where the normal from depth is valid); they get no
            gradient. None is all pixels alike, the border included, as SuGaR's public code has it.
    """
    cosine = (_unit(rendered) * _unit(from_depth)).sum(-1)
    return weighted_mean(1 - cosine, weights)


def rederived_normals(blended: Float[Tensor, "height width 3"]) -> Float[Tensor, "height width 3"]:
    """Keep x and y of blended normals and set z = -sqrt(1 - x^2 - y^2): how SuGaR's public code reads a normal picture.

    In camera axes (x right, y down, z forward), so they face the camera; where nothing was drawn they are (0, 0, -1).
    The square under the root is kept above 1e-6: at grazing normals its slope would be infinite.
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
    """Mean over pixels of sum_i w_i (1 - <n_i, N>) = alpha - <blended, N> (2DGS, eq. 14; RaDe-GS has the same).

    Linear in what was drawn, so every Gaussian along the ray is turned by its weight, and no pixel is divided by
    anything.

    Args:
        blended: sum_i w_i n_i, not divided by alpha.
        alpha: sum_i w_i.
        from_depth: N, unit normals of the depth in the same frame.
        valid: pixels that have such a normal; None is all.
    """
    return weighted_mean(alpha - (blended * from_depth).sum(-1), valid)


def _unit(vectors: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 3"]:
    return vectors * vectors.square().sum(-1, keepdim=True).clamp_min(_MIN_SQUARED_LENGTH).rsqrt()
