"""What a reconstruction has to beat: trivial predictions of frames and of embeddings, made without any training."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data import Clip
from fieldwatch.recon.losses import cosine
from fieldwatch.recon.pipelines.video.quality import psnr

KINDS = ("neighbour_average", "copy_previous", "mean_frame")


def reference_psnr(clip: Clip, train: Sequence[int], val: Sequence[int]) -> dict[str, float]:
    """Pooled frame PSNR (dB, mean over frames) of three predictions that need no network.

    Each frame is predicted from the training frames other than itself: `neighbour_average` is the mean of the nearest
    one before and the nearest one after (or the one that exists), `copy_previous` the nearest before (after, for the
    first), `mean_frame` the mean of all training frames (of a training frame itself too).

    Returns:
        `Reference/<train|val>_<kind>` to dB; a frame with no other training frame is left out.

    Raises:
        ValueError: when there is no training frame.
    """
    if not train:
        msg = "references are made from training frames, and there is none: check the split"
        raise ValueError(msg)
    mean = torch.zeros(3, clip.height, clip.width)
    for index in train:
        mean += clip[index].float().div(255)
    mean /= len(train)
    metrics: dict[str, float] = {}
    for name, frames in (("train", train), ("val", val)):
        scores = [_frame_references(clip, index, train, mean) for index in frames]
        for kind in KINDS:
            values = [score[kind] for score in scores if kind in score]
            if values:
                metrics[f"Reference/{name}_{kind}"] = sum(values) / len(values)
    return metrics


def _frame_references(
    clip: Clip, index: int, train: Iterable[int], mean: Float[Tensor, "3 height width"]
) -> dict[str, float]:
    others = [other for other in train if other != index]
    before = max((other for other in others if other < index), default=None)
    after = min((other for other in others if other > index), default=None)
    neighbours = [clip[other].float().div(255) for other in (before, after) if other is not None]
    predictions = (
        {"neighbour_average": sum(neighbours) / len(neighbours), "copy_previous": neighbours[0]} if neighbours else {}
    )
    truth = clip[index].float().div(255)
    return {
        kind: float(psnr(prediction[None], truth[None]))
        for kind, prediction in {**predictions, "mean_frame": mean}.items()
        if isinstance(prediction, Tensor)
    }


def embedding_baselines(
    targets: Float[Tensor, "frames patches dim"], train: Sequence[int], val: Sequence[int]
) -> dict[str, float]:
    """Cosines that an ignorant semantic head would reach, because the patches of one clip resemble each other.

    `..._clip_sim_mean`: cosine to the normalised mean of all training embeddings. `..._clip_sim_shuffled`: mean cosine
    to a patch of another place (every pair of different patches of the set once: the exact expectation of shuffling).

    Returns:
        `Eval/Baseline/<train|val>_clip_sim_<mean|shuffled>`; tags of an empty set are absent.
    """
    mean = functional.normalize(targets[list(train)].flatten(0, 1).double().mean(0), dim=0)
    metrics: dict[str, float] = {}
    for name, frames in (("train", train), ("val", val)):
        vectors = targets[list(frames)].flatten(0, 1).double()
        if len(vectors):
            metrics[f"Eval/Baseline/{name}_clip_sim_mean"] = float(cosine(vectors, mean.expand_as(vectors)).mean())
        if len(vectors) > 1:
            pairs = len(vectors) * (len(vectors) - 1)
            summed = vectors.sum(0).square().sum() - vectors.square().sum()  # over ordered pairs of different patches
            metrics[f"Eval/Baseline/{name}_clip_sim_shuffled"] = float(summed / pairs)
    return metrics
