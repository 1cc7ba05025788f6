"""Gaussians onto the image, in plain torch: EWA splatting (Zwicker 2001) as used by 3DGS (Kerbl 2023)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.render.splats.stages import THRESHOLD, GaussianTensors, ProjectedGaussians, RasterOptions
from fieldwatch.recon.render.splats.view import View

_LARGEST = 1e30  # a determinant above is no Gaussian one can draw
_THINNEST = 1e-8  # metres; scales below count as this for the slope of depth


class _Footprint(NamedTuple):
    """Gaussians on the image: covariance, its determinant, and the determinant before the low-pass dilation."""

    camera: Float[Tensor, "n 3"]
    means2d: Float[Tensor, "n 2"]
    variances: Float[Tensor, "n 2"]
    covariance: Float[Tensor, " n"]
    det: Float[Tensor, " n"]
    area: Float[Tensor, " n"]  # square root of the determinant before the low-pass dilation


def rotations(quaternions: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3 3"]:
    """Rotation matrices of quaternions (w, x, y, z) of any length."""
    w, x, y, z = functional.normalize(quaternions, dim=-1).unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def project(gaussians: GaussianTensors, view: View, options: RasterOptions) -> ProjectedGaussians:
    """Project the Gaussians that touch the image.

    Culled are Gaussians before the near plane, those whose alpha nowhere reaches 1/255 on a pixel of the image (by the
    box around the ellipse), and those that are not finite.
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
    """Covariance M M^T + eps2d I with M = J W R S; its determinant by Cauchy-Binet, all terms of which are positive."""
    world = view.camera_from_world.to(means)
    camera = means @ world[:3, :3].T + world[:3, 3]
    z = camera[:, 2:]
    ratios = camera[:, :2] / z
    left, right, top, bottom = view.bounds
    low = ratios.new_tensor([left, top])
    high = ratios.new_tensor([right, bottom])
    # Only the Jacobian is taken at the clamped ratio: the mean itself projects to where it is.
    clamped = torch.minimum(torch.maximum(ratios, low), high)
    focal = ratios.new_tensor([view.fx, view.fy])
    centre = ratios.new_tensor([view.cx, view.cy])
    # Rows of J W: what one metre along each world axis does to the pixel's x and y.
    jacobian = (focal / z)[:, :, None] * (world[:2, :3] - clamped[:, :, None] * world[2, :3])
    half_axes = (jacobian @ axes) * scales[:, None, :]
    # Cauchy-Binet: det(M M^T) = |m1 x m2|^2, without the cancellation of xx yy - xy^2 for needles.
    squares = half_axes.square().sum(-1)
    area = torch.linalg.vector_norm(torch.linalg.cross(half_axes[:, 0], half_axes[:, 1]), dim=-1)
    return _Footprint(
        camera=camera,
        means2d=focal * ratios + centre,
        variances=squares + eps2d,
        covariance=(half_axes[:, 0] * half_axes[:, 1]).sum(-1),
        det=area.square() + eps2d * squares.sum(-1) + eps2d * eps2d,
        area=area,
    )


def _visible(gaussians: GaussianTensors, view: View, options: RasterOptions) -> Bool[Tensor, " n"]:
    """Comparisons with NaN are false: what is not finite is not visible."""
    means, quaternions, scales, opacities = gaussians
    footprint = _footprint(means, rotations(quaternions), scales, view, options.eps2d)
    alphas = opacities * footprint.area / footprint.det.sqrt() if options.antialiased else opacities
    # The ellipse at which alpha falls to the threshold, and half the box around it.
    extent = (2 * (alphas / THRESHOLD).log()).clamp_min(0).sqrt()[:, None] * footprint.variances.sqrt()
    size = footprint.means2d.new_tensor([view.width, view.height])
    touching = (footprint.means2d + extent >= 0.5) & (footprint.means2d - extent <= size - 0.5)
    in_front = (footprint.camera[:, 2] > view.near) & (footprint.det > 0) & (footprint.det < _LARGEST)
    return in_front & (alphas >= THRESHOLD) & touching.all(-1)


def _thinnest_axes(
    means: Float[Tensor, "n 3"], axes: Float[Tensor, "n 3 3"], scales: Float[Tensor, "n 3"], view: View
) -> Float[Tensor, "n 3"]:
    """Axis of the least scale, in camera axes, towards the camera."""
    column = scales.argmin(-1)[:, None, None].expand(-1, 3, 1)
    normals = axes.gather(2, column)[:, :, 0]
    # A normal has no sign of its own: it is turned towards the camera.
    away = (normals * (means - view.position.to(means))).sum(-1, keepdim=True) > 0
    return torch.where(away, -normals, normals) @ view.rotation.to(means).T


def _slopes(
    means: Float[Tensor, "n 3"],
    axes: Float[Tensor, "n 3 3"],
    scales: Float[Tensor, "n 3"],
    z: Float[Tensor, " n"],
    view: View,
) -> Float[Tensor, "n 2"]:
    """Change of depth per pixel of the point on the ray where the Gaussian is largest (RaDe-GS, Zhang 2024).

    Along the ray t d that point is t = d^T A mu / d^T A d with A the inverse covariance, all in camera axes; at
    d = mu / z its derivative by d is -z^2 A mu / (mu^T A mu). A may be scaled at will, so the thinnest axis gets 1.
    """
    clamped = scales.clamp_min(_THINNEST)
    # The scale of A cancels in A mu / (mu^T A mu): relative to the thinnest axis nothing overflows.
    weights = (clamped.detach().amin(-1, keepdim=True) / clamped).square()
    offset = means - view.position.to(means)
    local_offset = (offset[:, None, :] @ axes)[:, 0]
    precision_times_mean = (axes @ (weights * local_offset)[:, :, None])[:, :, 0] @ view.rotation.to(means).T
    mahalanobis = (weights * local_offset.square()).sum(-1).clamp_min(1e-20)
    focal = precision_times_mean.new_tensor([view.fx, view.fy])
    return -(z.square() / mahalanobis)[:, None] * precision_times_mean[:, :2] / focal


def apply_3d_filter(
    scales: Float[Tensor, "n 3"], opacities: Float[Tensor, " n"], filter_3d: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
    """Scales and opacities under the 3D smoothing filter of Mip-Splatting (Yu 2024, eq. 9).

    Args:
        scales: metres.
        opacities: in (0, 1).
        filter_3d: standard deviation of the filter per Gaussian, metres.
    """
    wider = (scales.square() + filter_3d.square()[:, None]).sqrt()
    return wider, opacities * (scales / wider.clamp_min(math.ulp(0.0))).prod(-1)
