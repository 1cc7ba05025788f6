"""Baselines for a reconstruction: trivial predictions of frames and embeddings that need no training."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data import Clip
from fieldwatch.recon.losses import cosine
from fieldwatch.recon.pipelines.video.quality import psnr

KINDS = ("neighbor_average", "copy_previous", "mean_frame")


def reference_psnr(clip: Clip, train: Sequence[int], val: Sequence[int]) -> dict[str, float]:
    """Return the pooled frame PSNR (dB, averaged over frames) of three predictions that need no network.

    Each frame is predicted from the training frames except itself: `neighbor_average` is the mean of the nearest one
    before and the nearest one after (or of the only one), `copy_previous` the nearest one before (after, for the
    first), `mean_frame` the mean of all training frames (which includes the frame itself, if it is one).

    Returns:
        `Reference/<train|val>_<kind>` to dB; frames without another training frame are omitted.

    Raises:
        ValueError: there are no training frames.
    """
    if not train:
        msg = "references need at least one training frame, got none: check the split"
        raise ValueError(msg)
    # Summed frame by frame: a streamed clip does not fit into memory.
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
    # A training frame must not predict itself, or its reference would be perfect.
    others = [other for other in train if other != index]
    before = max((other for other in others if other < index), default=None)
    after = min((other for other in others if other > index), default=None)
    neighbors = [clip[other].float().div(255) for other in (before, after) if other is not None]
    predictions = (
        {"neighbor_average": sum(neighbors) / len(neighbors), "copy_previous": neighbors[0]} if neighbors else {}
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
    """Return the cosines of trivial semantic predictions; patches of one clip resemble each other, so they are high.

    `..._clip_sim_mean` is the cosine to the normalized mean of all training embeddings, `..._clip_sim_shuffled` the
    mean cosine between different patches (over all pairs of a set, the exact expectation of shuffling).

    Returns:
        `Eval/Baseline/<train|val>_clip_sim_<mean|shuffled>`; tags of an empty set are absent.
    """
    mean = functional.normalize(targets[list(train)].flatten(0, 1).double().mean(0), dim=0)
    metrics: dict[str, float] = {}
    for name, frames in (("train", train), ("val", val)):
        # Float64, because the shuffled mean is a difference of two large sums.
        vectors = targets[list(frames)].flatten(0, 1).double()
        if len(vectors):
            metrics[f"Eval/Baseline/{name}_clip_sim_mean"] = float(cosine(vectors, mean.expand_as(vectors)).mean())
        if len(vectors) > 1:
            pairs = len(vectors) * (len(vectors) - 1)
            # |sum v|^2 - sum |v|^2 is the sum of products over all ordered pairs of different patches.
            summed = vectors.sum(0).square().sum() - vectors.square().sum()
            metrics[f"Eval/Baseline/{name}_clip_sim_shuffled"] = float(summed / pairs)
    return metrics
