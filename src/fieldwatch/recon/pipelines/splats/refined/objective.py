"""Loss terms of a refinement (SuGaR, section 4.3)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def normal_consistency(normals: Float[Tensor, "m 3"], pairs: Int64[Tensor, "e 2"]) -> Float[Tensor, ""]:
    """Return the mean over inner edges of 1 - cosine between the normals of their faces: 0 for coplanar faces.

    A face without area has a zero normal, so that its edges count 1 without a gradient. Without inner edges, the result
    is 0.
    """
    if not len(pairs):
        return normals.sum() * 0  # keeps a graph, so that backward works
    first = normals.index_select(0, pairs[:, 0])
    second = normals.index_select(0, pairs[:, 1])
    return (1 - (first * second).sum(1)).mean()


def inner_pairs(faces: Int64[Tensor, "m 3"]) -> Int64[Tensor, "e 2"]:
    """Return the two faces of every edge with exactly two faces; boundary and non-manifold edges are skipped."""
    # Sorted ends, because the two faces of an edge traverse it in opposite directions.
    ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(1).values
    owners = torch.arange(len(faces), device=faces.device).repeat(3)
    # `edge` maps each side of a face to its undirected edge.
    _, edge, uses = torch.unique(ends, dim=0, return_inverse=True, return_counts=True)
    inner = uses[edge] == 2
    # Sorted by edge, the two faces of each inner edge are adjacent rows.
    order = edge[inner].argsort(stable=True)
    return owners[inner][order].view(-1, 2)
