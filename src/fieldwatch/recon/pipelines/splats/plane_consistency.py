"""Consistency of a rendered surface between two views: of its depth, and of the photos on it (PGSR, Chen et al. 2024).

Every pixel of a view shows a small plane: depth and normal at the pixel. Seen from a neighboring view it must have the
depth that this view has there, and the photos must agree on it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.geometry import Camera, transform_points

_LEAST_DEPTH = 1e-6  # world units: points nearer to a camera have no pixel
_LEAST_COSINE = 0.1  # of the angle between a plane's normal and the ray: flatter planes give no reliable patch
_LEAST_DEVIATION = 0.01  # of the gray values of a patch in [0, 1]: below, the photo has no texture to compare
_FARTHEST = 1.0  # pixels: a point that returns farther away is occluded, or too wrong to compare


class PixelPlanes(NamedTuple):
    """The surface at some pixels of a view: one plane each.

    Attributes:
        rows, columns: indices of the pixels.
        depth: depth along the optical axis at the pixel centers, world units.
        normals: unit normals in camera axes, toward the camera.
        valid: pixels that show a surface.
    """

    rows: Int[Tensor, " n"]
    columns: Int[Tensor, " n"]
    depth: Float[Tensor, " n"]
    normals: Float[Tensor, "n 3"]
    valid: Bool[Tensor, " n"]


class RoundTrip(NamedTuple):
    """Where the pixels of a view come back to after a visit to the surface of a neighboring view.

    Attributes:
        distance: distance of the returned points from the pixels they started at, pixels; 0 where invalid.
        confidence: exp(-distance), without gradient; 0 for pixels that are invalid, leave the neighbor's photo, see
            nothing there, or return a pixel or more away.
    """

    distance: Float[Tensor, " n"]
    confidence: Float[Tensor, " n"]


def round_trip(
    planes: PixelPlanes, camera: Camera, neighbor: Camera, neighbor_depth: Float[Tensor, "height width"]
) -> RoundTrip:
    """Move pixels to the neighboring view and, with the depth found there, back (PGSR, forward-backward reprojection).

    The point of a pixel is projected into the neighbor. The point that the neighbor sees there, by its own depth, is
    projected back. Gradients flow to the depth of the planes only.

    Args:
        planes: the surface at some pixels of a view.
        camera: camera of the view.
        neighbor: camera of the neighboring view.
        neighbor_depth: its depth, world units; 0 for pixels without surface. It is taken as constant.
    """
    forth = neighbor.camera_from_world @ camera.world_from_camera
    back = camera.camera_from_world @ neighbor.world_from_camera
    there = transform_points(forth, _rays(camera, planes.columns, planes.rows) * planes.depth[:, None])
    x, y, in_front = _pixels(neighbor, there)
    depth, known = sampled(neighbor_depth.detach(), x, y)
    seen = neighbor.directions_through(x, y) * depth[:, None]
    returned_x, returned_y, returns = _pixels(camera, transform_points(back, seen))
    valid = planes.valid & in_front & known & (depth > 0) & returns
    off = torch.stack([returned_x - planes.columns - 0.5, returned_y - planes.rows - 0.5], -1)
    # The root has no slope at 0: the small number bounds it.
    distance = torch.where(valid, (torch.where(valid[:, None], off, 0.0).square().sum(-1) + 1e-12).sqrt(), 0.0)
    apart = distance.detach()
    return RoundTrip(distance, torch.where(valid & (apart < _FARTHEST), torch.exp(-apart), 0.0))


def round_trip_error(trip: RoundTrip) -> Float[Tensor, ""]:
    """Return the mean of confidence times distance over the pixels with a confidence; 0 if there are none."""
    return _mean(trip.distance * trip.confidence, trip.confidence > 0)


def patch_correlation(  # noqa: PLR0913  two views with their photos
    planes: PixelPlanes,
    camera: Camera,
    photo: Float[Tensor, "rows columns"],
    neighbor: Camera,
    neighbor_photo: Float[Tensor, "height width"],
    *,
    radius: int = 3,
) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Return the normalized cross-correlation of patches with the neighbor's photo, and where it is defined.

    The pixels of a square patch are moved onto the plane of its middle pixel and projected into the neighbor: the
    homography of the plane. The correlation does not depend on the brightness and contrast of the photos. It is not
    defined where a patch leaves a photo, where the plane is seen edge-on, and where the photo has no texture. Gradients
    flow to depth and normals.

    Args:
        planes: the surface at some pixels of a view.
        camera: camera of the view.
        photo: gray values of the view's photo in [0, 1].
        neighbor: camera of the neighboring view.
        neighbor_photo: gray values of its photo.
        radius: half the side of a patch, pixels: 3 compares 7 x 7 pixels.
    """
    steps = torch.arange(-radius, radius + 1, device=photo.device)
    rows = planes.rows[:, None] + steps.repeat_interleave(len(steps))
    columns = planes.columns[:, None] + steps.repeat(len(steps))
    height, width = photo.shape
    inside = ((rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)).all(-1)
    values = photo[rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    middle = _rays(camera, planes.columns, planes.rows)
    # n . X is the same for all points of a plane, so that a ray r meets it at the depth (n . X) / (n . r).
    toward = (planes.normals * middle).sum(-1)
    rays = _rays(camera, columns, rows)
    slopes = torch.einsum("nc,npc->np", planes.normals, rays)
    steep = toward.detach() < -_LEAST_COSINE * middle.norm(dim=-1)
    # Within a patch, the ray may not become parallel to the plane.
    ahead = steep & (slopes.detach() < 0.5 * toward.detach()[:, None]).all(-1)
    depth = (planes.depth * toward)[:, None] / torch.where(ahead[:, None], slopes, -1.0)
    there = transform_points(neighbor.camera_from_world @ camera.world_from_camera, rays * depth[..., None])
    x, y, in_front = _pixels(neighbor, there)
    warped, known = sampled(neighbor_photo, x, y)
    defined = planes.valid & inside & ahead & (known & in_front).all(-1)
    first = values - values.mean(-1, keepdim=True)
    second = warped - warped.mean(-1, keepdim=True)
    least = _LEAST_DEVIATION**2
    first_variance = first.square().mean(-1)
    second_variance = second.square().mean(-1)
    defined = defined & (first_variance > least) & (second_variance.detach() > least)
    product = torch.where(defined, first_variance * second_variance, 1.0)
    return torch.where(defined, (first * second).mean(-1) * product.rsqrt(), 0.0), defined


def patch_error(
    correlation: Float[Tensor, " n"], defined: Bool[Tensor, " n"], confidence: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Return the mean of confidence times (1 - correlation) over the patches that have both; 0 if there are none."""
    return _mean(confidence * (1 - correlation), defined & (confidence > 0))


def _mean(values: Float[Tensor, " n"], counted: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return a mean without a wait for the device; 0 if nothing counts."""
    return (values * counted).sum() / counted.sum().clamp_min(1)


def sampled(
    values: Float[Tensor, "height width"], x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]
) -> tuple[Float[Tensor, "*n"], Bool[Tensor, "*n"]]:
    """Return bilinearly interpolated values of a constant map, and whether all four pixels around are in it.

    Gradients flow to the positions. Unlike those of torch's `grid_sample` on a GPU, they are deterministic.

    Args:
        values: the map, constant.
        x: positions in pixels from the left edge, with pixel centers at + 0.5.
        y: positions in pixels from the upper edge.
    """
    height, width = values.shape
    left = (x.detach() - 0.5).floor()
    top = (y.detach() - 0.5).floor()
    inside = (left >= 0) & (left <= width - 2) & (top >= 0) & (top <= height - 2)
    # Also false for NaN, whose conversion to an index is undefined.
    first = torch.where(inside, top * width + left, 0).long()
    across = torch.where(inside, x - 0.5 - left, 0.0)
    down = torch.where(inside, y - 0.5 - top, 0.0)
    flat = values.flatten()
    upper = flat[first] * (1 - across) + flat[first + 1] * across
    lower = flat[first + width] * (1 - across) + flat[first + width + 1] * across
    return upper * (1 - down) + lower * down, inside


def _rays(camera: Camera, columns: Int[Tensor, "*n"], rows: Int[Tensor, "*n"]) -> Float[Tensor, "*n 3"]:
    """Return the points at depth 1 of pixel centers, in camera axes."""
    precision = camera.world_from_camera.dtype
    return camera.directions_through(columns.to(precision) + 0.5, rows.to(precision) + 0.5)


def _pixels(
    camera: Camera, points: Float[Tensor, "*n 3"]
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"], Bool[Tensor, "*n"]]:
    """Return the pixel positions of points in camera axes, and whether the points are in front of the camera."""
    depth = points[..., 2]
    in_front = depth.detach() > _LEAST_DEPTH
    safe = torch.where(in_front, depth, 1.0)
    x = camera.fx * points[..., 0] / safe + camera.cx
    y = camera.fy * points[..., 1] / safe + camera.cy
    return x, y, in_front
