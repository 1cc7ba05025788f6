"""Neural video models with two heads: RGB, and a CLIP embedding per patch."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.video.models.build import MODELS, build_model
    from fieldwatch.recon.pipelines.video.models.interface import Prediction, Query, Unit, VideoGeometry, VideoModel
    from fieldwatch.recon.pipelines.video.models.options import ModelName, ModelOptions

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

__getattr__, __dir__ = lazy_names(__name__)
