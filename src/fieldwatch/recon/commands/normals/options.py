"""Flags that the normals pipeline adds to shared commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Flags of ``fieldwatch train normals`` that are not settings."""

    conf: Path | None = None
    """Settings file of PMNI (HOCON). Every key is used, known to have no effect, or refused: see docs/migrate.md."""
    obj_name: str | None = None
    """Object that replaces CASE_NAME in the file."""


@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """Flags of ``fieldwatch export`` for meshes."""

    resolution: int | None = None
    """Normals: nodes of the mesh along a side of its box, at most 2048; by default as in training."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Flags of ``fieldwatch compare --checkpoints``."""

    resolution: int | None = None
    """Normals, with --checkpoints: nodes of the meshes along a side of their box; by default as in training."""


@dataclass(frozen=True, kw_only=True)
class NormalOptions:
    """Flags of ``fieldwatch doctor`` for normal maps."""

    picture: Path | None = None
    """Normals: write a contact sheet: normals, outline of the mask (white) and of the visual hull (red)."""
    axes: str | None = None
    """Normals: axes of the files: opengl, opencv, directx, or the axis of each channel (x,-y,-z); else found."""
    space: Literal["camera", "world"] | None = None
    """Normals: whether they are in camera or world axes; else it is found."""
    channels: Literal["rgb", "bgr"] | None = None
    """Normals: order of the channels; else it is found."""
    pixel_center: Literal["half", "whole"] | None = None
    """Normals: center of the first pixel in the intrinsics, (0.5, 0.5) or (0, 0); else it is found."""
    noise: float | None = None
    """Normals: their noise in degrees about each axis; else it is estimated."""
    normals: str | None = None
    """Normals: name of the folder of normals, if there are several."""
    masks: str | None = None
    """Normals: name of the folder of masks; normals (pixels with a normal) or none."""
    exclude: tuple[str, ...] = ()
    """Normals: views to leave out, by number or name."""
    fill_holes: bool = False
    """Normals: fill holes of the masks that have normals."""
