"""Playback of a trained clip: frames, patches and embeddings, from a run or from a bitstream alone."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.files import write_file
from fieldwatch.pipeline import choose_device
from fieldwatch.recon.data import PatchGrid
from fieldwatch.recon.pipelines.video.bitstream import BitstreamError, StoredFrames, read_bitstream, rebuild
from fieldwatch.recon.pipelines.video.models import Prediction, Query, VideoGeometry, VideoModel
from fieldwatch.recon.pipelines.video.search import PatchIndex
from fieldwatch.recon.pipelines.video.split import Label, split_frames
from fieldwatch.recon.pipelines.video.stored import StoredVideoRun
from fieldwatch.recon.pipelines.video.strips import as_bytes, as_picture


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Provenance of a clip's network, which a bitstream stores in addition to the architecture.

    Attributes:
        clip: name of the clip.
        step: number of finished steps at the checkpoint.
        splits: set of each frame.
        teacher: name of the teacher of the semantic targets.
        embeds: whether a trained semantic head is available.
        no_head: reason why it is not; empty if it is.
    """

    clip: str
    step: int
    splits: tuple[Label, ...]
    teacher: str
    embeds: bool
    no_head: str = ""


@dataclass(frozen=True, kw_only=True)
class Playback:
    """A trained clip, ready to be rendered.

    Attributes:
        model: network in evaluation mode, on the device.
        geometry: size of the clip and its patch grid.
        device: device on which it is rendered.
        origin: provenance of the network.
        frame_at: function from an index to the frame in [0, 1], for networks that encode it; None without the clip.
        targets: teacher's embedding of every patch; None without the clip.
    """

    model: VideoModel
    geometry: VideoGeometry
    device: torch.device
    origin: Origin
    frame_at: Callable[[int], Float[Tensor, "3 height width"]] | None = None
    targets: Float[Tensor, "frames patches dim"] | None = None

    @classmethod
    def of_run(cls, run: StoredVideoRun) -> Self:
        """Play back an opened run."""
        scene = run.scene
        return cls(
            model=run.model,
            geometry=scene.geometry,
            device=scene.device,
            origin=origin_of(run),
            frame_at=(lambda index: scene.frames([index])[0]) if run.model.needs_frames else None,
            targets=scene.targets,
        )

    @classmethod
    def of_bitstream(cls, path: Path, device: str = "auto") -> Self:
        """Play back a bitstream file, without the run or the clip.

        Raises:
            BitstreamError: the file is not a valid bitstream, or does not describe a known network.
        """
        # Errors of the file itself name the path already; the block below adds it to errors of its content.
        decoded = read_bitstream(path)
        target_device = choose_device(device)
        try:
            model = rebuild(decoded).to(target_device)
            geometry = VideoGeometry(**decoded.config["geometry"])
            origin = _origin_in(decoded.config, with_head=decoded.with_clip_head)
        except (KeyError, TypeError, ValueError) as error:
            raise BitstreamError(f"{path} holds no video network that this version can render: {error}") from error
        return cls(model=model.eval(), geometry=geometry, device=target_device, origin=origin)

    @property
    def grid(self) -> PatchGrid:
        """Patch grid of the clip."""
        g = self.geometry
        return PatchGrid(g.rows, g.columns, g.height, g.width)

    @property
    def whole_frames_only(self) -> bool:
        """Whether the network renders from a code per frame, and so cannot render times in between."""
        # `StoredFrames` needs no frames, but has codes for whole frames only.
        return self.model.needs_frames or isinstance(self.model, StoredFrames)

    def check_time(self, time: float) -> None:
        """Check that a time can be rendered.

        Raises:
            InputError: the time is outside the clip, or between frames of a network that renders stored codes only.
        """
        # Times between frames are valid for networks that take a continuous time.
        last = self.geometry.frames - 1
        if not 0 <= time <= last:
            raise InputError(f"frame {time:g} is not in the clip, whose {last + 1} frames are 0 to {last}")
        if self.whole_frames_only and time != int(time):
            raise InputError(
                f"time {time:g} is between two frames, but this hnerv model renders each frame from its own code: "
                "request whole frames, or train with --model grid, dual or nerv"
            )

    def check_patch(self, row: int, column: int) -> None:
        """Check that the grid has a patch.

        Raises:
            InputError: the row or column is out of range.
        """
        g = self.geometry
        if not (0 <= row < g.rows and 0 <= column < g.columns):
            raise InputError(
                f"patch row {row}, column {column} is not in the grid of {g.rows} x {g.columns} patches: "
                f"rows are 0 to {g.rows - 1}, columns 0 to {g.columns - 1}"
            )

    def frame(self, time: float) -> Float[Tensor, "3 height width"]:
        """Render the clip at a time in frames; patch networks omit pixels that belong to no patch.

        Raises:
            ValueError: as in :meth:`check_time`.
        """
        rgb = self._draw(time, embed=False).rgb
        return self.grid.join(rgb)[0] if self.model.unit == "patch" else rgb[0]

    def patch(self, time: float, row: int, column: int) -> Float[Tensor, "3 height width"]:
        """Render one patch at a time in frames.

        Raises:
            ValueError: the time or the patch is out of range.
        """
        self.check_patch(row, column)
        patches = self._draw(time, embed=False).rgb
        if self.model.unit == "frame":
            patches = self.grid.split(patches)
        return patches[row * self.geometry.columns + column]

    def all_frames(self, on_frame: Callable[[], None] = lambda: None) -> Iterator[UInt8[Tensor, "3 height width"]]:
        """Render the clip frame by frame in 8 bits; ``on_frame`` is called after every frame."""
        for index in range(self.geometry.frames):
            yield as_bytes(self.frame(index))
            on_frame()

    def embeddings(self, on_frame: Callable[[], None] = lambda: None) -> Float[Tensor, "frames patches dim"]:
        """Return the network's unit-norm embedding of every patch of every frame, on the host.

        Args:
            on_frame: called after every frame.

        Raises:
            ValueError: there is no semantic head; the message gives the reason.
        """
        if not self.origin.embeds:
            raise InputError(self.origin.no_head)
        embeddings_of_frames = []
        for index in range(self.geometry.frames):
            embedding = self._draw(index, embed=True).embedding
            if embedding is None:
                raise ValueError("expected an embedding from the network, got None: its semantic head is missing")
            # Moved to the host frame by frame, to bound the device memory.
            embeddings_of_frames.append(embedding.flatten(0, 1).cpu())
            on_frame()
        return torch.stack(embeddings_of_frames)

    def index(self, on_frame: Callable[[], None] = lambda: None) -> PatchIndex:
        """Build a search index of every patch; without the clip, predictions replace the targets.

        Raises:
            ValueError: there is no semantic head; the message gives the reason.
        """
        predicted = self.embeddings(on_frame)
        targets = predicted if self.targets is None else self.targets.cpu()
        return PatchIndex(
            predicted=predicted, targets=targets, splits=self.origin.splits, columns=self.geometry.columns
        )

    @torch.no_grad()
    def _draw(self, time: float, *, embed: bool) -> Prediction:
        self.check_time(time)
        if self.model.unit == "patch":
            centers = self.grid.centers(1).to(self.device)
            x = centers[:, 1]
            y = centers[:, 2]
        else:
            # The center of the frame, as in training.
            x = y = torch.full((1,), 0.5, dtype=torch.float64, device=self.device)
        # Networks that encode frames need the frame itself; `check_time` has refused fractions.
        frames = self.frame_at(int(time))[None] if self.frame_at is not None else None
        return self.model(
            Query(t=torch.full_like(x, time / self.geometry.frames), x=x, y=y, frames=frames), embed=embed
        )


