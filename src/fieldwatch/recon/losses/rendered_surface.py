"""Losses of volume-rendered surfaces: normals, silhouettes, depth up to scale, and the eikonal term (NeuS, PMNI)."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.losses.ellipsoids import weighted_mean

_MIN_SQUARED_DEPTH = 1e-10  # <z, z> below which a depth has no scale
_MIN_SQUARED_LENGTH = 1e-24  # squared length below which a gradient has no direction


def eikonal_error(
    gradients: Float[Tensor, "*batch 3"], valid: Bool[Tensor, "*batch"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean of (||grad f|| - 1)^2, which is 0 for a distance field (IGR, Gropp et al. 2020; NeuS).

    A gradient of length 0 has error 1 and passes no gradient. The result is 0 if there are no samples.

    Args:
        gradients: gradients of the field at the samples.
        valid: mask of the samples to use; None means all.
    """
    squared = gradients.square().sum(-1)
    has_direction = squared > _MIN_SQUARED_LENGTH
    # The inner `where` keeps the infinite slope of the square root at 0 out of the graph.
    lengths = torch.where(has_direction, torch.where(has_direction, squared, 1).sqrt(), 0)
    return weighted_mean((lengths - 1).square(), valid)


def normal_error(
    rendered: Float[Tensor, "rays 3"],
    normals: Float[Tensor, "rays 3"],
    mask: Bool[Tensor, " rays"],
    *,
    norm: Literal["l1", "l2", "robust"] = "l2",
    scale: float = 0.5,
) -> Float[Tensor, ""]:
    """Return the mean of ||N - n||^2 or ||N - n||_1 over rays in the mask (SuperNormal; PMNI).

    N = sum w grad f is not normalized, so the term also drives opacity and gradient norm toward 1: an empty ray has
    error 1 (`l2`). The result is 0 if no ray is in the mask.

    Args:
        rendered: rendered normals N in the frame of `normals`.
        normals: observed unit normals n, rotated to world axes by the pose.
        mask: rays that hit the object.
        norm: `l2` sums squares of the three components, `l1` absolute values; `robust` is the pseudo-Huber function of
            the length of the difference (Charbonnier et al., IEEE TIP 1997).
        scale: difference from which `robust` grows linearly.
    """
    # Rendered normals are not normalized here, see above: their length is part of the loss.
    return weighted_mean(difference_cost(rendered - normals, norm, scale), mask)


def difference_cost(
    difference: Float[Tensor, "rays 3"], norm: Literal["l1", "l2", "robust"], scale: float
) -> Float[Tensor, " rays"]:
    """Return the cost of differences of normals; `robust` is 2 s^2 (sqrt(1 + d^2 / s^2) - 1), near d^2 for small d.

    Args:
        difference: differences of normals.
        norm: kind of the cost, see `normal_error`.
        scale: s, the difference from which `robust` grows linearly.
    """
    if norm == "l1":
        return difference.abs().sum(-1)
    squares = difference.square().sum(-1)
    return squares if norm == "l2" else 2 * scale**2 * ((1 + squares / scale**2).sqrt() - 1)


def mask_error(
    opacity: Float[Tensor, " rays"],
    mask: Bool[Tensor, " rays"] | Float[Tensor, " rays"],
    weights: Float[Tensor, " rays"] | None = None,
    *,
    floor: float = 1e-5,
) -> Float[Tensor, ""]:
    """Return the mean binary cross-entropy between opacity and silhouette (NeuS).

    Opacity is rescaled to [floor, 1 - floor] instead of clipped, because clipping removes the gradient exactly where
    the opacity is most wrong. An empty ray inside the silhouette has loss -log(floor) and a slope of about 1 / floor.
    The result is 0 if there are no rays.

    Args:
        opacity: accumulated opacity of the rays in [0, 1].
        mask: 1 on the object, 0 elsewhere; fractional coverage is allowed.
        weights: weights of the rays, for rays that are not sampled uniformly over the image. Without them, sampling one
            side of the silhouette more often shifts it by about 0.7 ln(ratio) / sharpness.
        floor: distance of the rescaled opacity from 0 and 1, greater than 0 and less than 0.5.

    Raises:
        ValueError: if the floor is out of range.
    """
    if not 0 < floor < 0.5:
        raise ValueError(f"floor must be greater than 0 and less than 0.5, for example 1e-5, got {floor}")
    # logsigmoid of the logit of the rescaled opacity is accurate at both ends.
    logits = torch.log(floor + (1 - 2 * floor) * opacity) - torch.log(floor + (1 - 2 * floor) * (1 - opacity))
    coverage = mask.to(logits.dtype)
    log_likelihood = coverage * functional.logsigmoid(logits) + (1 - coverage) * functional.logsigmoid(-logits)
    return -weighted_mean(log_likelihood, weights)


def depth_scale(
    integrated: Float[Tensor, " rays"], rendered: Float[Tensor, " rays"], mask: Bool[Tensor, " rays"]
) -> Float[Tensor, ""]:
    """Return the least squares factor a = <z, z_r> / <z, z> from integrated to rendered depth in the mask (PMNI).

    The result is 0 if <z, z> is below 1e-10, that is if there is no integrated depth in the mask. A factor that is not
    positive indicates that rendered and integrated depth are unrelated.

    Args:
        integrated: integrated depth z, known up to one factor per view; values outside the mask are ignored and may be
            NaN.
        rendered: rendered depth z_r of the same kind (distance or z-depth).
        mask: rays that hit the object.
    """
    # A product with the mask would keep NaN outside it.
    masked_depth = torch.where(mask, integrated, 0)
    square = masked_depth.square().sum()
    has_depth = square >= _MIN_SQUARED_DEPTH
    return torch.where(has_depth, (masked_depth * torch.where(mask, rendered, 0)).sum(), 0) / torch.where(
        has_depth, square, 1
    )


def depth_scale_error(
    integrated: Float[Tensor, " rays"], rendered: Float[Tensor, " rays"], mask: Bool[Tensor, " rays"]
) -> Float[Tensor, ""]:
    """Return the mean of |a z - z_r| over in-mask rays with a = `depth_scale` (PMNI, eq. 13 with its erratum).

    All rays must belong to one view, which has one factor. The loss is invariant to scaling of the integrated depth,
    and gradients flow through the factor. The result is 0 if there is no integrated depth in the mask. See
    `depth_scale` for the arguments.
    """
    masked_depth = torch.where(mask, integrated, 0)
    # Without integrated depth the factor is 0, and comparing rendered depth with 0 would pull it to the camera.
    has_depth = masked_depth.square().sum() >= _MIN_SQUARED_DEPTH
    difference = depth_scale(integrated, rendered, mask) * masked_depth - torch.where(mask, rendered, 0)
    return weighted_mean(difference.abs(), mask & has_depth)
