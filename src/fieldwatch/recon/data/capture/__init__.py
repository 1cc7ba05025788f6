"""From a film or a folder of photos to photos with cameras."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.data.capture.error import CaptureError
    from fieldwatch.recon.data.capture.film import choose_frames
    from fieldwatch.recon.data.capture.model import Chosen, ChosenPhoto, LeftOut, SharedCamera
    from fieldwatch.recon.data.capture.pairs import describe, matching_of, pairs_to_match
    from fieldwatch.recon.data.capture.photos import PhotoHeader, collect_photos, share_cameras
    from fieldwatch.recon.data.capture.record import (
        IMAGES,
        MASKS,
        MODEL,
        RECORD,
        REPORTS,
        STAGES,
        CaptureRecord,
        read_record,
        record_for,
    )
    from fieldwatch.recon.data.capture.settings import Cameras, CaptureSettings, Mapper, Matching
    from fieldwatch.recon.data.capture.sharpness import gradient_energy, relative_sharpness, window_of
    from fieldwatch.recon.data.capture.source import CaptureSource, find_source, image_files
    from fieldwatch.recon.data.capture.stages import chosen_of, run_stages

__all__ = [
    "IMAGES",
    "MASKS",
    "MODEL",
    "RECORD",
    "REPORTS",
    "STAGES",
    "Cameras",
    "CaptureError",
    "CaptureRecord",
    "CaptureSettings",
    "CaptureSource",
    "Chosen",
    "ChosenPhoto",
    "LeftOut",
    "Mapper",
    "Matching",
    "PhotoHeader",
    "SharedCamera",
    "choose_frames",
    "chosen_of",
    "collect_photos",
    "describe",
    "find_source",
    "gradient_energy",
    "image_files",
    "matching_of",
    "pairs_to_match",
    "read_record",
    "record_for",
    "relative_sharpness",
    "run_stages",
    "share_cameras",
    "window_of",
]

__getattr__, __dir__ = lazy_names(__name__)
