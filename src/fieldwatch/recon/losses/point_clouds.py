"""What points that should lie on a surface are held to: the points of another view's cloud, and the field (PMNI)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean

_MIN_SQUARED_DISTANCE = 1e-24  # squared distance below which there is no direction to go


def matched_error(
    points: Float[Tensor, "n 3"], matches: Float[Tensor, "n 3"], counted: Bool[Tensor, " n"] | None = None
) -> Float[Tensor, ""]:
    """Mean distance of points to what they are matched with (PMNI, one side of its point-cloud term).

    With the nearest points of another cloud as matches this is one half of a symmetric Chamfer distance. Gradients flow
    to the points; matches are a fixed aim. A point that lies on its match has an error of 0 and no slope. 0 where
    nothing counts.

    Args:
        points: in any frame.
        matches: in the same frame, one for each point. No gradient flows into them.
        counted: pairs that count; None is all.
    """
    squared = (points - matches.detach()).square().sum(-1)
    # The inner `where` keeps the square root's infinite slope at 0 out of the graph.
    apart = squared > _MIN_SQUARED_DISTANCE
    return weighted_mean(torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0), counted)


def surface_error(distances: Float[Tensor, " n"], counted: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Mean of |f| at points that should lie on the surface (PMNI's sdf term). 0 where nothing counts.

    Args:
        distances: of the field at the points, with either sign.
        counted: points that count; None is all.
    """
    return weighted_mean(distances.abs(), counted)
