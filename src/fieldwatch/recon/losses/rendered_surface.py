"""What a volume-rendered surface is held to: normals, silhouette, depth up to scale, a true distance (NeuS, PMNI)."""

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
    """Mean of (||grad f|| - 1)^2: 0 for a true distance (Gropp 2020, IGR; NeuS).

    0 where there are no samples. A gradient of length 0 has an error of 1 and no slope.

    Args:
        gradients: of the field at samples.
        valid: samples that count; None is all.
    """
    squared = gradients.square().sum(-1)
    has_direction = squared > _MIN_SQUARED_LENGTH
    lengths = torch.where(has_direction, torch.where(has_direction, squared, 1).sqrt(), 0)
    return weighted_mean((lengths - 1).square(), valid)


def normal_error(
    rendered: Float[Tensor, "rays 3"],
    normals: Float[Tensor, "rays 3"],
    mask: Bool[Tensor, " rays"],
    *,
    norm: Literal["l1", "l2"] = "l2",
) -> Float[Tensor, ""]:
    """Mean over in-mask rays of ||N - n||^2, or of ||N - n||_1 (SuperNormal; PMNI).

    N = sum w grad f is not normalised, so this also pulls the opacity and the length of gradients to 1: an empty ray
    has an error of 1. 0 where no ray is in the mask.

    Args:
        rendered: N, in the frame of `normals`.
        normals: n, of length 1, as observed, turned into the world by the pose.
        mask: rays that see the object.
        norm: `l2` sums squares, `l1` absolute values, over the three components.
    """
    difference = rendered - normals
    return weighted_mean((difference.square() if norm == "l2" else difference.abs()).sum(-1), mask)


def mask_error(
    opacity: Float[Tensor, " rays"],
    mask: Bool[Tensor, " rays"] | Float[Tensor, " rays"],
    weights: Float[Tensor, " rays"] | None = None,
    *,
    floor: float = 1e-5,
) -> Float[Tensor, ""]:
    """Mean binary cross-entropy between opacity and silhouette (NeuS), in logits.

    Instead of a clip, which ends the gradient exactly where opacity is most wrong, opacity is squeezed into
    [floor, 1 - floor]: an empty ray inside the silhouette costs -log(floor) and has a slope of about 1 / floor. 0 where
    there are no rays.

    Args:
        opacity: in [0, 1].
        mask: 1 on the object; shares of a pixel are fine.
        weights: how much each ray counts, for rays that are not drawn evenly over the picture: one side of the
            silhouette drawn more often than the other moves it, by about 0.7 ln(ratio) over the sharpness.
        floor: above 0, below 0.5.

    Raises:
        ValueError: the floor is not in (0, 0.5).
    """
    if not 0 < floor < 0.5:
        raise ValueError(f"opacity is kept {floor} from 0 and 1: choose a floor above 0 and below 0.5, such as 1e-5")
    # The squeezed opacity as a logit: logsigmoid is then exact at both ends.
    logits = torch.log(floor + (1 - 2 * floor) * opacity) - torch.log(floor + (1 - 2 * floor) * (1 - opacity))
    # Boolean masks and shares of pixels alike.
    share = mask.to(logits.dtype)
    return -weighted_mean(share * functional.logsigmoid(logits) + (1 - share) * functional.logsigmoid(-logits), weights)


def depth_scale(
    integrated: Float[Tensor, " rays"], rendered: Float[Tensor, " rays"], mask: Bool[Tensor, " rays"]
) -> Float[Tensor, ""]:
    """Least-squares factor a = <z, z_r> / <z, z> from integrated to rendered depth, over in-mask rays (PMNI).

    0 where <z, z> is below 1e-10: nothing integrated in the mask. Not positive where what is rendered has no relation
    to it: a sign worth a look.

    Args:
        integrated: z, known up to one factor for each view; whatever is outside the mask does not count (NaN included).
        rendered: z_r of the same kind (distance or z-depth).
        mask: rays that see the object.
    """
    # `where` and not a product: outside the mask depth may be NaN.
    masked_depth = torch.where(mask, integrated, 0)
    square = masked_depth.square().sum()
    has_depth = square >= _MIN_SQUARED_DEPTH
    return torch.where(has_depth, (masked_depth * torch.where(mask, rendered, 0)).sum(), 0) / torch.where(
        has_depth, square, 1
    )


def depth_scale_error(
    integrated: Float[Tensor, " rays"], rendered: Float[Tensor, " rays"], mask: Bool[Tensor, " rays"]
) -> Float[Tensor, ""]:
    """Mean over in-mask rays of |a z - z_r| with a of `depth_scale` (PMNI, eq. 13 as corrected by its erratum).

    One factor for the rays of one view: call it for each view by itself. Unchanged when the integrated depth is scaled;
    gradients flow through a. 0 where no ray is in the mask or nothing was integrated there. Arguments as `depth_scale`.
    """
    masked_depth = torch.where(mask, integrated, 0)
    has_depth = masked_depth.square().sum() >= _MIN_SQUARED_DEPTH
    difference = depth_scale(integrated, rendered, mask) * masked_depth - torch.where(mask, rendered, 0)
    return weighted_mean(difference.abs(), mask & has_depth)
