"""Losses for points that should lie on a surface: distances to another view's point cloud and to the field (PMNI)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import weighted_mean

_MIN_SQUARED_DISTANCE = 1e-24  # squared distance below which the gradient has no direction


def matched_error(
    points: Float[Tensor, "n 3"], matches: Float[Tensor, "n 3"], counted: Bool[Tensor, " n"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean distance between points and their matches (PMNI, one side of its point cloud term).

    With the nearest points of another cloud as matches, this is one half of a symmetric Chamfer distance. A point at
    its match has error 0 and gradient 0. The result is 0 if no pairs are used.

    Args:
        points: points in any frame.
        matches: target of each point in the same frame, detached.
        counted: mask of the pairs to use; None means all.
    """
    # Matches are detached, as in ICP: each cloud is the fixed target of the other.
    squared = (points - matches.detach()).square().sum(-1)
    # The inner `where` keeps the infinite slope of the square root at 0 out of the graph.
    apart = squared > _MIN_SQUARED_DISTANCE
    return weighted_mean(torch.where(apart, torch.where(apart, squared, 1).sqrt(), 0), counted)


def surface_error(distances: Float[Tensor, " n"], counted: Bool[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
    """Return the mean of |f| at points that should lie on the surface (PMNI's SDF term); 0 if no points are used.

    Args:
        distances: signed distances f of the field at the points.
        counted: mask of the points to use; None means all.
    """
    return weighted_mean(distances.abs(), counted)
