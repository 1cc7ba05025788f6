"""What a video network is trained towards, term by term, and the tags under which that is shown."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Terms, Window
from fieldwatch.losses import cosine_error, pixel_loss
from fieldwatch.pipelines.video.config import VideoConfig
from fieldwatch.pipelines.video.models import Prediction
from fieldwatch.pipelines.video.scene import Batch


def semantic_window(config: VideoConfig, steps_per_epoch: int) -> Window | None:
    """The steps during which the semantic term is active; None when it never is."""
    if config.clip_loss_weight == 0 or config.pixel_loss_warmup_epochs >= config.epochs:
        return None
    return Window(config.pixel_loss_warmup_epochs * steps_per_epoch)


def video_terms(config: VideoConfig, prediction: Prediction, batch: Batch) -> Terms:
    """``pixel_weight * pixel loss + clip_loss_weight * mean(1 - cosine)``; the second only once it is drawn."""
    terms = Terms(pixel=(config.pixel_weight, pixel_loss(config.loss)(prediction.rgb, batch.rgb)))
    if prediction.embedding is not None:
        terms |= Terms(clip=(config.clip_loss_weight, cosine_error(prediction.embedding, batch.embedding)))
    return terms


def unit_errors(prediction: Prediction, batch: Batch) -> Float[Tensor, " units"]:
    """Mean squared error of each unit, detached: what spikes and per-batch PSNR are judged by."""
    with torch.no_grad():
        return (prediction.rgb - batch.rgb).square().mean(dim=(1, 2, 3))


def batch_metrics(terms: Terms, psnr: Float[Tensor, ""]) -> dict[str, float | Tensor]:
    """The per-batch tags of the original guide; the semantic ones are 0 until the term is active."""
    clip = terms["clip"].value.detach() if "clip" in terms else 0.0
    return {
        "Train_Batch/PSNR": psnr,
        "Train_Batch/pixel_loss": terms["pixel"].value.detach(),
        "Train_Batch/clip_loss": clip,
        "Train_Batch/total_loss": terms.total.detach(),
    }


class EpochMeans:
    """Means over the batches of an epoch, summed on the device and never read here.

    Refused steps are left out of the means, chosen by ``torch.where``: a NaN does not spread.
    """

    def __init__(self, names: tuple[str, ...], device: torch.device) -> None:
        self._names = names
        self._sums = torch.zeros(len(names) + 1, device=device)

    def add(self, values: Mapping[str, float | Tensor], *, refused: Float[Tensor, ""]) -> None:
        """Add one batch; missing names count as 0."""
        zero = torch.zeros((), device=self._sums.device)
        row = [torch.as_tensor(values.get(name, zero), device=zero.device, dtype=zero.dtype) for name in self._names]
        stacked = torch.stack([*row, torch.ones_like(zero)]).detach()
        self._sums = self._sums + torch.where(refused > 0, torch.zeros_like(stacked), stacked)

    def take(self) -> dict[str, Tensor]:
        """The means since the last call, as device scalars; NaN when every step was refused."""
        means = self._sums[:-1] / self._sums[-1]
        self._sums = torch.zeros_like(self._sums)
        return dict(zip(self._names, means.unbind(), strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """The sums so far."""
        return {"sums": self._sums}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue a half-summed epoch."""
        self._sums = state["sums"].to(self._sums.device).clone()
