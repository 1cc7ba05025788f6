"""CUDA rasterization with the public functions of gsplat (Apache-2.0); projection and SH are plain torch."""

import functools
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
    GaussianTensors,
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
            "the backend 'gsplat' needs gsplat, which is not installed: pip install 'fieldwatch[gpu]', or pass "
            "backend='batched'"
        ) from error
    return gsplat


@functools.cache
def gsplat_problem() -> str | None:
    """Return why gsplat cannot rasterize on the current CUDA device; None if it can.

    The first call may compile the kernels of gsplat, which takes minutes.
    """
    device = torch.device("cuda")
    view = View(camera_from_world=torch.eye(4, device=device), fx=8.0, fy=8.0, cx=4.0, cy=4.0, width=8, height=8)
    means = torch.tensor([[0.0, 0.0, 2.0]], device=device)
    quaternions = torch.tensor([[1.0, 0.0, 0.0, 0.0]], device=device)
    gaussian = GaussianTensors(means, quaternions, torch.full_like(means, 0.1), torch.full_like(means[:, 0], 0.5))
    options = RasterOptions()
    try:
        blended = blend(torch.ones_like(means), project(gaussian, view, options), view, options)
        torch.cuda.synchronize()
    except InputError:
        return "gsplat is not installed"
    # Without a matching nvcc, gsplat imports, but its module of kernels is None (AttributeError), or its compilation
    # fails (RuntimeError, OSError); kernels for another card fail at their launch (RuntimeError).
    except (AttributeError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return f"gsplat is installed, but its CUDA kernels do not work ({reason[0]})"
    return None if bool(torch.isfinite(blended.features).all()) else "gsplat renders values that are not finite"


def _conics(whitening: Float[Tensor, "visible 3"]) -> Float[Tensor, "visible 3"]:
    """Return the inverse covariances (xx, xy, yy)."""
    l1, l2, l3 = whitening.unbind(-1)
    return torch.stack([l1 * l1, l1 * l2, l2 * l2 + l3 * l3], -1)


def _reaches(projected: ProjectedGaussians) -> Tensor:
    """Return half sizes, in whole pixels, of image boxes outside which alpha is below the threshold."""
    l1, l2, l3 = projected.whitening.detach().unbind(-1)
    # Distance in standard deviations at which alpha falls to the threshold.
    reach = (2 * (projected.alphas.detach() / THRESHOLD).log()).clamp_min(0).sqrt()
    half = torch.stack([reach * torch.hypot(l2, l3) / (l1 * l3), reach / l3], -1)
    return half.clamp_max(2.0**20).ceil().to(torch.int32) + 1


def blend(
    packed: Float[Tensor, "visible channels"], projected: ProjectedGaussians, view: View, options: RasterOptions
) -> BlendedImage:
    """Blend packed features from front to back. gsplat clamps alpha at 0.999, the CPU backends at 0.99.

    Raises:
        InputError: gsplat is not installed.
        ValueError: `options.median` is set.
    """
    if options.median:
        raise ValueError("gsplat does not support median=True: use the expected depth, or backend='batched'")
    gsplat: Any = _gsplat()
    # Rounded up: the last tiles may extend beyond the image.
    columns = -(-view.width // _TILE)
    rows = -(-view.height // _TILE)
    means2d = projected.means2d[None]
    _, keys, flat = gsplat.isect_tiles(
        means2d.detach(), _reaches(projected)[None], projected.depths.detach()[None], _TILE, columns, rows
    )
    # First intersection of each tile in the sorted list.
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
        # gsplat sets absgrad on its input tensor, before the gradient reaches the tensor behind it.
        def keep(_: Tensor) -> None:
            absgrad.copy_(means2d.absgrad[0])  # pyright: ignore[reportAttributeAccessIssue]  set by gsplat

        projected.means2d.register_hook(keep)
    return BlendedImage(features[0], alpha[0, :, :, 0], None, absgrad)


GSPLAT = RasterBackend(project=project, colors=sh_colors, blend=blend)
"""Backend with the gsplat rasterizer for CUDA, after projection in torch."""
