"""The loss of bound Gaussians and their mesh (SuGaR, section 4.3)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def normal_consistency(normals: Float[Tensor, "m 3"], pairs: Int64[Tensor, "e 2"]) -> Float[Tensor, ""]:
    """Mean over inner edges of 1 - cosine between the normals of the two faces: 0 on a plane, 1 at right angles.

    A face without area has a normal of zero and counts 1, with no gradient. Without inner edges it is 0.
    """
    if not len(pairs):
        return normals.sum() * 0  # with a graph, so that backward works
    first = normals.index_select(0, pairs[:, 0])
    second = normals.index_select(0, pairs[:, 1])
    return (1 - (first * second).sum(1)).mean()


def inner_pairs(faces: Int64[Tensor, "m 3"]) -> Int64[Tensor, "e 2"]:
    """Return the faces on both sides of every edge that has exactly two; edges of more or of one face have none."""
    # Sorted ends: the faces beside an edge run through it in opposite directions.
    ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(1).values
    owners = torch.arange(len(faces), device=faces.device).repeat(3)
    _, edge, uses = torch.unique(ends, dim=0, return_inverse=True, return_counts=True)
    inner = uses[edge] == 2
    # Sorted by edge, the two owners of each inner edge are neighbours.
    order = edge[inner].argsort(stable=True)
    return owners[inner][order].view(-1, 2)