def save_picture(path: Path, image: Float[Tensor, "3 height width"] | NDArray[np.uint8]) -> Path:
    """Write an image in [0, 1], or pixels (`[height, width, 3]`), as a PNG, atomically."""
    content = BytesIO()
    Image.fromarray(as_picture(image) if isinstance(image, Tensor) else image).save(content, "PNG")
    write_file(path, content.getvalue(), durable=True)
    return path


def origin_of(run: StoredVideoRun) -> Origin:
    """Return the provenance of an opened run's network."""
    return Origin(
        clip=run.config.name,
        step=run.step,
        splits=run.scene.split.labels,
        teacher=run.scene.teacher,
        embeds=run.head_trained,
        no_head="" if run.head_trained else _UNTRAINED,
    )


def origin_config(run: StoredVideoRun) -> dict[str, Any]:
    """Return the provenance of a run for `model_config`, so that a bitstream is self-contained."""
    return {
        "clip": run.config.name,
        "step": run.step,
        "split": [run.config.data_split, run.config.shuffle_data],
        "teacher": run.scene.teacher,
        "head_trained": run.head_trained,
    }


_UNTRAINED = (
    "the semantic head of this checkpoint is untrained (--clip-loss-weight 0, or still in the warm-up of "
    "--pixel-loss-warmup-epochs): train a run whose semantic term is active"
)
_LEFT_OUT = "the bitstream has no semantic head: export it again without --no-clip-head"


def _origin_in(config: Mapping[str, Any], *, with_head: bool) -> Origin:
    """Parse the output of `origin_config`.

    Raises:
        KeyError, TypeError, ValueError: an entry is missing or invalid.
    """
    # The file stores the rule of the split, from which the labels are derived again.
    rule, shuffled = config["split"]
    trained = config["head_trained"]
    return Origin(
        clip=config["clip"],
        step=config["step"],
        splits=split_frames(config["geometry"]["frames"], rule, shuffle=shuffled).labels,
        teacher=config["teacher"],
        embeds=trained and with_head,
        no_head=_UNTRAINED if not trained else "" if with_head else _LEFT_OUT,
    )
