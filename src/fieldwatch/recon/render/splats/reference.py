"""Rasterization in plain torch, tile by tile: the reference of the kernels, and the fallback without them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch.recon.render.splats.projection import project
from fieldwatch.recon.render.splats.spherical_harmonics import sh_colors
from fieldwatch.recon.render.splats.stages import (
    CEILING,
    OPAQUE,
    THRESHOLD,
    BlendedImage,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
)
from fieldwatch.recon.render.splats.view import View

_TILE = 16


def _alphas(
    rows: Int[Tensor, " some"], projected: ProjectedGaussians, pixels: Float[Tensor, "pixels 2"]
) -> Float[Tensor, "pixels some"]:
    dx, dy = (pixels[:, None, :] - projected.means2d[rows]).unbind(-1)
    l1, l2, l3 = projected.whitening[rows].unbind(-1)
    falloff = torch.exp(-((l1 * dx + l2 * dy).square() + (l3 * dy).square()) / 2)
    alphas = projected.alphas[rows] * falloff
    return torch.where(alphas >= THRESHOLD, alphas.clamp_max(CEILING), 0)


def _blend_pixels(
    rows: Int[Tensor, " some"],
    packed: Float[Tensor, "visible channels"],
    projected: ProjectedGaussians,
    pixels: Float[Tensor, "pixels 2"],
) -> tuple[Float[Tensor, "pixels channels"], Float[Tensor, " pixels"], Int[Tensor, " pixels"]]:
    """Blend Gaussians, sorted front to back, at some pixels: w_i = alpha_i prod_{j < i} (1 - alpha_j)."""
    alphas = _alphas(rows, projected, pixels)
    after = torch.cumprod(1 - alphas, 1)
    # Transmittance in front of each Gaussian: an exclusive product.
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    weights = torch.where(before > OPAQUE, alphas * before, 0)
    # At most one Gaussian per pixel crosses 1/2; amax selects it among the -1.
    crossing = (before > 0.5) & (after <= 0.5)
    median = torch.where(crossing, rows, -1).amax(1) if len(rows) else rows.new_full((len(pixels),), -1)
    return weights @ packed[rows], weights.sum(1), median


def _pixels(left: int, top: int, view: View, like: Tensor) -> Float[Tensor, "pixels 2"]:
    across = torch.arange(left, min(left + _TILE, view.width), device=like.device)
    down = torch.arange(top, min(top + _TILE, view.height), device=like.device)
    y, x = torch.meshgrid(down, across, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1).to(like) + 0.5


def blend(
    packed: Float[Tensor, "visible channels"], projected: ProjectedGaussians, view: View, options: RasterOptions
) -> BlendedImage:
    """Blend packed features from front to back.

    Raises:
        ValueError: `options.absgrad` is set, but automatic differentiation computes only signed sums.
    """
    if options.absgrad:
        raise ValueError("absgrad=True needs the native or the gsplat backend: plain torch only has summed gradients")
    # Stable, so that Gaussians of equal depth have the same order as in the kernels.
    order = torch.argsort(projected.depths.detach(), stable=True)
    with torch.no_grad():
        low, high = image_boxes(projected)
    # Filter by rows first, then by columns: each tile then tests only the Gaussians of its strip.
    strips: list[tuple[Tensor, ...]] = []
    for top in range(0, view.height, _TILE):
        strip = order[((low[:, 1] <= top + _TILE) & (high[:, 1] >= top))[order]]
        tiles: list[tuple[Tensor, ...]] = []
        for left in range(0, view.width, _TILE):
            rows = strip[((low[:, 0] <= left + _TILE) & (high[:, 0] >= left))[strip]]
            parts = _blend_pixels(rows, packed, projected, _pixels(left, top, view, packed))
            size = (min(_TILE, view.height - top), min(_TILE, view.width - left))
            tiles.append(tuple(part.unflatten(0, size) for part in parts))
        strips.append(tuple(torch.cat(parts, 1) for parts in zip(*tiles, strict=True)))
    features, alpha, median = (torch.cat(parts) for parts in zip(*strips, strict=True))
    return BlendedImage(features, alpha, median.to(torch.int32) if options.median else None, None)


def image_boxes(projected: ProjectedGaussians) -> tuple[Float[Tensor, "visible 2"], Float[Tensor, "visible 2"]]:
    """Return image boxes outside which alpha is below the threshold, slightly widened against rounding."""
    l1, l2, l3 = projected.whitening.unbind(-1)
    # Distance in standard deviations at which alpha falls to the threshold.
    reach = (2 * (projected.alphas / THRESHOLD).log()).clamp_min(0).sqrt()
    half = torch.stack([reach * torch.hypot(l2, l3) / (l1 * l3), reach / l3], -1) * 1.001 + 0.01
    return projected.means2d - half, projected.means2d + half


REFERENCE = RasterBackend(project=project, colors=sh_colors, blend=blend)
"""Backend in plain torch, for any device and precision."""
