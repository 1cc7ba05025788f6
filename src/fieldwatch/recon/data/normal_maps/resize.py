"""Normal maps with fewer pixels."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.model import NormalView

_HALF = 0.5


def scaled_normal_view(view: NormalView, factor: float) -> NormalView:
    """Return a view with `factor` times as many pixels each way, by area; the camera goes with it.

    Normals are averaged over those pixels that have one, and brought to length 1; depth likewise over those that have
    one. A pixel is in the mask if half of it is.

    Args:
        view: to be made smaller.
        factor: above 0, at most 1.

    Raises:
        NormalMapError: the factor is out of its range.
    """
    if not 0 < factor <= 1:
        msg = f"normal maps can be made smaller, not by {factor}: choose a factor above 0, at most 1"
        raise NormalMapError(msg)
    camera = view.camera.scaled(factor)
    size = (camera.height, camera.width)
    known = view.known.float()
    mask = view.mask.float()
    share = _averaged(known, size)
    summed = torch.stack([_averaged(part * known, size) for part in view.normals.unbind(-1)], -1)
    length = summed.norm(dim=-1, keepdim=True)
    there = (share >= _HALF) & (length[..., 0] > _HALF * share)
    normals = torch.where(there[..., None], summed / length.clamp_min(torch.finfo(length.dtype).tiny), 0)
    depth = None
    if view.depth is not None:
        has = (view.depth > 0).float()
        part = _averaged(has, size)
        depth = torch.where(part >= _HALF, _averaged(view.depth, size) / part.clamp_min(_HALF), 0)
    return replace(view, camera=camera, normals=normals, mask=_averaged(mask, size) >= _HALF, depth=depth)


def _averaged(values: Float[Tensor, "h w"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    return functional.interpolate(values[None, None], size=size, mode="area")[0, 0]
