"""Data classes of a capture: the photos that were chosen, those left out, and the cameras that took them."""

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]
"""Called with the number of items done and their total."""


@dataclass(frozen=True, kw_only=True)
class ChosenPhoto:
    """A photo in `images/`.

    Attributes:
        name: file name in `images/`.
        source: its original: a file relative to the input folder, or a time in the film.
        sharpness: gradient energy.
        camera: index of its camera in `Chosen.cameras`.
        taken: seconds by which the photos are put in order; None if unknown.
    """

    name: str
    source: str
    sharpness: float
    camera: int
    taken: float | None = None


@dataclass(frozen=True, kw_only=True)
class SharedCamera:
    """A camera whose intrinsics one or more photos share.

    Attributes:
        width: width of its photos in pixels.
        height: height of its photos in pixels.
        focal: focal length in pixels from EXIF; None if it is unknown.
        about: name of the camera, for people.
    """

    width: int
    height: int
    focal: float | None
    about: str


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A photo that is not used.

    Attributes:
        source: its original, as in `ChosenPhoto`.
        reason: why, as the end of a sentence.
    """

    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The photos of a capture, in the order in which they were taken as far as it is known.

    Attributes:
        kind: "film" or "photos".
        photos: photos in `images/`.
        cameras: cameras of the photos.
        left_out: photos that were not written.
    """

    kind: str
    photos: tuple[ChosenPhoto, ...]
    cameras: tuple[SharedCamera, ...]
    left_out: tuple[LeftOut, ...] = ()
