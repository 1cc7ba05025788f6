"""Spacing of points, from which the initial scales of Gaussians are derived."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import nearest_neighbors

Spacing = Literal["mean", "least"]

_LEAST = 1e-7  # world units; spacing of coincident points


def point_spacing(points: Float[Tensor, "n 3"], neighbors: int = 3, kind: Spacing = "mean") -> Float[Tensor, " n"]:
    """Return the distance of each point to its nearest neighbors, world units, at least 1e-7.

    Args:
        points: positions, at least two.
        neighbors: number of neighbors; fewer are used if there are fewer other points.
        kind: "mean" of the distances (Kerbl 2023, section 5.1), or the "least" (SuGaR).

    Raises:
        InputError: There are fewer than two points, or `neighbors` is less than 1.
    """
    if len(points) < 2 or neighbors < 1:
        raise InputError(
            "spacing requires at least 2 points and 1 neighbor, got "
            f"{len(points)} points to {neighbors} neighbors; pass the initial scales explicitly"
        )
    # One more, because the nearest neighbor of a point is itself.
    table = nearest_neighbors(points, min(neighbors + 1, len(points)))
    others = table.squared[:, 1:].sqrt().to(points)
    # `squared` is sorted: the first column is the nearest neighbor.
    distances = others.mean(1) if kind == "mean" else others[:, 0]
    return distances.clamp_min(_LEAST)
