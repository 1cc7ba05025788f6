"""Interpolated images for the frames that are not trained on, made from training frames only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.pipelines.video.config import BetweenMotion
from fieldwatch.recon.pipelines.video.curved import interpolate_curved
from fieldwatch.recon.pipelines.video.motion import interpolate

NEIGHBORS = 2
"""Training frames on each side of a gap through which a curved path runs."""
FARTHEST = 4.0
"""Limit of the continuation past the first and last training frame, in distances of the two frames next to it."""


@runtime_checkable
class Frames(Protocol):
    """Frames by index, `[3, height, width]` in [0, 1]: a tensor, or anything that decodes frames on demand."""

    def __len__(self) -> int:
        """Return the number of frames."""
        ...

    def __getitem__(self, index: int, /) -> Float[Tensor, "3 height width"]:
        """Return the frame at an index."""
        ...


@dataclass(frozen=True, kw_only=True)
class InterpolatedTargets:
    """Interpolated images for the frames that are not trained on.

    Attributes:
        indices: indices of the interpolated frames, ascending; none is a training frame.
        frames: interpolated images, made from training frames only.
    """

    indices: tuple[int, ...]
    frames: Float[Tensor, "targets 3 height width"]


def interpolated_targets(
    frames: Frames, train: Sequence[int], *, motion: BetweenMotion = "straight"
) -> InterpolatedTargets:
    """Interpolate every frame that is not in ``train`` from its nearest training frames.

    With straight motion, the image is a blend of the training frames on both sides, each warped along the motion
    between them to the time of the gap; before the first or after the last training frame it is a copy of that frame.
    With curved motion, it follows paths through up to four training frames (see `curved`). After the last training
    frame, the motion of the last two goes on for a few frames, if their own predecessors predict the last one in this
    way better than a copy does; likewise before the first.

    Args:
        frames: the whole video; only the frames in ``train`` are read.
        train: indices of the training frames, in any order.
        motion: shape of the paths.

    Raises:
        ValueError: ``train`` is empty or contains an index out of range.
    """
    known = sorted(set(train))
    if not known or known[0] < 0 or known[-1] >= len(frames):
        raise ValueError(f"train must be at least one frame index in [0, {len(frames)}), got {known}")
    gaps = tuple(sorted(set(range(len(frames))) - set(known)))
    fill = _fill_curved if motion == "curved" else _fill_straight
    pictures = [fill(frames, known, gap) for gap in gaps]
    return InterpolatedTargets(indices=gaps, frames=torch.stack(pictures) if pictures else frames[known[0]][None][:0])


def _fill_straight(frames: Frames, known: list[int], gap: int) -> Float[Tensor, "3 height width"]:
    before = max((k for k in known if k < gap), default=None)
    after = min((k for k in known if k > gap), default=None)
    if before is None or after is None:
        # No motion can be estimated from one side only.
        return frames[known[0] if before is None else known[-1]]
    share = (gap - before) / (after - before)
    return interpolate(frames[before][None], frames[after][None], share=share)[0]


def _fill_curved(frames: Frames, known: list[int], gap: int) -> Float[Tensor, "3 height width"]:
    before = [k for k in known if k < gap][-NEIGHBORS:]
    after = [k for k in known if k > gap][:NEIGHBORS]
    if not before or not after:
        return _continued(frames, known, gap)
    # In the units of the estimate, the two frames around the gap are 2 apart.
    unit = (after[0] - before[-1]) / 2
    chosen = before + after
    return interpolate_curved(torch.stack([frames[k] for k in chosen]), [(k - gap) / unit for k in chosen])


def _continued(frames: Frames, known: list[int], gap: int) -> Float[Tensor, "3 height width"]:
    """Return the nearest training frame, moved on if moving on predicts that frame itself better than a copy does."""
    by_distance = sorted(known, key=lambda k: abs(k - gap))
    if len(known) < 3:
        return frames[by_distance[0]]
    nearest, second, third = by_distance[:3]
    if abs(gap - nearest) > FARTHEST * abs(nearest - second):
        return frames[nearest]
    truth = frames[nearest]
    moved_error = (_moved_on(frames, second, third, nearest) - truth).square().mean()
    copied_error = (frames[second] - truth).square().mean()
    return _moved_on(frames, nearest, second, gap) if moved_error < copied_error else truth


def _moved_on(frames: Frames, nearest: int, second: int, gap: int) -> Float[Tensor, "3 height width"]:
    """Return the nearest of two training frames on one side of a gap, moved on to its time along the motion."""
    chosen = sorted((nearest, second))
    times = [(k - gap) / abs(nearest - second) for k in chosen]
    return interpolate_curved(torch.stack([frames[k] for k in chosen]), times)
