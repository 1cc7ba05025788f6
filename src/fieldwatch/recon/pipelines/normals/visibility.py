"""Visibility of surface points from cameras, by sphere tracing from the point toward the camera (PMNI)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.rendering import RADIUS
from fieldwatch.recon.render import DistanceField

OFFSET = 1e-2
"""Distance from the point at which tracing starts, in units of the scene's sphere: more than the error of a rendered
point, or it would occlude itself. PMNI uses 1e-3."""
TOUCHED = 1e-4
"""Distance from the surface at which a trace counts as a hit."""
ITERATIONS = 30
"""Number of tracing steps, as in PMNI; a trace that has not ended by then counts as occluded."""


@torch.no_grad()
def visible(
    field: DistanceField,
    points: Float[Tensor, "n 3"],
    cameras: Float[Tensor, "n 3"],
    *,
    offset: float = OFFSET,
    iterations: int = ITERATIONS,
) -> Bool[Tensor, " n"]:
    """Return which points are visible from cameras: no part of the surface lies between the two.

    Each point is sphere traced toward its camera until the trace leaves the sphere that bounds the scene or reaches the
    camera (visible), or hits the surface (occluded). A trace that creeps along the surface and has not ended after all
    iterations counts as occluded, because a normal seen at such a grazing angle is unreliable. Computes no gradients.

    Args:
        field: signed distance field, positive outside; never evaluated outside the sphere.
        points: points on the surface, in the frame of the field.
        cameras: camera position for each point.
        offset: distance from the point at which the trace starts.
        iterations: maximum number of tracing steps.
    """
    directions = cameras - points
    lengths = directions.norm(dim=-1)
    # A point at the camera itself has no direction.
    directions = directions / lengths.clamp_min(1e-12)[:, None]
    visible_points = torch.zeros_like(lengths, dtype=torch.bool)
    rows = torch.arange(len(points), device=points.device)
    distance = torch.full_like(lengths, offset)
    # One more round than steps, to check whether the last step ended the trace.
    for _ in range(iterations + 1):
        positions = points[rows] + distance[:, None] * directions[rows]
        unobstructed = (positions.square().sum(-1) >= RADIUS**2) | (distance >= lengths[rows])
        visible_points[rows[unobstructed]] = True
        rows = rows[~unobstructed]
        distance = distance[~unobstructed]
        positions = positions[~unobstructed]
        if not len(rows):
            break
        # The distance to the surface is a safe step length along any ray.
        clearance = field(positions)
        still_clear = clearance > TOUCHED
        rows = rows[still_clear]
        distance = (distance + clearance)[still_clear]
    return visible_points
