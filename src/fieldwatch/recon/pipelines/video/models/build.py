"""One door to the four video models."""

from fieldwatch import InputError

from .dual import DualHead
from .grid import GridVideo
from .hnerv import HNeRV
from .interface import VideoGeometry, VideoModel
from .nerv import NeRV
from .options import ModelName, ModelOptions

MODELS: dict[ModelName, type[VideoModel]] = {"grid": GridVideo, "dual": DualHead, "hnerv": HNeRV, "nerv": NeRV}


def build_model(name: ModelName, geometry: VideoGeometry, options: ModelOptions) -> VideoModel:
    """Build a video model with fresh weights; call `torch.manual_seed` first for the same weights every time.

    Args:
        name: "grid" (feature grids, the default choice), "dual" (patch HNeRV), "hnerv" or "nerv" (baselines).
        geometry: size of the video and of its patch grid.
        options: architecture knobs.

    Raises:
        InputError: the name is unknown, or no such architecture draws this geometry.
    """
    if name not in MODELS:
        raise InputError(f"model is {name!r}, choose one of {', '.join(MODELS)}")
    return MODELS[name](geometry, options)
