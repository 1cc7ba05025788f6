"""Neural video: a clip as a network that draws its patches and knows what they show."""

from fieldwatch.pipelines.video.algorithm import Outcome, total_steps, train_video
from fieldwatch.pipelines.video.config import VideoConfig
from fieldwatch.pipelines.video.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.video.presets import PRESETS
from fieldwatch.pipelines.video.scene import Scene
from fieldwatch.pipelines.video.start import prepare_scene
from fieldwatch.pipelines.video.stored import StoredRun, open_run

__all__ = [
    "PRESETS",
    "Evaluation",
    "Outcome",
    "Scene",
    "StoredRun",
    "VideoConfig",
    "evaluate",
    "open_run",
    "prepare_scene",
    "total_steps",
    "train_video",
]
