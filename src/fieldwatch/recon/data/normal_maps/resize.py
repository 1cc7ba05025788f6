"""Normal maps with fewer pixels."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.model import NormalView

_MIN_SHARE = 0.5


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
    normal_share = _area_average(known, size)
    summed = torch.stack([_area_average(depth_share * known, size) for depth_share in view.normals.unbind(-1)], -1)
    length = summed.norm(dim=-1, keepdim=True)
    # Opposing normals cancel in the mean; such a pixel has none.
    has_normal = (normal_share >= _MIN_SHARE) & (length[..., 0] > _MIN_SHARE * normal_share)
    normals = torch.where(has_normal[..., None], summed / length.clamp_min(torch.finfo(length.dtype).tiny), 0)
    depth = None
    if view.depth is not None:
        has_depth = (view.depth > 0).float()
        depth_share = _area_average(has_depth, size)
        depth = torch.where(
            depth_share >= _MIN_SHARE, _area_average(view.depth, size) / depth_share.clamp_min(_MIN_SHARE), 0
        )
    return replace(view, camera=camera, normals=normals, mask=_area_average(mask, size) >= _MIN_SHARE, depth=depth)


def _area_average(values: Float[Tensor, "h w"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    return functional.interpolate(values[None, None], size=size, mode="area")[0, 0]
