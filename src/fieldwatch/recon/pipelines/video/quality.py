"""Quality of a reconstruction per patch, frame and set, under the tags of the dual-head HNeRV code.

Two PSNR values are recorded per frame. That of the dual-head HNeRV code is the mean over patches in dB. The *pooled*
one is computed from the mean squared error of the whole frame; it is never larger, and is what papers report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.recon.data import PatchGrid
from fieldwatch.recon.losses import cosine, ms_ssim, ssim

__all__ = [
    "FrameScore",
    "SetScores",
    "evaluation_histograms",
    "evaluation_metrics",
    "further_metrics",
    "ms_ssim",
    "psnr",
    "psnr_from_mse",
    "score_frame",
    "ssim",
]

_EPSILON = 1e-9  # caps PSNR at 90 dB, as in the original


def psnr_from_mse(mse: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return -10 log10(mse + 1e-9) in dB, for a data range of 1; at most 90."""
    return -10 * torch.log10(mse + _EPSILON)


def psnr(
    prediction: Float[Tensor, "batch 3 height width"], target: Float[Tensor, "batch 3 height width"]
) -> Float[Tensor, " batch"]:
    """Return the PSNR of each image in dB over all its pixels and channels, without clamping or rounding to 8 bits."""
    return psnr_from_mse((prediction - target).square().mean((-3, -2, -1)))


@dataclass(frozen=True, kw_only=True)
class FrameScore:
    """Scores of one frame, on the device.

    Attributes:
        patch_psnr: PSNR per patch in dB.
        mse: mean squared error over all patches.
        patch_cosine: cosine to the teacher's embedding per patch; None without a semantic head.
        ssim: SSIM of the whole frame.
        ms_ssim: MS-SSIM of the whole frame; None if it is too small for five scales (32 pixels).
    """

    patch_psnr: Float[Tensor, " patches"]
    mse: Float[Tensor, ""]
    patch_cosine: Float[Tensor, " patches"] | None
    ssim: Float[Tensor, ""]
    ms_ssim: Float[Tensor, ""] | None


def score_frame(
    prediction: Float[Tensor, "patches 3 ph pw"],
    truth: Float[Tensor, "patches 3 ph pw"],
    grid: PatchGrid,
    *,
    embedding: Float[Tensor, "patches dim"] | None = None,
    target: Float[Tensor, "patches dim"] | None = None,
) -> FrameScore:
    """Compare one frame's patches (values in [0, 1], row-major) and, if both are given, their embeddings."""
    frame = grid.join(prediction)
    true_frame = grid.join(truth)
    # Without a semantic head, only pixels are compared.
    similarity = cosine(embedding, target) if embedding is not None and target is not None else None
    return FrameScore(
        patch_psnr=psnr(prediction, truth),
        mse=(prediction - truth).square().mean(),
        patch_cosine=similarity,
        ssim=ssim(frame, true_frame)[0],
        # MS-SSIM halves the image four times, so small frames do not have five scales.
        ms_ssim=ms_ssim(frame, true_frame)[0] if min(frame.shape[-2:]) > 32 else None,
    )


@dataclass(frozen=True, kw_only=True)
class SetScores:
    """Scores of all frames of a set (training or held-out), float64 on the host.

    Attributes:
        patch_psnr: `[frames, patches]` PSNR in dB.
        frame_mse: `[frames]` mean squared error of the whole frame.
        patch_cosine: `[frames, patches]` cosine to the teacher's embedding; None without a semantic head.
        ssim: `[frames]` SSIM; None if not computed.
        ms_ssim: `[frames]` MS-SSIM; None if not computed.
    """

    patch_psnr: NDArray[np.float64]
    frame_mse: NDArray[np.float64]
    patch_cosine: NDArray[np.float64] | None = None
    ssim: NDArray[np.float64] | None = None
    ms_ssim: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        """Check that the set is not empty and that all values have the same number of frames."""
        frames = len(self.patch_psnr)
        if self.patch_psnr.ndim != 2 or self.patch_psnr.size == 0:
            msg = (
                f"patch_psnr must be [frames, patches] with at least one of each, got {self.patch_psnr.shape}: "
                "pass None for an empty set"
            )
            raise ValueError(msg)
        for name in ("frame_mse", "patch_cosine", "ssim", "ms_ssim"):
            values = getattr(self, name)
            if values is not None and len(values) != frames:
                msg = f"{name} must have as many frames as patch_psnr, {frames}, got {len(values)}"
                raise ValueError(msg)

    @classmethod
    def of(cls, frames: Sequence[FrameScore]) -> Self:
        """Gather the scores of at least one frame, with one device-to-host transfer per quantity."""
        return cls(
            patch_psnr=_gathered([frame.patch_psnr for frame in frames]),
            frame_mse=_gathered([frame.mse for frame in frames]),
            patch_cosine=_gathered_if_all([frame.patch_cosine for frame in frames]),
            ssim=_gathered([frame.ssim for frame in frames]),
            ms_ssim=_gathered_if_all([frame.ms_ssim for frame in frames]),
        )

    @property
    def frame_psnr(self) -> NDArray[np.float64]:
        """`[frames]` PSNR in dB averaged over patches: the frame PSNR of the dual-head HNeRV code."""
        return self.patch_psnr.mean(1)

    @property
    def pooled_psnr(self) -> NDArray[np.float64]:
        """`[frames]` PSNR of the frame's mean squared error."""
        # The same offset as in `psnr_from_mse`.
        return -10 * np.log10(self.frame_mse + _EPSILON)

    @property
    def frame_cosine(self) -> NDArray[np.float64] | None:
        """`[frames]` cosine averaged over patches."""
        return None if self.patch_cosine is None else self.patch_cosine.mean(1)


