"""How well a network draws its clip: every frame, trained on and held out, beside what needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch import preserve_random_state
from fieldwatch.pipelines.video.models import Prediction, VideoModel
from fieldwatch.pipelines.video.quality import (
    FrameScore,
    SetScores,
    evaluation_histograms,
    evaluation_metrics,
    further_metrics,
    score_frame,
)
from fieldwatch.pipelines.video.scene import Batch, Scene


@dataclass(frozen=True, kw_only=True)
class Part:
    """The scores of one set of frames.

    Attributes:
        frames: their indices.
        scores: of each frame.
        worst: the frame with the largest error, drawn; what the patch grid covers of it.
    """

    frames: tuple[int, ...]
    scores: SetScores
    worst: Float[Tensor, "3 height width"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of every evaluated frame.

    Attributes:
        parts: "train", and "val" where frames are held out.
    """

    parts: Mapping[str, Part]

    @property
    def train(self) -> SetScores:
        """Scores of the training frames."""
        return self.parts["train"].scores

    @property
    def val(self) -> SetScores | None:
        """Scores of the held-out frames; None where there are none."""
        return self.parts["val"].scores if "val" in self.parts else None

    @property
    def metrics(self) -> dict[str, float]:
        """Every evaluation tag that applies."""
        return evaluation_metrics(self.train, self.val) | further_metrics(self.train, self.val)

    @property
    def histograms(self) -> Mapping[str, NDArray[np.float64]]:
        """The frame values behind the histogram tags."""
        return evaluation_histograms(self.train, self.val)

    @property
    def score(self) -> float:
        """What checkpoints are ranked by: pooled frame PSNR (dB) of the held-out frames, else of the training ones."""
        return float((self.val or self.train).pooled_psnr.mean())


@torch.no_grad()
def evaluate(model: VideoModel, scene: Scene, *, embed: bool = True) -> Evaluation:
    """Draw and score every training and held-out frame. Neither the random state nor the network's mode changes."""
    was_training = model.training
    model.eval()
    sets = {"train": scene.split.train, "val": scene.split.val}
    with preserve_random_state():
        parts = {name: _score(model, scene, frames, embed=embed) for name, frames in sets.items() if frames}
    model.train(was_training)
    return Evaluation(parts=parts)


def draw_frame(
    model: VideoModel, scene: Scene, index: int, *, embed: bool = True
) -> tuple[Float[Tensor, "patches 3 ph pw"], Float[Tensor, "patches dim"] | None, Batch]:
    """Draw one frame as patches, with their embeddings, and the batch it was drawn for."""
    batch = scene.batch(model.unit, scene.units(model.unit, [index]), with_frames=model.needs_frames)
    prediction: Prediction = model(batch.query, embed=embed)
    patches = prediction.rgb if model.unit == "patch" else scene.grid.split(prediction.rgb)
    embedding = None if prediction.embedding is None else prediction.embedding.flatten(0, 1)
    return patches, embedding, batch


def _score(model: VideoModel, scene: Scene, frames: Sequence[int], *, embed: bool) -> Part:
    scores: list[FrameScore] = []
    worst = torch.zeros(0)
    worst_error = torch.tensor(-1.0, device=scene.device)
    for index in frames:
        patches, embedding, batch = draw_frame(model, scene, index, embed=embed)
        truth = batch.rgb if model.unit == "patch" else scene.grid.split(batch.rgb)
        score = score_frame(patches, truth, scene.grid, embedding=embedding, target=scene.targets[index])
        drawn = scene.grid.join(patches)[0]
        worst = torch.where(score.mse > worst_error, drawn, worst) if scores else drawn
        worst_error = torch.maximum(worst_error, score.mse)
        scores.append(score)
    return Part(frames=tuple(frames), scores=SetScores.of(scores), worst=worst)
