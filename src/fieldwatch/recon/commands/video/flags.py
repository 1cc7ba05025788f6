"""Flags of the commands about videos; importing them needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class InferVideoFlags:
    """Render frames, patches, times between frames or the whole clip; search for patches by text or picture.

    Example: fieldwatch infer video runs/bunny --frames 0 5 10 --mp4

    Example: fieldwatch infer video bunny.fwv --time 3.5 --image rabbit.png

    SOURCE is a run folder, or a file that `fieldwatch export` wrote: the file alone is enough.
    """

    source: tyro.conf.Positional[Path]
    """Run folder or bitstream file."""
    frames: tuple[int, ...] = ()
    """Frames to render, counted from 0."""
    time: tuple[float, ...] = ()
    """Times to render, in frames: 3.5 lies between frames 3 and 4."""
    patch: tuple[int, int, int] | None = None
    """FRAME ROW COLUMN of one patch to render, counted from 0."""
    mp4: bool = False
    """Render the whole clip as a video file."""
    fps: float = 24.0
    """Frames per second of the video file."""
    text: str | None = None
    """Search for patches that show this (the run's targets must come from CLIP)."""
    image: Path | None = None
    """Search for patches that look like this picture."""
    top_k: int = 10
    """Number of patches that a search lists."""
    teacher: str | None = None
    """Encoder of the search: a folder of CLIP weights; by default the run's setting, or auto."""
    checkpoint: str = "best"
    """Checkpoint of a run: best (by held-out PSNR), last, or a step."""
    out: Path | None = None
    """Folder for the files; by default RUN/products/infer-<step>, or a folder next to the bitstream."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to render."""
    json: bool = False
    """Print the files and the result of the search as JSON, and nothing else on standard output."""
