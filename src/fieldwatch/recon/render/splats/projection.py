"""Projection of Gaussians in plain torch: EWA splatting (Zwicker 2001) as used by 3DGS (Kerbl 2023)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.splats.stages import THRESHOLD, GaussianTensors, ProjectedGaussians, RasterOptions
from fieldwatch.recon.render.splats.view import View
from fieldwatch.recon.transfers import constant

_LARGEST = 1e30  # largest determinant of a covariance that is rendered
_THINNEST = 1e-8  # smallest scale in world units for the slope of depth


class _Footprint(NamedTuple):
    """Gaussians in image space: position, covariance and determinant, with and without the low-pass dilation."""

    camera: Float[Tensor, "n 3"]
    means2d: Float[Tensor, "n 2"]
    variances: Float[Tensor, "n 2"]
    covariance: Float[Tensor, " n"]
    det: Float[Tensor, " n"]
    area: Float[Tensor, " n"]  # square root of the determinant before the low-pass dilation


def rotations(quaternions: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3 3"]:
    """Return the rotation matrices of quaternions (w, x, y, z) of any length."""
    w, x, y, z = functional.normalize(quaternions, dim=-1).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def project(gaussians: GaussianTensors, view: View, options: RasterOptions) -> ProjectedGaussians:
    """Project the Gaussians that touch the image.

    Gaussians are culled if they are in front of the near plane, if their alpha reaches 1/255 at no pixel (by the box
    around the ellipse), or if they are not finite.
    """
    with torch.no_grad():
        ids = torch.nonzero(_visible(gaussians, view, options))[:, 0]
    means, quaternions, scales, opacities = (part[ids] for part in gaussians)
    axes = rotations(quaternions)
    footprint = _footprint(means, axes, scales, view, options.eps2d)
    var_x, var_y = footprint.variances.unbind(-1)
    whitening = [(var_y / footprint.det).sqrt(), -footprint.covariance / (var_y * footprint.det).sqrt(), var_y.rsqrt()]
    longest_variance = (var_x + var_y) / 2 + ((var_x - var_y).square() / 4 + footprint.covariance.square()).sqrt()
    return ProjectedGaussians(
        ids=ids,
        means2d=footprint.means2d,
        whitening=torch.stack(whitening, -1),
        depths=footprint.camera[:, 2],
        alphas=opacities * footprint.area / footprint.det.sqrt() if options.antialiased else opacities,
        radii=3 * longest_variance.detach().sqrt(),
        normals=_thinnest_axes(means, axes, scales, view) if options.normals else None,
        slopes=_slopes(means, axes, scales, footprint.camera[:, 2], view) if options.slopes else None,
    )


def _footprint(
    means: Float[Tensor, "n 3"], axes: Float[Tensor, "n 3 3"], scales: Float[Tensor, "n 3"], view: View, eps2d: float
) -> _Footprint:
    """Compute the covariance M M^T + eps2d I with M = J W R S, and its determinant by the Cauchy-Binet formula.

    All terms of that formula are positive, so nothing cancels.
    """
    world = view.camera_from_world.to(means)
    camera = means @ world[:3, :3].T + world[:3, 3]
    z = camera[:, 2:]
    ratios = camera[:, :2] / z
    left, right, top, bottom = view.bounds
    low = constant((left, top), ratios)
    high = constant((right, bottom), ratios)
    # Only the Jacobian uses the clamped ratio; the mean is projected exactly.
    clamped = torch.minimum(torch.maximum(ratios, low), high)
    focal = constant((view.fx, view.fy), ratios)
    center = constant((view.cx, view.cy), ratios)
    # Rows of J W: change of pixel x and y per world unit along each world axis.
    jacobian = (focal / z)[:, :, None] * (world[:2, :3] - clamped[:, :, None] * world[2, :3])
    half_axes = (jacobian @ axes) * scales[:, None, :]
    # Cauchy-Binet: det(M M^T) = |m1 x m2|^2, without the cancellation of xx yy - xy^2 for needles.
    squares = half_axes.square().sum(-1)
    area = torch.linalg.vector_norm(torch.linalg.cross(half_axes[:, 0], half_axes[:, 1]), dim=-1)
    return _Footprint(
        camera=camera,
        means2d=focal * ratios + center,
        variances=squares + eps2d,
        covariance=(half_axes[:, 0] * half_axes[:, 1]).sum(-1),
        det=area.square() + eps2d * squares.sum(-1) + eps2d * eps2d,
        area=area,
    )


def _visible(gaussians: GaussianTensors, view: View, options: RasterOptions) -> Bool[Tensor, " n"]:
    """Select the visible Gaussians. Comparisons with NaN are false, so non-finite ones are not selected."""
    means, quaternions, scales, opacities = gaussians
    footprint = _footprint(means, rotations(quaternions), scales, view, options.eps2d)
    alphas = opacities * footprint.area / footprint.det.sqrt() if options.antialiased else opacities
    # Half the box around the ellipse at which alpha equals the threshold.
    extent = (2 * (alphas / THRESHOLD).log()).clamp_min(0).sqrt()[:, None] * footprint.variances.sqrt()
    size = constant((view.width, view.height), footprint.means2d)
    touching = (footprint.means2d + extent >= 0.5) & (footprint.means2d - extent <= size - 0.5)
    in_front = (footprint.camera[:, 2] > view.near) & (footprint.det > 0) & (footprint.det < _LARGEST)
    return in_front & (alphas >= THRESHOLD) & touching.all(-1)


def _thinnest_axes(
    means: Float[Tensor, "n 3"], axes: Float[Tensor, "n 3 3"], scales: Float[Tensor, "n 3"], view: View
) -> Float[Tensor, "n 3"]:
    """Return the axis of the smallest scale, in camera axes and toward the camera."""
    column = scales.argmin(-1)[:, None, None].expand(-1, 3, 1)
    normals = axes.gather(2, column)[:, :, 0]
    # The sign of an axis is arbitrary: orient it toward the camera.
    away = (normals * (means - view.position.to(means))).sum(-1, keepdim=True) > 0
    return torch.where(away, -normals, normals) @ view.rotation.to(means).T


def _slopes(
    means: Float[Tensor, "n 3"],
    axes: Float[Tensor, "n 3 3"],
    scales: Float[Tensor, "n 3"],
    z: Float[Tensor, " n"],
    view: View,
) -> Float[Tensor, "n 2"]:
    """Return the change per pixel of the depth at which a Gaussian has its maximum on the ray (RaDe-GS, Zhang 2024).

    On the ray t d, the maximum is at t = d^T A mu / d^T A d, with A the inverse covariance in camera axes. Its
    derivative with respect to d at d = mu / z is -z^2 A mu / (mu^T A mu). The scale of A cancels, so the thinnest axis
    gets 1.
    """
    clamped = scales.clamp_min(_THINNEST)
    # Relative to the thinnest axis nothing overflows, and the scale of A cancels below.
    weights = (clamped.detach().amin(-1, keepdim=True) / clamped).square()
    offset = means - view.position.to(means)
    local_offset = (offset[:, None, :] @ axes)[:, 0]
    precision_times_mean = (axes @ (weights * local_offset)[:, :, None])[:, :, 0] @ view.rotation.to(means).T
    mahalanobis = (weights * local_offset.square()).sum(-1).clamp_min(1e-20)
    focal = constant((view.fx, view.fy), precision_times_mean)
    return -(z.square() / mahalanobis)[:, None] * precision_times_mean[:, :2] / focal


def apply_3d_filter(
    scales: Float[Tensor, "n 3"], opacities: Float[Tensor, " n"], filter_3d: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
    """Apply the 3D smoothing filter of Mip-Splatting to scales and opacities (Yu 2024, eq. 9).

    Args:
        scales: standard deviations in world units.
        opacities: opacities in (0, 1).
        filter_3d: standard deviation of the filter of each Gaussian in world units.
    """
    wider = (scales.square() + filter_3d.square()[:, None]).sqrt()
    return wider, opacities * (scales / wider.clamp_min(math.ulp(0.0))).prod(-1)
