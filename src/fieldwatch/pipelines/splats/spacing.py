"""How far points lie apart: the size that Gaussians start with."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Spacing = Literal["mean", "least"]

_CHUNK = 256
_LEAST = 1e-7  # world units; points on top of each other get Gaussians of this size


def point_spacing(points: Float[Tensor, "n 3"], neighbours: int = 3, kind: Spacing = "mean") -> Float[Tensor, " n"]:
    """Return for each point how far its nearest neighbours are, at least 1e-7, in world units; exact.

    Points are sorted along the axis on which they spread most. What is farther away on that axis than the neighbours
    found so far cannot be nearer, so only a slab of the points is compared.

    Args:
        points: at least two.
        neighbours: how many count; fewer where there are not so many other points.
        kind: "mean" of their distances (Kerbl 2023, section 5.1), or the "least" (SuGaR).

    Raises:
        ValueError: fewer than two points.
    """
    if len(points) < 2 or neighbours < 1:
        raise ValueError(
            f"the spacing of {len(points)} points to {neighbours} neighbours was asked for: it takes two points or "
            "more and one neighbour; give the starting size yourself"
        )
    axis = int((points.amax(0) - points.amin(0)).argmax())
    order = points[:, axis].argsort(stable=True)
    nearest = _sweep(points[order], axis, min(neighbours, len(points) - 1))
    distances = nearest.mean(1) if kind == "mean" else nearest[:, 0]
    return torch.empty_like(distances).index_copy_(0, order, distances.clamp_min(_LEAST))


def _sweep(points: Float[Tensor, "n 3"], axis: int, neighbours: int) -> Float[Tensor, "n k"]:
    """Distances to the nearest others, ascending, of points that are sorted along an axis."""
    along, parts = points[:, axis].contiguous(), []
    for start in range(0, len(points), _CHUNK):
        stop = min(start + _CHUNK, len(points))
        left, right = max(start - _CHUNK, 0), min(stop + _CHUNK, len(points))
        near = _nearest(points, start, stop, left, right, neighbours)
        # a little wider than needed, so that rounding of distances leaves nobody out
        reach = near[:, -1].amax() * (1 + 1e-5) if near.shape[1] == neighbours else along.new_tensor(torch.inf)
        ends = torch.stack([along[start] - reach, along[stop - 1] + reach])
        first, last = torch.searchsorted(along, ends[:1]), torch.searchsorted(along, ends[1:], right=True)
        if int(first) < left or int(last) > right:
            near = _nearest(points, start, stop, min(int(first), left), max(int(last), right), neighbours)
        parts.append(near)
    return torch.cat(parts)


def _nearest(  # noqa: PLR0913, PLR0917  two ranges of rows
    points: Float[Tensor, "n 3"], start: int, stop: int, left: int, right: int, neighbours: int
) -> Float[Tensor, "rows k"]:
    """Distances of rows start..stop to the nearest of rows left..right, themselves left out."""
    mode = "donot_use_mm_for_euclid_dist"  # the other one cancels away small distances
    distances = torch.cdist(points[start:stop], points[left:right], compute_mode=mode)
    own = torch.arange(start, stop, device=points.device)
    distances[own - start, own - left] = torch.inf
    return distances.topk(min(neighbours, right - left - 1), largest=False).values
