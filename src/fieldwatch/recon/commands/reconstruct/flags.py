"""Flags of ``fieldwatch reconstruct``; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

Goal = Literal["splats", "mesh", "normals"]


@dataclass(frozen=True, kw_only=True)
class ReconstructFlags:
    """Reconstruct a scene from a film, photos (with or without cameras) or normal maps: Gaussians and a textured mesh.

    Example: fieldwatch reconstruct garden.mp4 -o garden/

    Example: fieldwatch reconstruct photos/ -o statue/ --for splats -- --longer-side 800 --growth-cap 100000

    Example: fieldwatch reconstruct turntable/ -o vase/ --masks

    Every stage is a command of its own, which is printed, and leaves a folder in -o: scene/ (cameras), run/ (the
    training, with its record), mesh/, textured/; index.html shows all results. After Ctrl-C or a crash, the same
    command continues where it stopped; if no masks can be made, it continues without --masks. Without a GPU, the
    training has the settings of --preset cpu (256 pixels, 3,000 steps). Flags after -- go to the training: see
    `fieldwatch train splats --help`.

    Exit codes: 0 finished; 1 finished, but the training has an error among its findings; 2 bad input; otherwise that
    of the stage that failed; 128 + the signal if one stopped it.
    """

    data: tyro.conf.Positional[Path]
    """Film, folder of photos, folder of photos with cameras (COLMAP or transforms.json), or folder of normal maps."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """Folder for all results; created if missing."""
    goal: Annotated[Goal | None, tyro.conf.arg(name="for")] = None
    """What is wanted: splats (Gaussians only), mesh (Gaussians and a textured mesh), or normals (a mesh from normal
    maps). By default mesh, and normals for a folder of normal maps."""
    frames: int | None = None
    """Number of frames to take from a film; by default what `fieldwatch data photos` chooses."""
    masks: bool = False
    """Also make foreground masks of the object that the cameras go around, for photos without cameras: training, mesh
    and texture then leave out everything else. See `fieldwatch data photos --masks`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    seed: int = 0
    """Seed of all random numbers."""
    json: bool = False
    """Print the outcome as JSON, and nothing else on standard output."""
