"""Blending on CUDA by gsplat (Apache-2.0), through its public functions; projection and harmonics are plain torch."""

from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.render.splats.projection import project
from fieldwatch.recon.render.splats.spherical_harmonics import sh_colors
from fieldwatch.recon.render.splats.stages import (
    THRESHOLD,
    BlendedImage,
    ProjectedGaussians,
    RasterBackend,
    RasterOptions,
)
from fieldwatch.recon.render.splats.view import View

_TILE = 16


def _gsplat() -> ModuleType:
    try:
        import gsplat  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  optional: it needs CUDA
    except ImportError as error:
        raise InputError(
            "splats on CUDA are drawn by gsplat, which is not installed: pip install 'fieldwatch[gpu]', or move the "
            "Gaussians to the CPU, or pass backend='reference'"
        ) from error
    return gsplat


def _conics(whitening: Float[Tensor, "visible 3"]) -> Float[Tensor, "visible 3"]:
    """Inverse covariances (xx, xy, yy)."""
    l1, l2, l3 = whitening.unbind(-1)
    return torch.stack([l1 * l1, l1 * l2, l2 * l2 + l3 * l3], -1)


def _reaches(projected: ProjectedGaussians) -> Tensor:
    """Half the boxes on the image outside which alpha is below the threshold, in whole pixels."""
    l1, l2, l3 = projected.whitening.detach().unbind(-1)
    reach = (2 * (projected.alphas.detach() / THRESHOLD).log()).clamp_min(0).sqrt()
    half = torch.stack([reach * torch.hypot(l2, l3) / (l1 * l3), reach / l3], -1)
    return half.clamp_max(2.0**20).ceil().to(torch.int32) + 1


def blend(
    packed: Float[Tensor, "visible channels"], projected: ProjectedGaussians, view: View, options: RasterOptions
) -> BlendedImage:
    """Blend packed features from front to back. gsplat's alpha may reach 0.999, where the CPU's stops at 0.99.

    Raises:
        ImportError: gsplat is not installed.
        ValueError: the median depth was asked for.
    """
    if options.median:
        raise ValueError("median=True is not there with gsplat: use the expected depth, or backend='reference'")
    gsplat: Any = _gsplat()
    # Ceiling division: a tile may reach beyond the image.
    columns = -(-view.width // _TILE)
    rows = -(-view.height // _TILE)
    means2d = projected.means2d[None]
    _, keys, flat = gsplat.isect_tiles(
        means2d.detach(), _reaches(projected)[None], projected.depths.detach()[None], _TILE, columns, rows
    )
    offsets = gsplat.isect_offset_encode(keys, 1, columns, rows)
    features, alpha = gsplat.rasterize_to_pixels(
        means2d,
        _conics(projected.whitening)[None],
        packed[None],
        projected.alphas[None],
        *(view.width, view.height, _TILE, offsets, flat),
        absgrad=options.absgrad,
    )
    absgrad = torch.zeros_like(projected.means2d) if options.absgrad else None
    if absgrad is not None and projected.means2d.requires_grad:
        # gsplat leaves them on the tensor it was given, before the gradient reaches the one behind it.
        def keep(_: Tensor) -> None:
            absgrad.copy_(means2d.absgrad[0])  # pyright: ignore[reportAttributeAccessIssue]  set by gsplat

        projected.means2d.register_hook(keep)
    return BlendedImage(features[0], alpha[0, :, :, 0], None, absgrad)


GSPLAT = RasterBackend(project=project, colors=sh_colors, blend=blend)
"""gsplat's rasteriser behind the torch projection; CUDA."""
