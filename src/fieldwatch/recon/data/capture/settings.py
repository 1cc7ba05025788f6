"""Settings of a capture: how frames are chosen, and how their cameras are found."""

from dataclasses import dataclass
from typing import Literal

Matching = Literal["auto", "sequential", "exhaustive", "similar"]
"""Which pairs of photos are matched, see `pairs_to_match`."""
Mapper = Literal["auto", "global", "incremental"]
"""Algorithm that finds poses and points: all at once, or one photo after the other; auto tries them in this order."""
Cameras = Literal["auto", "one", "each"]
"""Photos that share intrinsics: those of one EXIF camera and size, all of one size, or none."""


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """Settings of a capture.

    Attributes:
        frames: number of frames to choose from a film.
        start: first second of the film to use.
        end: last second of the film to use; None for its end.
        feature_size: longer side in pixels at which features are detected; larger photos are scaled down for this.
        features: maximum number of features per photo.
        matching: pairs of photos to match.
        cameras: photos that share intrinsics.
        mapper: algorithm that finds poses and points.
        masks: whether to make a foreground mask for every photo with a camera.
        threads: number of threads; 0 for all cores.
        seed: seed of all random choices.
    """

    frames: int = 150
    start: float = 0.0
    end: float | None = None
    feature_size: int = 1600
    features: int = 4096
    matching: Matching = "auto"
    cameras: Cameras = "auto"
    mapper: Mapper = "auto"
    masks: bool = False
    threads: int = 0
    seed: int = 0
