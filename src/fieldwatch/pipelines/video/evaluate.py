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
class Evaluation:
    """The scores of every evaluated frame.

    Attributes:
        train_frames: their indices.
        val_frames: their indices.
        train: scores of the training frames.
        val: scores of the held-out frames; None where there are none.
        train_worst: the worst training frame, drawn.
        val_worst: the worst held-out frame, drawn; None where there are none.
    """

    train_frames: tuple[int, ...]
    val_frames: tuple[int, ...]
    train: SetScores
    val: SetScores | None
    train_worst: Float[Tensor, "3 height width"]
    val_worst: Float[Tensor, "3 height width"] | None

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
    with preserve_random_state():
        train, train_worst = _score_set(model, scene, scene.split.train, embed=embed)
        val, val_worst = _score_set(model, scene, scene.split.val, embed=embed)
    model.train(was_training)
    if train is None or train_worst is None:
        raise ValueError("no frame trains: check --data-split")
    return Evaluation(
        train_frames=scene.split.train,
        val_frames=scene.split.val,
        train=train,
        val=val,
        train_worst=train_worst,
        val_worst=val_worst,
    )


def draw_frame(
    model: VideoModel, scene: Scene, index: int, *, embed: bool = True
) -> tuple[Float[Tensor, "patches 3 ph pw"], Float[Tensor, "patches dim"] | None, Batch]:
    """Draw one frame as patches, with their embeddings, and the batch it was drawn for."""
    batch = scene.batch(model.unit, scene.units(model.unit, [index]), with_frames=model.needs_frames)
    prediction: Prediction = model(batch.query, embed=embed)
    patches = prediction.rgb if model.unit == "patch" else scene.grid.split(prediction.rgb)
    embedding = None if prediction.embedding is None else prediction.embedding.flatten(0, 1)
    return patches, embedding, batch


def _score_set(
    model: VideoModel, scene: Scene, frames: Sequence[int], *, embed: bool
) -> tuple[SetScores | None, Tensor | None]:
    scores: list[FrameScore] = []
    worst: Tensor | None = None
    worst_error = torch.tensor(-1.0, device=scene.device)
    for index in frames:
        patches, embedding, batch = draw_frame(model, scene, index, embed=embed)
        truth = batch.rgb if model.unit == "patch" else scene.grid.split(batch.rgb)
        score = score_frame(patches, truth, scene.grid, embedding=embedding, target=scene.targets[index])
        scores.append(score)
        drawn = scene.grid.join(patches)[0]
        worst = drawn if worst is None else torch.where(score.mse > worst_error, drawn, worst)
        worst_error = torch.maximum(worst_error, score.mse)
    return SetScores.of(scores), worst