def _gathered(values: Sequence[Tensor]) -> NDArray[np.float64]:
    # Stacked on the device first, so that there is a single transfer.
    return torch.stack(list(values)).double().cpu().numpy()


def _gathered_if_all(values: Sequence[Tensor | None]) -> NDArray[np.float64] | None:
    # All or none: a mean over some of the frames would not be comparable.
    present = [value for value in values if value is not None]
    return _gathered(present) if len(present) == len(values) else None


def evaluation_metrics(train: SetScores, val: SetScores | None) -> dict[str, float]:
    """Return the 22 `Eval/...` scalars of the dual-head HNeRV code; its 4 histograms are in `evaluation_histograms`.

    Standard deviations are population ones. Without held-out frames, `val_` and `Gap` tags are absent and the counts
    are 0; the original writes 0 for all, which suggests gross overfitting. Without a semantic head its tags are absent.
    """
    metrics = _set_metrics("train", train) | (_set_metrics("val", val) if val else {})
    for name, scores in (("train", train), ("val", val)):
        frames, patches = scores.patch_psnr.shape if scores else (0, train.patch_psnr.shape[1])
        metrics[f"Eval/Info/num_{name}_frames"] = float(frames)
        metrics[f"Eval/Info/num_{name}_patches"] = float(frames * patches)
    for kind in ("psnr", "clip_sim"):
        train_value = metrics.get(f"Eval/Frame/train_{kind}")
        val_value = metrics.get(f"Eval/Frame/val_{kind}")
        # A gap needs both sets, and for "clip_sim" a semantic head.
        if train_value is not None and val_value is not None:
            metrics[f"Eval/Gap/{kind}_gap"] = train_value - val_value
    return metrics


def _set_metrics(name: str, scores: SetScores) -> dict[str, float]:
    frame = scores.frame_psnr
    metrics = {
        f"Eval/Frame/{name}_psnr": frame.mean(),
        f"Eval/PSNR_Stats/{name}_std": frame.std(),
        f"Eval/PSNR_Stats/{name}_min": frame.min(),
        f"Eval/PSNR_Stats/{name}_max": frame.max(),
        f"Eval/Patch/{name}_psnr_std": scores.patch_psnr.std(),
    }
    if scores.patch_cosine is not None:
        metrics |= {
            f"Eval/Frame/{name}_clip_sim": scores.patch_cosine.mean(),
            f"Eval/Frame/{name}_clip_dist": 1 - scores.patch_cosine.mean(),
            f"Eval/Patch/{name}_clip_sim_std": scores.patch_cosine.std(),
        }
    return {tag: float(value) for tag, value in metrics.items()}


def evaluation_histograms(train: SetScores, val: SetScores | None) -> dict[str, NDArray[np.float64]]:
    """Return the frame values of the 4 histograms of the dual-head HNeRV code; those of an empty set are absent."""
    values: dict[str, NDArray[np.float64]] = {}
    for name, scores in (("train", train), ("val", val)):
        if scores is not None:
            values[f"Eval/Histogram/{name}_psnr_distribution"] = scores.frame_psnr
            if scores.frame_cosine is not None:
                values[f"Eval/Histogram/{name}_clip_sim_distribution"] = scores.frame_cosine
    return values


def further_metrics(train: SetScores, val: SetScores | None) -> dict[str, float]:
    """Return metrics beyond the dual-head HNeRV code.

    These are pooled PSNR, SSIM and MS-SSIM, averaged over the set's frames, and the spread of the frames' cosine
    similarity.
    """
    metrics: dict[str, float] = {}
    for name, scores in (("train", train), ("val", val)):
        if scores is not None:
            metrics[f"Eval/Pooled/{name}_psnr"] = float(scores.pooled_psnr.mean())
            if scores.ssim is not None:
                metrics[f"Eval/SSIM/{name}"] = float(scores.ssim.mean())
            if scores.ms_ssim is not None:
                metrics[f"Eval/MS_SSIM/{name}"] = float(scores.ms_ssim.mean())
            similarity = scores.frame_cosine
            if similarity is not None:
                metrics[f"Eval/CLIP_Stats/{name}_std"] = float(similarity.std())
                metrics[f"Eval/CLIP_Stats/{name}_min"] = float(similarity.min())
                metrics[f"Eval/CLIP_Stats/{name}_max"] = float(similarity.max())
    return metrics
