"""What a video run trains on: the clip, its patches, who trains and who is held out, and the semantic targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.data import Clip, PatchGrid
from fieldwatch.recon.pipelines.video.models import Query, Unit, VideoGeometry
from fieldwatch.recon.pipelines.video.split import FrameSplit


@dataclass(frozen=True, kw_only=True)
class VideoBatch:
    """Units to draw, with what they should look like.

    Attributes:
        query: where and when.
        rgb: the truth in [0, 1], of the units' size.
        embedding: the teacher's unit-norm embedding per patch.
        names: one per unit, for findings and refusals.
        stands_in: whether each unit is of a stand-in for a frame that is not trained on.
    """

    query: Query
    rgb: Float[Tensor, "units 3 height width"]
    embedding: Float[Tensor, "units patches dim"]
    names: tuple[str, ...]
    stands_in: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """Pictures that stand for frames that are not trained on, made of training frames only (see ``motion``).

    Attributes:
        row_of: frame index to the place in the other two.
        frames: the pictures, on the training device.
        targets: the teacher's embedding of their patches.
    """

    row_of: Mapping[int, int]
    frames: UInt8[Tensor, "pictures 3 height width"]
    targets: Float[Tensor, "pictures patches dim"]


@dataclass(frozen=True, kw_only=True)
class VideoScene:
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
        stand_ins: pictures for the times between training frames; None without that prior.
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
    stand_ins: StandIns | None
    references: Mapping[str, float]

    @property
    def geometry(self) -> VideoGeometry:
        """The size of what is to be drawn."""
        grid = self.grid
        return VideoGeometry(
            frames=len(self.clip), height=grid.height, width=grid.width, rows=grid.rows, columns=grid.columns
        )

    def tracked_data(self) -> dict[str, object]:
        """What of it lies in memory during the whole training, by name."""
        return {"frames": self.resident, "targets": self.targets, "stand_ins": self.stand_ins}

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

    @property
    def trained_frames(self) -> tuple[int, ...]:
        """The frames that training draws: the training frames, and those that have a stand-in."""
        return (*self.split.train, *(self.stand_ins.row_of if self.stand_ins else ()))

    def stands_in(self, unit: Unit, units: Int64[Tensor, " units"]) -> list[bool]:
        """Which units of a training batch are stand-ins."""
        frames = units if unit == "frame" else units // self.grid.patches
        return [self.stand_ins is not None and frame in self.stand_ins.row_of for frame in frames.tolist()]

    def names(self, unit: Unit, units: Int64[Tensor, " units"]) -> tuple[str, ...]:
        """What units are called in findings: the frame's name, and the patch's number after it."""
        if unit == "frame":
            return tuple(self.clip.names[i] for i in units.tolist())
        places = (divmod(number, self.grid.patches) for number in units.tolist())
        return tuple(f"{self.clip.names[frame]}/{patch}" for frame, patch in places)

    def batch(
        self, unit: Unit, units: Int64[Tensor, " units"], *, with_frames: bool = False, training: bool = False
    ) -> VideoBatch:
        """Make a batch of units.

        Args:
            unit: what they are.
            units: their numbers.
            with_frames: add the frames, for networks that encode them.
            training: draw stand-ins instead of held-out frames, which training never sees.
        """
        if unit == "frame":
            return self._frame_batch(units, with_frames=with_frames, training=training)
        return self._patch_batch(units, training=training)

    def _frame_batch(self, units: Int64[Tensor, " units"], *, with_frames: bool, training: bool) -> VideoBatch:
        rgb, targets = self._frames_and_targets(units.tolist(), training=training)
        half = torch.full((len(units),), 0.5, dtype=torch.float64, device=self.device)
        # In double: the highest frequencies of a positional code turn the rounding of a float32 into radians.
        t = units.to(self.device).double() / len(self.clip)
        query = Query(t=t, x=half, y=half, frames=rgb if with_frames else None)
        return VideoBatch(
            query=query,
            rgb=rgb,
            embedding=targets,
            names=self.names("frame", units),
            stands_in=self._stands_in("frame", units, training=training),
        )

    def _patch_batch(self, units: Int64[Tensor, " units"], *, training: bool) -> VideoBatch:
        per_frame = self.grid.patches
        frame = units // per_frame
        patch = units % per_frame
        # Patches of one frame share it: each frame is read, and decoded where it streams, once.
        distinct_frames, frame_rows = torch.unique(frame, return_inverse=True)
        rgb, targets = self._frames_and_targets(distinct_frames.tolist(), training=training)
        patch_rows = (frame_rows * per_frame + patch).to(self.device)
        centres = self.grid.centres(1)[patch].to(self.device)
        query = Query(t=frame.to(self.device).double() / len(self.clip), x=centres[:, 1], y=centres[:, 2])
        embedding = targets.flatten(0, 1)[patch_rows].unsqueeze(1)
        return VideoBatch(
            query=query,
            rgb=self.grid.split(rgb)[patch_rows],
            embedding=embedding,
            names=self.names("patch", units),
            stands_in=self._stands_in("patch", units, training=training),
        )

    def _stands_in(self, unit: Unit, units: Int64[Tensor, " units"], *, training: bool) -> tuple[bool, ...]:
        return tuple(self.stands_in(unit, units)) if training else (False,) * len(units)

    def _frames_and_targets(
        self, frames: Sequence[int], *, training: bool
    ) -> tuple[Float[Tensor, "frames 3 height width"], Float[Tensor, "frames patches dim"]]:
        """Frames and their targets; in training, stand-ins in the place of frames that are not trained on."""
        stand_ins = self.stand_ins
        # The usual case takes all frames in one indexing.
        if not (training and stand_ins and any(frame in stand_ins.row_of for frame in frames)):
            return self.frames(frames), self.targets[torch.as_tensor(frames, device=self.device)]
        pairs = [self._frame_and_target(frame, stand_ins) for frame in frames]
        return torch.stack([pixels for pixels, _ in pairs]), torch.stack([target for _, target in pairs])

    def _frame_and_target(
        self, frame: int, stand_ins: StandIns
    ) -> tuple[Float[Tensor, "3 height width"], Float[Tensor, "patches dim"]]:
        row = stand_ins.row_of.get(frame)
        if row is None:
            return self.frames([frame])[0], self.targets[frame]
        return stand_ins.frames[row].float() / 255, stand_ins.targets[row]
