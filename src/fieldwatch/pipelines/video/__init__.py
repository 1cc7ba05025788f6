"""Neural video: a clip as a network that draws its patches and knows what they show."""

from fieldwatch.pipelines.video.algorithm import total_steps, train_video
from fieldwatch.pipelines.video.config import VideoConfig
from fieldwatch.pipelines.video.evaluate import Evaluation, evaluate
from fieldwatch.pipelines.video.lookup import Found, encode_image, encode_text, search_clip, write_sheet
from fieldwatch.pipelines.video.playback import Playback, save_picture
from fieldwatch.pipelines.video.presets import PRESETS
from fieldwatch.pipelines.video.products import Evaluated, Exported, drawings_of, export_bitstream, write_evaluation
from fieldwatch.pipelines.video.scene import Scene
from fieldwatch.pipelines.video.start import prepare_scene
from fieldwatch.pipelines.video.stored import StoredRun, check_teacher, open_run, stored_config
from fieldwatch.pipelines.video.tags import VIDEO_METRICS

__all__ = [
    "PRESETS",
    "VIDEO_METRICS",
    "Evaluated",
    "Evaluation",
    "Exported",
    "Found",
    "Playback",
    "Scene",
    "StoredRun",
    "VideoConfig",
    "check_teacher",
    "drawings_of",
    "encode_image",
    "encode_text",
    "evaluate",
    "export_bitstream",
    "open_run",
    "prepare_scene",
    "save_picture",
    "search_clip",
    "stored_config",
    "total_steps",
    "train_video",
    "write_evaluation",
    "write_sheet",
]
