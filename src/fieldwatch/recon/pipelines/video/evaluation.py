"""Evaluation of a video network: scores of every training and held-out frame."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch import MicroBatches, preserve_random_state
from fieldwatch.recon.pipelines.video.models import Prediction, Query, VideoModel
from fieldwatch.recon.pipelines.video.quality import (
    FrameScore,
    SetScores,
    evaluation_histograms,
    evaluation_metrics,
    further_metrics,
    score_frame,
)
from fieldwatch.recon.pipelines.video.scene import VideoBatch, VideoScene

RenderedFrame = tuple[Float[Tensor, "patches 3 ph pw"], Float[Tensor, "patches dim"] | None, VideoBatch]
"""A rendered frame as patches, their embeddings, and its batch."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedSet:
    """Scores of a set of frames.

    Attributes:
        frames: indices of the frames.
        scores: scores of each frame.
        worst: rendering of the frame with the largest error, cropped to the patch grid.
    """

    frames: tuple[int, ...]
    scores: SetScores
    worst: Float[Tensor, "3 height width"]


@dataclass(frozen=True, kw_only=True)
class VideoEvaluation:
    """Scores of every evaluated frame.

    Attributes:
        sets: "train", and "val" if frames are held out.
    """

    sets: Mapping[str, EvaluatedSet]

    @property
    def train(self) -> SetScores:
        """Scores of the training frames."""
        return self.sets["train"].scores

    @property
    def val(self) -> SetScores | None:
        """Scores of the held-out frames; None if there are none."""
        return self.sets["val"].scores if "val" in self.sets else None

    @property
    def metrics(self) -> dict[str, float]:
        """All evaluation tags that apply."""
        return evaluation_metrics(self.train, self.val) | further_metrics(self.train, self.val)

    @property
    def histograms(self) -> Mapping[str, NDArray[np.float64]]:
        """Frame values of the histogram tags."""
        return evaluation_histograms(self.train, self.val)

    @property
    def score(self) -> float:
        """Score that ranks checkpoints: pooled frame PSNR (dB) of the held-out frames, else of the training frames."""
        return float((self.val or self.train).pooled_psnr.mean())


@torch.no_grad()
def evaluate(
    model: VideoModel,
    scene: VideoScene,
    *,
    embed: bool = True,
    stop_point: Callable[[], object] = lambda: None,
    micro_batches: MicroBatches | None = None,
) -> VideoEvaluation:
    """Render and score every training and held-out frame, preserving random state and training mode.

    Args:
        model: network to evaluate.
        scene: clip and its split.
        embed: also evaluate the semantic head.
        stop_point: called before each frame; may raise to abort.
        micro_batches: number of parts in which the units (patches) of a frame are rendered; None renders all at once.
    """
    was_training = model.training
    model.eval()
    sets = {"train": scene.split.train, "val": scene.split.val}
    # Evaluating must not change the random numbers of the training that follows.
    with preserve_random_state():
        render = partial(render_frame, model, scene, embed=embed, micro_batches=micro_batches)
        sets_scored = {
            name: _score(model, scene, frames, stop_point, render) for name, frames in sets.items() if frames
        }
    model.train(was_training)
    return VideoEvaluation(sets=sets_scored)


def render_frame(
    model: VideoModel, scene: VideoScene, index: int, *, embed: bool = True, micro_batches: MicroBatches | None = None
) -> RenderedFrame:
    """Render a frame in micro-batches; return its patches, their embeddings, and the batch."""
    batch = scene.batch(model.unit, scene.units(model.unit, [index]), with_frames=model.needs_frames)
    prediction = _predict(model, batch.query, micro_batches or MicroBatches(), embed=embed)
    patches = prediction.rgb if model.unit == "patch" else scene.grid.split(prediction.rgb)
    embedding = None if prediction.embedding is None else prediction.embedding.flatten(0, 1)
    return patches, embedding, batch


def _predict(model: VideoModel, query: Query, micro_batches: MicroBatches, *, embed: bool) -> Prediction:
    """Render the units of a query in micro-batches."""
    # Frames are absent for models that do not encode them.
    columns = {"t": query.t, "x": query.x, "y": query.y} | ({} if query.frames is None else {"frames": query.frames})
    rows = micro_batches.slices(len(query.t))
    predictions = [
        model(Query(**{name: column[part] for name, column in columns.items()}), embed=embed) for part in rows
    ]
    embeddings = [part.embedding for part in predictions if part.embedding is not None]
    rgb = torch.cat([part.rgb for part in predictions])
    return Prediction(rgb=rgb, embedding=torch.cat(embeddings) if embeddings else None)


def _score(
    model: VideoModel,
    scene: VideoScene,
    frames: Sequence[int],
    stop_point: Callable[[], object],
    render: Callable[[int], RenderedFrame],
) -> EvaluatedSet:
    scores: list[FrameScore] = []
    worst = torch.zeros(0)
    worst_error = torch.full((), -1.0, device=scene.device)
    for index in frames:
        stop_point()
        patches, embedding, batch = render(index)
        truth = batch.rgb if model.unit == "patch" else scene.grid.split(batch.rgb)
        # Scores stay on the device until `SetScores.of` transfers all of them at once.
        score = score_frame(patches, truth, scene.grid, embedding=embedding, target=scene.targets[index])
        frame = scene.grid.join(patches)[0]
        # Selected on the device: a comparison on the host would sync for every frame.
        worst = torch.where(score.mse > worst_error, frame, worst) if scores else frame
        worst_error = torch.maximum(worst_error, score.mse)
        scores.append(score)
    return EvaluatedSet(frames=tuple(frames), scores=SetScores.of(scores), worst=worst)
