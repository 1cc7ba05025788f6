"""Neural video models with two heads: colours, and a CLIP embedding per patch."""

from .build import MODELS, build_model
from .interface import Geometry, ModelName, Prediction, Query, Unit, VideoModel
from .options import ModelOptions

__all__ = [
    "MODELS",
    "Geometry",
    "ModelName",
    "ModelOptions",
    "Prediction",
    "Query",
    "Unit",
    "VideoModel",
    "build_model",
]
