"""Flags that the pipeline of normal maps adds to the commands that all pipelines share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Flags of ``fieldwatch train normals`` beside its settings."""

    conf: Path | None = None
    """A .conf file of PMNI (HOCON). Every key is used, known to do nothing, or refused: see docs/migrate.md."""
    obj_name: str | None = None
    """What CASE_NAME in that file stands for."""


@dataclass(frozen=True, kw_only=True)
class MeshOptions:
    """Flags of ``fieldwatch export`` for meshes."""

    resolution: int | None = None
    """Normals: cells of the mesh along a side of its box, at most 512; default: as in the training."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """Flags of ``fieldwatch compare --checkpoints``."""

    resolution: int | None = None
    """--checkpoints of normals: nodes of the meshes along a side of their box; default: as in the training."""


@dataclass(frozen=True, kw_only=True)
class NormalOptions:
    """Flags of ``fieldwatch doctor`` for normal maps."""

    picture: Path | None = None
    """Write a contact sheet of normal maps: normals, outline of the mask (white), of the visual hull (red)."""
    axes: Literal["opengl", "opencv", "auto"] | None = None
    """Of normals in the files; by the layout, if not given."""
    normals: str | None = None
    """Name of the folder of normals, where there are several."""
    exclude: tuple[str, ...] = ()
    """Views of normal maps to leave out: numbers or names."""
    fill_holes: bool = False
    """Add holes of masks to them where there are normals in the holes."""
