"""Training data of a video run: the clip, its patches, the split, and the semantic targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.data import Clip, PatchGrid
from fieldwatch.recon.pipelines.video.models import Query, Unit, VideoGeometry
from fieldwatch.recon.pipelines.video.split import FrameSplit
from fieldwatch.recon.transfers import upload


@dataclass(frozen=True, kw_only=True)
class VideoBatch:
    """Units to render, with their targets.

    Attributes:
        query: times and positions of the units.
        rgb: ground truth in [0, 1], of the units' size.
        embedding: teacher's unit-norm embedding per patch.
        names: name of each unit, for findings and refusals.
        stands_in: whether the unit's target is an interpolated frame.
    """

    query: Query
    rgb: Float[Tensor, "units 3 height width"]
    embedding: Float[Tensor, "units patches dim"]
    names: tuple[str, ...]
    stands_in: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """Interpolated images for frames that are not trained on, made from training frames only (see ``motion``).

    Attributes:
        row_of: row of each frame index in the other two attributes.
        frames: interpolated images, on the training device.
        targets: teacher's embeddings of their patches.
    """

    row_of: Mapping[int, int]
    frames: UInt8[Tensor, "pictures 3 height width"]
    targets: Float[Tensor, "pictures patches dim"]


@dataclass(frozen=True, kw_only=True)
class VideoScene:
    """A clip, prepared for training.

    Attributes:
        clip: frames of the clip.
        grid: patch grid.
        split: training and held-out frames.
        targets: teacher's embedding of every patch, unit norm, on the training device.
        teacher: name of the teacher of the targets.
        teacher_note: reason for this teacher.
        notes: what a user should know of the frames, the split and the semantic head.
        device: device on which batches are assembled.
        resident: all frames as uint8 on the device; None for a clip that is streamed.
        stand_ins: interpolated images for the times between training frames; None without the interpolation prior.
        references: metrics of trivial predictions, which need no network.
    """

    clip: Clip
    grid: PatchGrid
    split: FrameSplit
    targets: Float[Tensor, "frames patches dim"]
    teacher: str
    teacher_note: str
    notes: tuple[str, ...]
    device: torch.device
    resident: UInt8[Tensor, "frames 3 height width"] | None
    stand_ins: StandIns | None
    references: Mapping[str, float]

    @property
    def geometry(self) -> VideoGeometry:
        """Size of the clip and its patch grid."""
        grid = self.grid
        return VideoGeometry(
            frames=len(self.clip), height=grid.height, width=grid.width, rows=grid.rows, columns=grid.columns
        )

    def tracked_data(self) -> dict[str, object]:
        """Return the data that is in memory during the whole training, by name."""
        return {"frames": self.resident, "targets": self.targets, "stand_ins": self.stand_ins}

    def frames(self, indices: Sequence[int]) -> Float[Tensor, "frames 3 height width"]:
        """Return whole frames in [0, 1] on the training device."""
        # Short clips stay on the device as uint8; long ones are decoded on demand.
        if self.resident is not None:
            chosen = self.resident[upload(indices, self.device)]
        else:
            chosen = upload(self.clip.batch(indices), self.device)
        return chosen.float() / 255

    def covered(self, index: int) -> Float[Tensor, "3 height width"]:
        """Return the part of a frame that the patch grid covers."""
        # Pixels beyond the last whole patch are cut off.
        return self.grid.join(self.grid.split(self.frames([index])))[0]

    def units(self, unit: Unit, frames: Sequence[int]) -> Int64[Tensor, " units"]:
        """Return the indices of all units of some frames: the frame itself, or frame * patches + patch."""
        # Unit indices stay on the CPU, where the batch order is drawn.
        numbers = torch.tensor(frames, dtype=torch.int64)
        if unit == "frame":
            return numbers
        return (numbers[:, None] * self.grid.patches + torch.arange(self.grid.patches)).reshape(-1)

    @property
    def trained_frames(self) -> tuple[int, ...]:
        """Frames that training samples: training frames, and interpolated frames."""
        return (*self.split.train, *(self.stand_ins.row_of if self.stand_ins else ()))

    def stands_in(self, unit: Unit, units: Int64[Tensor, " units"]) -> list[bool]:
        """Return which units of a training batch are interpolated."""
        frames = units if unit == "frame" else units // self.grid.patches
        return [self.stand_ins is not None and frame in self.stand_ins.row_of for frame in frames.tolist()]

    def names(self, unit: Unit, units: Int64[Tensor, " units"]) -> tuple[str, ...]:
        """Return the names of units for findings: the name of the frame, followed by the index of the patch."""
        if unit == "frame":
            return tuple(self.clip.names[i] for i in units.tolist())
        positions = (divmod(number, self.grid.patches) for number in units.tolist())
        return tuple(f"{self.clip.names[frame]}/{patch}" for frame, patch in positions)

    def batch(
        self, unit: Unit, units: Int64[Tensor, " units"], *, with_frames: bool = False, training: bool = False
    ) -> VideoBatch:
        """Assemble a batch of units.

        Args:
            unit: kind of the units.
            units: indices of the units.
            with_frames: add the frames, for networks that encode them.
            training: use interpolated frames in place of held-out frames, which training never sees.
        """
        if unit == "frame":
            return self._frame_batch(units, with_frames=with_frames, training=training)
        return self._patch_batch(units, training=training)

    def _frame_batch(self, units: Int64[Tensor, " units"], *, with_frames: bool, training: bool) -> VideoBatch:
        rgb, targets = self._frames_and_targets(units.tolist(), training=training)
        # The center of the frame; models of whole frames ignore it.
        half = torch.full((len(units),), 0.5, dtype=torch.float64, device=self.device)
        # In float64: at the highest frequencies of a positional encoding, float32 rounding amounts to radians.
        t = upload(units, self.device).double() / len(self.clip)
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
        # Patches of one frame share it, so that each frame is read (or decoded, if streamed) only once.
        distinct_frames, frame_rows = torch.unique(frame, return_inverse=True)
        rgb, targets = self._frames_and_targets(distinct_frames.tolist(), training=training)
        patch_rows = upload(frame_rows * per_frame + patch, self.device)
        centers = upload(self.grid.centers(1)[patch], self.device)
        query = Query(t=upload(frame, self.device).double() / len(self.clip), x=centers[:, 1], y=centers[:, 2])
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
        """Return frames and their targets; in training, interpolated ones for frames that are not trained on."""
        stand_ins = self.stand_ins
        # The usual case: a single indexing operation for all frames.
        if not (training and stand_ins and any(frame in stand_ins.row_of for frame in frames)):
            return self.frames(frames), self.targets[upload(frames, self.device)]
        pairs = [self._frame_and_target(frame, stand_ins) for frame in frames]
        return torch.stack([pixels for pixels, _ in pairs]), torch.stack([target for _, target in pairs])

    def _frame_and_target(
        self, frame: int, stand_ins: StandIns
    ) -> tuple[Float[Tensor, "3 height width"], Float[Tensor, "patches dim"]]:
        row = stand_ins.row_of.get(frame)
        if row is None:
            return self.frames([frame])[0], self.targets[frame]
        return stand_ins.frames[row].float() / 255, stand_ins.targets[row]
