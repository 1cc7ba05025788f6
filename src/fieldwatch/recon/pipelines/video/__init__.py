"""Neural video: a network that represents a clip, renders its patches and predicts their semantic embeddings."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.pipelines.video.algorithm import total_steps, train_video
    from fieldwatch.recon.pipelines.video.config import VideoConfig
    from fieldwatch.recon.pipelines.video.evaluation import VideoEvaluation, evaluate
    from fieldwatch.recon.pipelines.video.lookup import (
        SearchResult,
        encode_image,
        encode_text,
        search_clip,
        write_sheet,
    )
    from fieldwatch.recon.pipelines.video.playback import Playback, save_picture
    from fieldwatch.recon.pipelines.video.presets import PRESETS
    from fieldwatch.recon.pipelines.video.products import (
        EvaluationFiles,
        ExportedBitstream,
        export_bitstream,
        frames_to_render,
        write_evaluation,
    )
    from fieldwatch.recon.pipelines.video.rules import VIDEO_RULES
    from fieldwatch.recon.pipelines.video.scene import VideoScene
    from fieldwatch.recon.pipelines.video.start import prepare_scene
    from fieldwatch.recon.pipelines.video.stored import StoredVideoRun, check_teacher, open_run, stored_config
    from fieldwatch.recon.pipelines.video.tags import VIDEO_METRICS

__all__ = [
    "PRESETS",
    "VIDEO_METRICS",
    "VIDEO_RULES",
    "EvaluationFiles",
    "ExportedBitstream",
    "Playback",
    "SearchResult",
    "StoredVideoRun",
    "VideoConfig",
    "VideoEvaluation",
    "VideoScene",
    "check_teacher",
    "encode_image",
    "encode_text",
    "evaluate",
    "export_bitstream",
    "frames_to_render",
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

__getattr__, __dir__ = lazy_names(__name__)
