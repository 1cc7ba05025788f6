"""What a video run trains on: the clip, its patches, who trains and who is held out, and the semantic targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch.data import Clip, PatchGrid
from fieldwatch.pipelines.video.models import Geometry, Query, Unit
from fieldwatch.pipelines.video.split import FrameSplit


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Units to draw, with what they should look like.

    Attributes:
        query: where and when.
        rgb: the truth in [0, 1], of the units' size.
        embedding: the teacher's unit-norm embedding per patch.
        names: one per unit, for findings and refusals.
    """

    query: Query
    rgb: Float[Tensor, "units 3 height width"]
    embedding: Float[Tensor, "units patches dim"]
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A clip, ready to be trained on.

    Attributes:
        clip: the frames.
        grid: its patches.
        split: which frames train, which are held out.
        targets: the teacher's embedding of every patch, unit norm, on the training device.
        teacher: what made the targets, by its honest name.
        teacher_note: why this teacher.
        device: where batches are made.
        resident: all frames as uint8 on the device; None for a clip that streams.
        references: tags of what needs no network: trivial predictions, and cosines of an ignorant semantic head.
    """

    clip: Clip
    grid: PatchGrid
    split: FrameSplit
    targets: Float[Tensor, "frames patches dim"]
    teacher: str
    teacher_note: str
    device: torch.device
    resident: UInt8[Tensor, "frames 3 height width"] | None
    references: Mapping[str, float]

    @property
    def geometry(self) -> Geometry:
        """The size of what is to be drawn."""
        grid = self.grid
        return Geometry(
            frames=len(self.clip), height=grid.height, width=grid.width, rows=grid.rows, columns=grid.columns
        )

    def frames(self, indices: Sequence[int]) -> Float[Tensor, "frames 3 height width"]:
        """Whole frames in [0, 1] on the training device."""
        if self.resident is not None:
            chosen = self.resident[torch.as_tensor(indices, device=self.device)]
        else:
            chosen = self.clip.batch(indices).to(self.device, non_blocking=True)
        return chosen.float() / 255

    def covered(self, index: int) -> Float[Tensor, "3 height width"]:
        """The part of a frame that the patch grid covers."""
        return self.grid.join(self.grid.split(self.frames([index])))[0]

    def units(self, unit: Unit, frames: Sequence[int]) -> Int64[Tensor, " units"]:
        """The numbers of all units of some frames: the frame itself, or frame * patches + patch."""
        numbers = torch.tensor(frames, dtype=torch.int64)
        if unit == "frame":
            return numbers
        return (numbers[:, None] * self.grid.patches + torch.arange(self.grid.patches)).reshape(-1)

    def batch(self, unit: Unit, units: Int64[Tensor, " units"], *, with_frames: bool = False) -> Batch:
        """Make a batch of units; ``with_frames`` adds the frames for networks that encode them."""
        return self._frame_batch(units, with_frames=with_frames) if unit == "frame" else self._patch_batch(units)

    def _frame_batch(self, units: Int64[Tensor, " units"], *, with_frames: bool) -> Batch:
        rgb = self.frames(units.tolist())
        half = torch.full((len(units),), 0.5, dtype=torch.float64, device=self.device)
        t = units.to(self.device).double() / len(self.clip)
        query = Query(t=t, x=half, y=half, frames=rgb if with_frames else None)
        names = tuple(self.clip.names[i] for i in units.tolist())
        return Batch(query=query, rgb=rgb, embedding=self.targets[units.to(self.device)], names=names)

    def _patch_batch(self, units: Int64[Tensor, " units"]) -> Batch:
        per_frame = self.grid.patches
        frame, patch = units // per_frame, units % per_frame
        shown, where = torch.unique(frame, return_inverse=True)
        patches = self.grid.split(self.frames(shown.tolist()))
        centres = self.grid.centres(1)[patch].to(self.device)
        query = Query(t=frame.to(self.device).double() / len(self.clip), x=centres[:, 1], y=centres[:, 2])
        rgb = patches[(where * per_frame + patch).to(self.device)]
        embedding = self.targets[frame.to(self.device), patch.to(self.device)].unsqueeze(1)
        names = tuple(f"{self.clip.names[f]}/{p}" for f, p in zip(frame.tolist(), patch.tolist(), strict=True))
        return Batch(query=query, rgb=rgb, embedding=embedding, names=names)
