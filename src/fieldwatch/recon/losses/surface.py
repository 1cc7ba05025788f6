"""Distances of samples to the surface, and the losses that align Gaussians with it (SuGaR)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.geometry import Camera, transform_points
from fieldwatch.recon.losses.ellipsoids import Ellipsoids, Samples, gathered_columns, take_rows, weighted_mean
from fieldwatch.recon.transfers import constant

_PER_EXTENT = 10.0  # distances are measured in tenths of the camera extent
_SMALLEST_THICKNESS = 1e-6  # world units: lower bound in the weights of neighboring normals
_MIN_TOTAL_WEIGHT = 1e-6


def projected_distance(samples: Samples, ellipsoids: Ellipsoids) -> Float[Tensor, " samples"]:
    """Return signed distances of samples to the tangent planes of their Gaussians, <p - mu_g, n_g> (SuGaR, eq. 5)."""
    offsets = samples.points - take_rows(ellipsoids.means, samples.owners)
    return (offsets * take_rows(ellipsoids.normals, samples.owners)).sum(-1)


def sdf_from_depth(
    points: Float[Tensor, "samples 3"],
    depth: Float[Tensor, "height width"],
    camera: Camera,
    *,
    near: float = 0.01,
) -> tuple[Float[Tensor, " samples"], Bool[Tensor, " samples"]]:
    """Estimate signed distances from a depth map as z_map(proj p) - z(p), positive in front (SuGaR, section 4.1).

    The map is sampled bilinearly, and at its border for points outside the image.

    Args:
        points: points in world units.
        depth: depth along the optical axis in world units.
        camera: camera of `depth`.
        near: minimum depth of a point in world units.

    Returns:
        Distances (0 where there is no estimate), and a mask of the points with an estimate.

    Raises:
        ValueError: if depth map and camera have different sizes.
    """
    if depth.shape != (camera.height, camera.width):
        msg = (
            f"depth map and camera {camera.name!r} must have the same size (width x height), got "
            f"{depth.shape[1]}x{depth.shape[0]} and {camera.width}x{camera.height}: use camera.resized"
        )
        raise ValueError(msg)
    if points.is_cuda:
        return _sdf_on_gpu(points, depth, camera, near)
    valid = camera.project(points.detach())[1] > near
    # Replacing points behind the camera by one in front avoids division by 0 in the projection.
    ahead = (camera.position + camera.forward).to(points)
    pixels, point_depth = camera.project(torch.where(valid[:, None], points, ahead))
    size = constant((camera.width, camera.height), pixels)
    # With align_corners=False, -1 and 1 are the image borders, so no half-pixel offset is needed.
    grid = (2 * pixels / size - 1)[None, None]
    surface_depth = functional.grid_sample(
        depth[None, None], grid.to(depth.dtype), mode="bilinear", padding_mode="border", align_corners=False
    )[0, 0, 0]
    return torch.where(valid, surface_depth - point_depth, torch.zeros_like(point_depth)), valid


def _sdf_on_gpu(
    points: Float[Tensor, "samples 3"], depth: Float[Tensor, "height width"], camera: Camera, near: float
) -> tuple[Float[Tensor, " samples"], Bool[Tensor, " samples"]]:
    """Compute `sdf_from_depth` with few kernels; on a GPU, `grid_sample` adds gradients in no fixed order."""
    local = transform_points(camera.camera_from_world.to(points), points)
    valid = local[:, 2].detach() > near
    # As on a CPU, points behind the camera are replaced by one in front.
    local = torch.where(valid[:, None], local, constant((0, 0, 1), points))
    point_depth = local[:, 2]
    lens = constant((camera.fx, camera.fy), points)
    # Pixel centers are at halves.
    middle = constant((camera.cx - 0.5, camera.cy - 0.5), points)
    pixels = torch.addcdiv(middle, local[:, :2] * lens, point_depth[:, None])
    distance = _interpolated(depth, pixels.to(depth.dtype)) - point_depth
    return torch.where(valid, distance, 0), valid


def _interpolated(
    depth: Float[Tensor, "height width"], places: Float[Tensor, "samples 2"]
) -> Float[Tensor, " samples"]:
    """Interpolate a map bilinearly at columns and rows, at its border for points outside; sums have a fixed order."""
    height, width = depth.shape
    # In the last column and row, the neighbors are the pixels themselves.
    last = constant((width - 1, height - 1), places)
    at = torch.minimum(places.clamp_min(0), last)
    low = at.detach().floor()
    right, below = (at - low).unbind(-1)
    # Bounded as integers too: a coordinate that is not a number must not become a wrong address.
    x, y = torch.minimum(torch.stack([low, low + 1]), last).long().unbind(-1)
    rows = (y[:, None] * width + x).clamp(0, height * width - 1)
    (upper, upper_right), (lower, lower_right) = (row.unbind() for row in depth.flatten()[rows].unbind())
    return torch.lerp(torch.lerp(upper, upper_right, right), torch.lerp(lower, lower_right, right), below)


def near_depth(
    ellipsoids: Ellipsoids, depth: Float[Tensor, "height width"], camera: Camera, *, deviations: float = 2.0
) -> Bool[Tensor, " n"]:
    """Return which Gaussians are within `deviations` standard deviations of the depth map along the ray (SuGaR's code).

    Samples for `sdf_from_depth` are drawn from these Gaussians.
    """
    # The cached property must be evaluated outside no_grad, because other terms need its graph.
    rotations = ellipsoids.rotations
    with torch.no_grad():
        distance, valid = sdf_from_depth(ellipsoids.means, depth, camera)
        offsets = ellipsoids.means - camera.position.to(ellipsoids.means)
        rays = offsets / offsets.norm(dim=-1, keepdim=True).clamp_min(_SMALLEST_THICKNESS)
        along = (rotations.transpose(-1, -2) * rays[:, None, :]).sum(-1)
        return valid & (distance.abs() < deviations * (ellipsoids.scales * along).norm(dim=-1))


def sdf_error(
    sdf: Float[Tensor, " samples"],
    estimate: Float[Tensor, " samples"],
    extent: float,
    valid: Bool[Tensor, " samples"] | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of min(| sdf - |estimate| | / (E / 10), 10 E) (SuGaR, eq. 8), the term `sdf_estimation`.

    Args:
        sdf: result of `sdf_from_density` in world units.
        estimate: result of `sdf_from_depth` or `projected_distance` in world units.
        extent: camera extent E in world units, see `camera_extent`.
        valid: mask of the samples to use; None means all.

    Raises:
        ValueError: if the extent is not positive.
    """
    return _distance_error((sdf - estimate.abs()).abs(), extent, valid)


def samples_on_surface_error(
    distance: Float[Tensor, " samples"], extent: float, valid: Bool[Tensor, " samples"] | None = None
) -> Float[Tensor, ""]:
    """Return the mean of min(|f| / (E / 10), 10 E) (SuGaR's code).

    The loss moves the samples, and through them their Gaussians, to the surface.

    Args:
        distance: signed or unsigned distances f to the surface in world units.
        extent: camera extent E in world units, see `camera_extent`.
        valid: mask of the samples to use; None means all.

    Raises:
        ValueError: if the extent is not positive.
    """
    return _distance_error(distance.abs(), extent, valid)


def better_normal_error(
    samples: Samples,
    neighbors: Int[Tensor, "samples k"],
    contributed: Float[Tensor, "samples k"],
    ellipsoids: Ellipsoids,
) -> Float[Tensor, ""]:
    """Return the mean squared difference of normals and their neighbors' weighted normals (SuGaR, eq. 10 and code).

    |n_g - sum_j w_j n_j|^2 with n_j flipped to the side of n_g and w_j ~ o_j g_j(p) |<p - mu_j, n_j>| / s_j^2, the
    weights in the gradient of the density. Only normals receive gradients.

    Args:
        samples: sample points and their Gaussians.
        neighbors: neighbor indices of each sample.
        contributed: o_j g_j(p), the result of `contributions`.
        ellipsoids: all Gaussians.
    """
    normal = take_rows(ellipsoids.normals, samples.owners).T[:, :, None]
    neighbor_normals = gathered_columns(ellipsoids.normals, neighbors)
    with torch.no_grad():
        # The sign of an ellipsoid's normal is arbitrary, so neighbors are flipped to the side of this one.
        side = torch.where((neighbor_normals * normal).sum(0) < 0, -1.0, 1.0).to(neighbor_normals)
        attributes = torch.cat([ellipsoids.means, ellipsoids.thickness[:, None]], 1)
        columns = gathered_columns(attributes, neighbors)
        offsets = samples.points.T[:, :, None] - columns[:3]
        thickness = columns[3].clamp_min(_SMALLEST_THICKNESS)
        weights = contributed * (offsets * neighbor_normals).sum(0).abs() / thickness.square()
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(_MIN_TOTAL_WEIGHT)
    # The sum of the weights is 1, or 0 where nothing contributes, which then has no error.
    difference = weights.sum(-1) * normal[..., 0] - (weights * side * neighbor_normals).sum(-1)
    # The bound gives 0 instead of NaN without samples.
    return difference.square().sum() / max(len(samples.owners), 1)


def _distance_error(
    distance: Float[Tensor, " samples"], extent: float, valid: Bool[Tensor, " samples"] | None
) -> Float[Tensor, ""]:
    if not extent > 0:
        msg = f"the camera extent, the unit of distances, must be greater than 0, got {extent}"
        raise ValueError(msg)
    # Without the cap, samples far from any surface would dominate the mean.
    return weighted_mean((distance * _PER_EXTENT / extent).clamp_max(_PER_EXTENT * extent), valid)
