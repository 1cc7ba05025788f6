"""How far samples are from the surface, and the terms that pull the Gaussians' own idea of it there (SuGaR)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.losses.ellipsoids import Ellipsoids, Samples, gathered_columns, weighted_mean

_PER_EXTENT = 10.0  # distances are told in tenths of the extent, and end at ten times the extent
_SMALLEST_THICKNESS = 1e-6  # in world units, in the weights of neighbouring normals
_MIN_TOTAL_WEIGHT = 1e-6


def projected_distance(samples: Samples, ellipsoids: Ellipsoids) -> Float[Tensor, " samples"]:
    """Signed distance of each sample to the tangent plane of its own Gaussian: <p - mu_g, n_g> (SuGaR, eq. 5)."""
    offsets = samples.points - ellipsoids.means.index_select(0, samples.owners)
    return (offsets * ellipsoids.normals.index_select(0, samples.owners)).sum(-1)


def sdf_from_depth(
    points: Float[Tensor, "samples 3"],
    depth: Float[Tensor, "height width"],
    camera: Camera,
    *,
    near: float = 0.01,
) -> tuple[Float[Tensor, " samples"], Bool[Tensor, " samples"]]:
    """Estimate signed distances as depth seen minus depth of the point: z_map(proj p) - z(p) (SuGaR, section 4.1).

    Positive in front of the surface. The map is read bilinearly, outside the picture at its border.

    Args:
        points: in world units.
        depth: along the optical axis, in world units.
        camera: that sees `depth`.
        near: points with less depth than this, in world units, have no estimate.

    Returns:
        Distances (0 where there is none) and where there is one.

    Raises:
        ValueError: the depth map and the camera have different sizes.
    """
    if depth.shape != (camera.height, camera.width):
        msg = (
            f"a depth map of {depth.shape[1]}x{depth.shape[0]} (width x height) for camera {camera.name!r} of "
            f"{camera.width}x{camera.height}: bring them to one size, with camera.resized"
        )
        raise ValueError(msg)
    valid = camera.project(points.detach())[1] > near
    # Points behind the camera are replaced by one in front: no division by 0 in the projection.
    ahead = (camera.position + camera.forward).to(points)
    pixels, point_depth = camera.project(torch.where(valid[:, None], points, ahead))
    size = torch.tensor([camera.width, camera.height], dtype=points.dtype, device=points.device)
    # grid_sample takes positions in [-1, 1] with the corners at the picture's borders.
    grid = (2 * pixels / size - 1)[None, None]
    surface_depth = functional.grid_sample(
        depth[None, None], grid.to(depth.dtype), mode="bilinear", padding_mode="border", align_corners=False
    )[0, 0, 0]
    return torch.where(valid, surface_depth - point_depth, torch.zeros_like(point_depth)), valid


def near_depth(
    ellipsoids: Ellipsoids, depth: Float[Tensor, "height width"], camera: Camera, *, deviations: float = 2.0
) -> Bool[Tensor, " n"]:
    """Which Gaussians lie at the surface that a camera sees: within 2 standard deviations along the ray (SuGaR's code).

    These are the ones to draw samples from when `sdf_from_depth` is the estimate.
    """
    rotations = ellipsoids.rotations  # computed once for all terms: not where no graph is kept
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
    """Mean of min(| sdf - |estimate| | / (E / 10), 10 E) (SuGaR, eq. 8): term `sdf_estimation`.

    Args:
        sdf: of `sdf_from_density`, in world units.
        estimate: of `sdf_from_depth` or `projected_distance`.
        extent: E of the cameras, in world units (`camera_extent`).
        valid: samples that count; None is all.

    Raises:
        ValueError: the extent is not positive.
    """
    return _distance_error((sdf - estimate.abs()).abs(), extent, valid)


def samples_on_surface_error(
    distance: Float[Tensor, " samples"], extent: float, valid: Bool[Tensor, " samples"] | None = None
) -> Float[Tensor, ""]:
    """Mean of min(|f| / (E / 10), 10 E): pulls the samples, and so their Gaussians, to the surface (SuGaR's code).

    Args:
        distance: to the surface, in world units, with either sign.
        extent: E of the cameras, in world units.
        valid: samples that count; None is all.

    Raises:
        ValueError: the extent is not positive.
    """
    return _distance_error(distance.abs(), extent, valid)


def better_normal_error(
    samples: Samples,
    neighbours: Int[Tensor, "samples k"],
    contributed: Float[Tensor, "samples k"],
    ellipsoids: Ellipsoids,
) -> Float[Tensor, ""]:
    """Mean squared difference of a Gaussian's normal and its neighbours' weighted one (SuGaR, eq. 10, as in its code).

    |n_g - sum_j w_j n_j|^2 with n_j turned to n_g's side, w_j ~ o_j g_j(p) |<p - mu_j, n_j>| / s_j^2: the weights of
    the density's own gradient. Only normals receive gradients.

    Args:
        samples: points and the Gaussians they were drawn from.
        neighbours: of each sample.
        contributed: o_j g_j(p), of `contributions`.
        ellipsoids: all Gaussians.
    """
    normal = ellipsoids.normals.index_select(0, samples.owners).T[:, :, None]
    neighbour_normals = gathered_columns(ellipsoids.normals, neighbours)
    with torch.no_grad():
        # An ellipsoid's normal has no sign: turn each neighbor's to this one's side.
        side = torch.where((neighbour_normals * normal).sum(0) < 0, -1.0, 1.0).to(neighbour_normals)
        attributes = torch.cat([ellipsoids.means, ellipsoids.thickness[:, None]], 1)
        columns = gathered_columns(attributes, neighbours)
        offsets = samples.points.T[:, :, None] - columns[:3]
        thickness = columns[3].clamp_min(_SMALLEST_THICKNESS)
        weights = contributed * (offsets * neighbour_normals).sum(0).abs() / thickness.square()
        weights = weights / weights.sum(-1, keepdim=True).clamp_min(_MIN_TOTAL_WEIGHT)
    # n_g times the sum of the weights, which is 1 but where nothing contributes: there is no error to speak of
    difference = weights.sum(-1) * normal[..., 0] - (weights * side * neighbour_normals).sum(-1)
    return difference.square().sum() / max(len(samples.owners), 1)


def _distance_error(
    distance: Float[Tensor, " samples"], extent: float, valid: Bool[Tensor, " samples"] | None
) -> Float[Tensor, ""]:
    if not extent > 0:
        msg = f"distances are told in tenths of the cameras' extent, which is {extent}: it must be above 0"
        raise ValueError(msg)
    # The cap keeps samples far from any surface from dominating the mean.
    return weighted_mean((distance * _PER_EXTENT / extent).clamp_max(_PER_EXTENT * extent), valid)
