"""Factory of the four video models."""

from fieldwatch import InputError

from .dual import DualHead
from .grid import GridVideo
from .hnerv import HNeRV
from .interface import VideoGeometry, VideoModel
from .nerv import NeRV
from .options import ModelName, ModelOptions

MODELS: dict[ModelName, type[VideoModel]] = {"grid": GridVideo, "dual": DualHead, "hnerv": HNeRV, "nerv": NeRV}


def build_model(name: ModelName, geometry: VideoGeometry, options: ModelOptions) -> VideoModel:
    """Build a video model with random weights; call `torch.manual_seed` before for reproducible weights.

    Args:
        name: "grid" (feature grids, the default choice), "dual" (patch HNeRV), "hnerv" or "nerv" (baselines).
        geometry: size of the video and of its patch grid.
        options: architecture options.

    Raises:
        InputError: the name is unknown, or the architecture cannot render this geometry.
    """
    # For configs that are read from files, where the type is not checked.
    if name not in MODELS:
        raise InputError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    return MODELS[name](geometry, options)
