"""Checks of clips for ``fieldwatch doctor``."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.cli.kit import DataFinding, DataReport
from fieldwatch.recon.data import Clip, read_clip

# Smallest number of frames that leaves some to hold out.
_FEW = 8
# Standard deviation (of 255) below which a frame counts as one color.
_FLAT = 1.0
# Longer side of the thumbnails that are compared, in pixels.
_SMALL_SIDE = 64
# Neighboring frames that differ by this fraction of what any two frames differ by are in no order; from this number of
# frames on, and from this mean difference (of 255) on, which the noise of a still clip does not reach.
_NO_ORDER, _ORDERED_FRAMES, _LEAST_DIFFERENCE = 0.65, 12, 4.0


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


def clip_findings(clip: Clip, most: int | None = None) -> Iterator[DataFinding]:
    """Check for repeated frames, frames of one color, a wrong order, and very short clips.

    Args:
        clip: the frames.
        most: number of frames to look at, from the first one; None looks at all of them.
    """
    # One pass: decoding is the slow part.
    repeated: list[str] = []
    flat: list[str] = []
    small: list[Tensor] = []
    step = max(max(clip.height, clip.width) // _SMALL_SIDE, 1)
    previous = None
    for name, frame in islice(zip(clip.names, clip, strict=True), most):
        if previous is not None and torch.equal(frame, previous):
            repeated.append(name)
        # Every few pixels are enough to see that a frame has one color, and how alike two frames are.
        thumbnail = frame[:, ::step, ::step].float()
        if float(thumbnail.flatten(1).std(1).max()) < _FLAT:
            flat.append(name)
        small.append(thumbnail)
        previous = frame
    yield from _order_findings(torch.stack(small))
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


def _order_findings(frames: Float[Tensor, "n 3 height width"]) -> Iterator[DataFinding]:
    """Compare the differences of neighboring frames with those of frames that are far apart."""
    count = len(frames)
    if count < _ORDERED_FRAMES:
        return
    near = (frames[1:] - frames[:-1]).abs().mean((1, 2, 3)).median()
    # Several distances from a quarter of the clip to half of it, so that no single period decides.
    apart = range(count // 4, count // 2 + 1, max(count // 16, 1))
    far = torch.cat([(frames[gap:] - frames[:-gap]).abs().mean((1, 2, 3)) for gap in apart]).median()
    if float(far) > _LEAST_DIFFERENCE and float(near) > _NO_ORDER * float(far):
        yield DataFinding(
            name="order",
            severity="warning",
            message=(
                f"neighboring frames predict each other no better than any two frames (mean difference {near:.1f} and "
                f"{far:.1f} of 255): the clip is shuffled, or its names are in another order."
            ),
            remedy="Check the order of the frames: their names must sort in time (frame_0002 before frame_0010).",
        )
