"""Which cameras see a point of the surface: sphere tracing from the point towards them (PMNI)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.rendering import RADIUS
from fieldwatch.recon.render import DistanceField

OFFSET = 1e-2
"""Distance from a point at which its way begins, in units of the scene's sphere: further than a rendered point is off
the surface, or the point would hide itself. PMNI has 1e-3."""
TOUCHED = 1e-4
"""Distance from the surface at which a way ends there."""
ITERATIONS = 30
"""Steps of a way, as in PMNI; one that has not ended by then does not count as open."""


@torch.no_grad()
def visible(
    field: DistanceField,
    points: Float[Tensor, "n 3"],
    cameras: Float[Tensor, "n 3"],
    *,
    offset: float = OFFSET,
    iterations: int = ITERATIONS,
) -> Bool[Tensor, " n"]:
    """Tell which points are seen from cameras: nothing of the surface lies between the two.

    Goes from each point towards its camera by as much as the field says is free, until it leaves the sphere that bounds
    the scene or arrives (seen), or touches the surface (hidden). A way that creeps along the surface and has not ended
    after all iterations counts as hidden: a normal seen at such an angle says little. No gradients.

    Args:
        field: signed distances, positive outside; never called outside of the sphere.
        points: on the surface, in the frame of the field.
        cameras: where the camera of each point stands.
        offset: where the way begins, from the point on.
        iterations: at most.
    """
    directions = cameras - points
    lengths = directions.norm(dim=-1)
    directions = directions / lengths.clamp_min(1e-12)[:, None]
    visible_points = torch.zeros_like(lengths, dtype=torch.bool)
    rows = torch.arange(len(points), device=points.device)
    distance = torch.full_like(lengths, offset)
    # One more round than steps, to see whether the last step ended the way.
    for _ in range(iterations + 1):
        positions = points[rows] + distance[:, None] * directions[rows]
        unobstructed = (positions.square().sum(-1) >= RADIUS**2) | (distance >= lengths[rows])
        visible_points[rows[unobstructed]] = True
        rows = rows[~unobstructed]
        distance = distance[~unobstructed]
        positions = positions[~unobstructed]
        if not len(rows):
            break
        clearance = field(positions)
        still_clear = clearance > TOUCHED
        rows = rows[still_clear]
        distance = (distance + clearance)[still_clear]
    return visible_points
