"""Flags of ``fieldwatch view``; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class SceneFlags:
    """Show Gaussians, a mesh or a trained run: in a window of the browser, or on a page that opens offline.

    Example: fieldwatch view runs/garden

    Example: fieldwatch view scan.spz --page scan.html

    Read are runs of splats, refined and normals; .ply, .spz, .sog, .splat and .ksplat; folders of 3DGS; and meshes
    (.ply, .obj, .glb). The window needs the extra viewer: pip install 'fieldwatch[viewer]'. It listens on this machine
    only; from another one, use an SSH tunnel: ssh -L 8080:localhost:8080 MACHINE.
    """

    scene: tyro.conf.Positional[Path]
    """Run folder, or a file or folder of Gaussians, or a mesh."""
    page: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Write this page (.html) with the scene in it, and open no window."""
    most: int = 500_000
    """Most Gaussians of a page; those with the largest area times opacity are kept."""
    up: tuple[float, float, float] | None = None
    """X Y Z of the upward direction; by default that of the cameras. Without cameras: 0 -1 0 for Gaussians, 0 1 0 for
    .glb, 0 0 1 for other meshes."""
    checkpoint: str = "last"
    """Checkpoint of a run: best, last, or a step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where a run is opened."""
    host: str = "127.0.0.1"
    """Address of the window; only this machine's own are accepted."""
    port: int = 8080
    """Port of the window; 0 for any free one."""
    json: bool = False
    """Print the file and the facts as JSON, and nothing else on standard output."""
