"""Loss terms of a video network, and the tags under which they are recorded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from fieldwatch import Terms, Window
from fieldwatch.recon.losses import cosine_error, pixel_loss
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.models import Prediction, VideoModel
from fieldwatch.recon.pipelines.video.quality import psnr_from_mse
from fieldwatch.recon.pipelines.video.scene import VideoBatch
from fieldwatch.recon.transfers import constant, upload


def semantic_window(config: VideoConfig, steps_per_epoch: int) -> Window | None:
    """Return the steps during which the semantic term is active, or None if it never is."""
    if config.clip_loss_weight == 0 or config.pixel_loss_warmup_epochs >= config.epochs:
        return None
    return Window(config.pixel_loss_warmup_epochs * steps_per_epoch)


def video_terms(
    config: VideoConfig,
    prediction: Prediction,
    batch: VideoBatch,
    span: Callable[[str], AbstractContextManager[None]] = nullcontext,
) -> Terms:
    """Return the loss terms of a batch, each computed in its own span ``loss_<term>``.

    The terms are ``pixel_weight * pixel loss`` of the training units, ``between_weight * pixel loss`` of the
    interpolated units (both scaled by their fraction of the batch, so that all units count alike), and
    ``clip_loss_weight * mean(1 - cosine)`` if the prediction has embeddings.
    """
    error = pixel_loss(config.loss)
    stands_in = batch.stands_in
    terms = Terms()
    for name, weight, kind in (("pixel", config.pixel_weight, False), ("between", config.between_weight, True)):
        # The kinds are known on the host, so selecting units needs no sync with the device.
        chosen = [i for i, stand_in in enumerate(stands_in) if stand_in is kind]
        if chosen:
            # A batch of one kind, the usual case, is used as it is: indexing by a list would copy all pixels.
            whole = len(chosen) == len(stands_in)
            rows = slice(None) if whole else upload(chosen, batch.rgb.device)
            prediction_of_kind, truth = prediction.rgb[rows], batch.rgb[rows]
            with span(f"loss_{name}"):
                terms |= Terms(**{name: (weight * len(chosen) / len(stands_in), error(prediction_of_kind, truth))})
    if prediction.embedding is not None:
        with span("loss_clip"):
            terms |= Terms(clip=(config.clip_loss_weight, cosine_error(prediction.embedding, batch.embedding)))
    return terms


def unit_errors(prediction: Prediction, batch: VideoBatch) -> Float[Tensor, " units"]:
    """Return the mean squared error of each unit, detached; used for spike detection and per-batch PSNR."""
    with torch.no_grad():
        return (prediction.rgb - batch.rgb).square().mean(dim=(1, 2, 3))


@torch.no_grad()
def squared_error(model: VideoModel, weights: Mapping[str, Tensor], batches: Iterable[VideoBatch]) -> float:
    """Return the mean squared error of a network with other weights, over batches of equal size."""
    errors = [
        (functional_call(model, dict(weights), (batch.query,), {"embed": False}).rgb - batch.rgb).square().mean()
        for batch in batches
    ]
    return float(torch.stack(errors).mean())


def batch_metrics(
    terms: Terms, errors: Float[Tensor, " units"], stands_in: Sequence[bool]
) -> dict[str, float | Tensor]:
    """Return the per-batch tags of the dual-head HNeRV code, over training units only.

    The semantic loss is 0 until its term is active. A batch of interpolated units only has no pixel loss and no PSNR.
    """
    # The original records 0 during the warm-up.
    clip = terms["clip"].value.detach() if "clip" in terms else 0.0
    metrics: dict[str, float | Tensor] = {"Train_Batch/clip_loss": clip, "Train_Batch/total_loss": terms.total.detach()}
    if "pixel" in terms:
        real = [i for i, stand_in in enumerate(stands_in) if not stand_in]
        trained = errors if len(real) == len(stands_in) else errors[upload(real, errors.device)]
        metrics["Train_Batch/PSNR"] = psnr_from_mse(trained).mean()
        metrics["Train_Batch/pixel_loss"] = terms["pixel"].value.detach()
    return metrics


class EpochMeans:
    """Means over the batches of an epoch, accumulated on the device without a device-to-host sync.

    A batch that lacks a value does not count toward its mean. Refused steps are excluded with ``torch.where``, so that
    their NaNs do not propagate.

    Args:
        names: names of the values.
        device: device on which the sums are kept.
    """

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self._names = names
        # Row 0 has the sums of the values, row 1 their counts.
        self._sums = torch.zeros(2, len(names), device=device)

    def add(self, values: Mapping[str, float | Tensor], *, refused: Float[Tensor, ""]) -> None:
        """Add the values of one batch."""
        sums = self._sums
        row = torch.stack([_scalar(values.get(name, 0.0), sums) for name in self._names]).detach()
        # The host knows which values exist, so the counts need no sync with the device.
        counts = constant(tuple(float(name in values) for name in self._names), sums)
        added = torch.stack([row, counts])
        # A multiplication by 0 would keep the NaNs of a refused step.
        self._sums = sums + added.masked_fill(refused > 0, 0)

    def take(self) -> dict[str, Tensor]:
        """Return the means since the last call as device scalars (NaN for values never added) and reset the sums."""
        # 0 / 0 gives NaN on purpose: the mean of no values is undefined.
        means = self._sums[0] / self._sums[1]
        self._sums = torch.zeros_like(self._sums)
        return dict(zip(self._names, means.unbind(), strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums so far."""
        return {"sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the sums of a partly finished epoch."""
        self._sums = state["sums"].to(self._sums.device).clone()


def _scalar(value: float | Tensor, like: Tensor) -> Float[Tensor, ""]:
    return value.to(like) if isinstance(value, Tensor) else like.new_full((), value)
