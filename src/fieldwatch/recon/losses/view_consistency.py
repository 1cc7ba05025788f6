"""Consistency of the normals of two views at the same surface point (PMNI)."""

from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean


def view_consistency_error(
    first: Float[Tensor, "n 3"],
    second: Float[Tensor, "n 3"],
    visible: Bool[Tensor, " n"],
    weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of w |n_1 - n_2|^2 over the points seen by both views (PMNI's con term).

    For unit normals, a point contributes 2 w (1 - cos(angle)). The loss is invariant to a common rotation of both views
    and to swapping them. The result is 0 without gradient if no point is seen by both views.

    Args:
        first: normals observed by one view, rotated to world axes by its pose.
        second: normals observed by the other view, in world axes.
        visible: mask of the points that both views see and have normals for.
        weights: weight w of each point in [0, 1], such as its surface probability, detached; None means 1.
    """
    # The normalization is the number of points, not the sum of weights, so that low weights lower the loss.
    squared = (first - second).square().sum(-1)
    return weighted_mean(squared if weights is None else squared * weights.detach(), visible)
