"""How far points lie apart: the size that Gaussians start with."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import nearest_neighbours

Spacing = Literal["mean", "least"]

_LEAST = 1e-7  # world units; points on top of each other get Gaussians of this size


def point_spacing(points: Float[Tensor, "n 3"], neighbours: int = 3, kind: Spacing = "mean") -> Float[Tensor, " n"]:
    """Return for each point how far its nearest neighbours are, at least 1e-7, in world units; exact.

    Args:
        points: at least two.
        neighbours: how many count; fewer where there are not so many other points.
        kind: "mean" of their distances (Kerbl 2023, section 5.1), or the "least" (SuGaR).

    Raises:
        InputError: fewer than two points.
    """
    if len(points) < 2 or neighbours < 1:
        raise InputError(
            f"the spacing of {len(points)} points to {neighbours} neighbours was asked for: it takes two points or "
            "more and one neighbour; give the starting size yourself"
        )
    # One more, as the nearest neighbor of a point is itself.
    table = nearest_neighbours(points, min(neighbours + 1, len(points)))
    others = table.squared[:, 1:].sqrt().to(points)
    distances = others.mean(1) if kind == "mean" else others[:, 0]
    return distances.clamp_min(_LEAST)
