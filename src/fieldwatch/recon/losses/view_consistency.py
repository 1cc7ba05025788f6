"""What two views that look at one place are held to: that they saw the same normal there (PMNI)."""

from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean


def view_consistency_error(
    first: Float[Tensor, "n 3"],
    second: Float[Tensor, "n 3"],
    visible: Bool[Tensor, " n"],
    weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """Sum over places of w |n_1 - n_2|^2, over the number of places that both views see (PMNI's con term).

    For normals of length 1 a place counts 2 w (1 - cos of their angle). Unchanged when both views are turned together,
    and when their roles are changed. 0, without a slope, where no place is seen by both.

    Args:
        first: normals as one view observed them, turned into the world by its pose.
        second: the same of the other view.
        visible: places that both views see and have a normal of.
        weights: w, of each place: how much the surface is there, in [0, 1]; None is 1. No gradient flows into them.
    """
    squared = (first - second).square().sum(-1)
    return weighted_mean(squared if weights is None else squared * weights.detach(), visible)
