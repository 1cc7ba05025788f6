"""Downscale normal maps."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data.normal_maps.error import NormalMapError
from fieldwatch.recon.data.normal_maps.model import NormalView

_MIN_SHARE = 0.5  # fraction of the area of a new pixel that must have a value


def scaled_normal_view(view: NormalView, factor: float) -> NormalView:
    """Downscale the maps and the camera of a view by area averaging.

    Normals are averaged over the pixels that have one and normalized; depth is averaged over the pixels that have one.
    A pixel is in the mask if at least half of it is.

    Args:
        view: view to downscale.
        factor: factor for width and height, greater than 0 and at most 1.

    Raises:
        NormalMapError: if the factor is out of range.
    """
    if not 0 < factor <= 1:
        msg = f"the factor for downscaling normal maps must be greater than 0 and at most 1, got {factor}"
        raise NormalMapError(msg)
    camera = view.camera.scaled(factor)
    size = (camera.height, camera.width)
    known = view.known.float()
    mask = view.mask.float()
    normal_share = _area_average(known, size)
    summed = torch.stack([_area_average(depth_share * known, size) for depth_share in view.normals.unbind(-1)], -1)
    length = summed.norm(dim=-1, keepdim=True)
    # Where opposing normals cancel in the mean, the pixel has no normal.
    has_normal = (normal_share >= _MIN_SHARE) & (length[..., 0] > _MIN_SHARE * normal_share)
    normals = torch.where(has_normal[..., None], summed / length.clamp_min(torch.finfo(length.dtype).tiny), 0)
    depth = None
    if view.depth is not None:
        # Unknown depth is 0, so dividing by the known fraction gives the mean of the known values.
        has_depth = (view.depth > 0).float()
        depth_share = _area_average(has_depth, size)
        depth = torch.where(
            depth_share >= _MIN_SHARE, _area_average(view.depth, size) / depth_share.clamp_min(_MIN_SHARE), 0
        )
    return replace(view, camera=camera, normals=normals, mask=_area_average(mask, size) >= _MIN_SHARE, depth=depth)


def _area_average(values: Float[Tensor, "h w"], size: tuple[int, int]) -> Float[Tensor, "height width"]:
    return functional.interpolate(values[None, None], size=size, mode="area")[0, 0]
