"""Neural video: a clip as a network that draws its patches and knows what they show."""

from typing import TYPE_CHECKING

from fieldwatch.pipeline import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.video.algorithm import total_steps, train_video
    from fieldwatch.recon.pipelines.video.config import VideoConfig
    from fieldwatch.recon.pipelines.video.evaluation import Evaluation, evaluate
    from fieldwatch.recon.pipelines.video.lookup import Found, encode_image, encode_text, search_clip, write_sheet
    from fieldwatch.recon.pipelines.video.playback import Playback, save_picture
    from fieldwatch.recon.pipelines.video.presets import PRESETS
    from fieldwatch.recon.pipelines.video.products import (
        Evaluated,
        Exported,
        drawings_of,
        export_bitstream,
        write_evaluation,
    )
    from fieldwatch.recon.pipelines.video.rules import VIDEO_RULES
    from fieldwatch.recon.pipelines.video.scene import Scene
    from fieldwatch.recon.pipelines.video.start import prepare_scene
    from fieldwatch.recon.pipelines.video.stored import StoredRun, check_teacher, open_run, stored_config
    from fieldwatch.recon.pipelines.video.tags import VIDEO_METRICS

__all__ = [
    "PRESETS",
    "VIDEO_METRICS",
    "VIDEO_RULES",
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

__getattr__ = lazy_names(
    __name__,
    {
        "algorithm": ("total_steps", "train_video"),
        "config": ("VideoConfig",),
        "evaluation": ("Evaluation", "evaluate"),
        "lookup": ("Found", "encode_image", "encode_text", "search_clip", "write_sheet"),
        "playback": ("Playback", "save_picture"),
        "presets": ("PRESETS",),
        "products": ("Evaluated", "Exported", "drawings_of", "export_bitstream", "write_evaluation"),
        "rules": ("VIDEO_RULES",),
        "scene": ("Scene",),
        "start": ("prepare_scene",),
        "stored": ("StoredRun", "check_teacher", "open_run", "stored_config"),
        "tags": ("VIDEO_METRICS",),
    },
)
