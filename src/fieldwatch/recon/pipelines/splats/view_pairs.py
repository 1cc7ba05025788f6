"""Neighboring views: for each training photo, those that show the same surface from another position."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry import Camera, transform_points

NEIGHBORS = 6
"""Number of neighbors of a view."""
_PIXELS = 7  # points of a view in each direction
_ANGLE = 10.0  # degrees between the rays of two views to a point, at which they are compared best
_NARROW = 4.0  # degrees: standard deviation below that angle, where depth is uncertain
_WIDE = 15.0  # degrees: standard deviation above it, where surfaces look different
_LEAST_SHARE = 0.1  # of the best possible score


@torch.no_grad()
def neighboring_views(
    cameras: Sequence[Camera], points: Float[Tensor, "n 3"], size: float, count: int = NEIGHBORS
) -> tuple[tuple[int, ...], ...]:
    """Return the neighbors of every camera, the best first; none for a camera that overlaps with no other.

    The points at the pixels of a camera are taken to be at its typical depth: the median of the given points that it
    has in its image. Another camera scores for each of these points in its image, most at an angle of ten degrees
    between the two rays. This needs no matches, only cameras.

    Args:
        cameras: cameras.
        points: points of the scene, world units.
        size: typical depth of cameras that have none of the points in their image, world units.
        count: maximum number of neighbors of a camera.
    """
    cameras = [camera.to("cpu", torch.float64) for camera in cameras]
    points = points.detach().cpu().double()
    best: list[tuple[int, ...]] = []
    for number, camera in enumerate(cameras):
        shown = _shown_by(camera, _typical_depth(camera, points, size))
        scores = torch.tensor([_score(camera, other, shown) for other in cameras])
        scores[number] = 0
        order = torch.argsort(scores, descending=True, stable=True)[:count]
        best.append(tuple(int(other) for other in order if scores[other] >= _LEAST_SHARE))
    return tuple(best)


def _typical_depth(camera: Camera, points: Float[Tensor, "n 3"], size: float) -> float:
    pixels, depth = camera.project(points)
    inside = _inside(camera, pixels, depth)
    return float(depth[inside].median()) if bool(inside.any()) else size


def _shown_by(camera: Camera, depth: float) -> Float[Tensor, "n 3"]:
    """Return points at a depth along the rays through a grid of pixels, world units."""
    steps = (torch.arange(_PIXELS, dtype=torch.float64) + 0.5) / _PIXELS
    x, y = torch.meshgrid(steps * camera.width, steps * camera.height, indexing="xy")
    return transform_points(camera.world_from_camera, depth * camera.directions_through(x, y).reshape(-1, 3))


def _score(camera: Camera, other: Camera, points: Float[Tensor, "n 3"]) -> float:
    inside = _inside(other, *other.project(points))
    rays = [torch.nn.functional.normalize(points - view.position, dim=-1) for view in (camera, other)]
    angle = torch.rad2deg(torch.acos((rays[0] * rays[1]).sum(-1).clamp(-1, 1)))
    off = (angle - _ANGLE) / torch.where(angle < _ANGLE, _NARROW, _WIDE)
    return float((inside * torch.exp(-0.5 * off.square())).mean())


def _inside(camera: Camera, pixels: Float[Tensor, "n 2"], depth: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    x, y = pixels.unbind(-1)
    return (depth > 0) & (x >= 0) & (x < camera.width) & (y >= 0) & (y < camera.height)
