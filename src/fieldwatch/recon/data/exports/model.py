"""Cameras of an export, before their photos are read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import Lens


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedCamera:
    """One posed photo of an export.

    Attributes:
        name: name of the photo, with or without its extension.
        lens: function of the photo's (width, height) in pixels that returns its lens; some programs state intrinsics
            relative to the size.
        world_from_camera: pose in OpenCV axes, float64.
    """

    name: str
    lens: Callable[[tuple[int, int]], Lens]
    world_from_camera: Float[Tensor, "4 4"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CameraExport:
    """An export of cameras.

    Attributes:
        program: name of the program that wrote it.
        file: file or folder that holds the cameras.
        cameras: posed photos.
        photos: folder that is searched for the photos.
        points: point cloud in the coordinates of the poses; None if there is none.
        notes: human-readable notes about what was left out.
    """

    program: str
    file: Path
    cameras: tuple[ExportedCamera, ...]
    photos: Path
    points: Path | None = None
    notes: tuple[str, ...] = ()
