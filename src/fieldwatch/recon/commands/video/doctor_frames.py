"""Checks of clips for ``fieldwatch doctor``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fieldwatch.cli.kit import DataFinding, DataReport
from fieldwatch.recon.data import Clip, read_clip

# Smallest number of frames that leaves some to hold out.
_FEW = 8
# Standard deviation (of 255) below which a frame counts as one color.
_FLAT = 1.0


def frames_report(path: Path, _options: None) -> DataReport:
    """Read and check a folder of frames or a video file; every frame is decoded once.

    Raises:
        ClipError: there are no frames, or one cannot be read.
    """
    clip = read_clip(path)
    try:
        findings = tuple(clip_findings(clip))
    finally:
        clip.close()
    facts: dict[str, Any] = {
        "frames": len(clip),
        "size (width x height)": f"{clip.width}x{clip.height}",
        "first": clip.names[0],
        "last": clip.names[-1],
        "bytes of all frames, decoded": 3 * len(clip) * clip.height * clip.width,
    }
    kind = "a video file" if path.is_file() else "a folder of frames"
    command = f"fieldwatch train video --data {path}"
    return DataReport(path=path, kind=kind, facts=facts, notes=clip.notes, findings=findings, command=command)


def clip_findings(clip: Clip) -> Iterator[DataFinding]:
    """Check for repeated frames, frames of one color, and very short clips."""
    # One pass: decoding is the slow part.
    repeated: list[str] = []
    flat: list[str] = []
    previous = None
    for name, frame in zip(clip.names, clip, strict=True):
        if previous is not None and torch.equal(frame, previous):
            repeated.append(name)
        # Every seventh pixel is enough to see that a frame has one color.
        if float(frame.flatten(1)[:, ::7].float().std(1).max()) < _FLAT:
            flat.append(name)
        previous = frame
    if repeated:
        yield DataFinding(
            name="repeated",
            severity="warning" if len(repeated) > 0.05 * len(clip) else "note",
            message=f"{len(repeated)} of {len(clip)} frames repeat the previous frame; the first is {repeated[0]}.",
            remedy="A video with a raised frame rate repeats frames: use --stride, or export it at its original rate.",
        )
    if flat:
        yield DataFinding(
            name="flat",
            severity="warning",
            message=f"{len(flat)} of {len(clip)} frames have a single color; the first is {flat[0]}.",
            remedy="Skip black frames at the beginning and end with --start and --count.",
        )
    if len(clip) < _FEW:
        yield DataFinding(
            name="frames",
            severity="warning",
            message=f"the clip has {len(clip)} frames: too few to hold some out.",
            remedy="Use a longer clip, or hold out none (--data-split 1_1_1).",
        )
