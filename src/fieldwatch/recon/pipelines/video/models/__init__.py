"""Neural video models with two heads: RGB, and a CLIP embedding per patch."""

from .build import MODELS, build_model
from .interface import ModelName, Prediction, Query, Unit, VideoGeometry, VideoModel
from .options import ModelOptions

__all__ = [
    "MODELS",
    "ModelName",
    "ModelOptions",
    "Prediction",
    "Query",
    "Unit",
    "VideoGeometry",
    "VideoModel",
    "build_model",
]
