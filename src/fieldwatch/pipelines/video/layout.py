"""The dashboard of a video run: the six tabs that the seed's TensorBoard guide recommends, and memory."""

import re

from fieldwatch.pipelines.video.tags import GUIDE_METRICS
from fieldwatch.record import MEMORY_TAB, Chart, Layout, Margin, Tab


def _chart(title: str, *tags: str) -> Chart:
    """One chart with exactly these tags on it."""
    return Chart(title=title, tags=tuple(f"^{re.escape(tag)}$" for tag in tags))


def _under(prefix: str) -> tuple[str, ...]:
    """All tags of the guide that begin so."""
    return tuple(metric.name for metric in GUIDE_METRICS if metric.name.startswith(prefix))


_OVERVIEW = (
    _chart("PSNR: training and held-out", "Train/PSNR", "Eval/Frame/val_psnr"),
    _chart("Total loss", "Train/Loss/total_loss"),
    _chart("Learning rate", "Train/learning_rate"),
)
_LOSSES = tuple(
    _chart(title, tag)
    for title, tag in (
        ("Pixel loss", "Train/Loss/pixel_loss"),
        ("CLIP loss", "Train/Loss/clip_loss"),
        ("CLIP loss, weighted", "Train/Loss/clip_loss_weighted"),
        ("CLIP loss active", "Train/clip_loss_active"),
    )
)
_GRADIENTS = (
    _chart("Gradient norms", *(tag for tag in _under("Train/Gradients/") if not tag.endswith("_ratio"))),
    _chart("Colour head over CLIP head", "Train/Gradients/rgb_to_clip_ratio"),
)
_EVALUATION = (
    _chart("Frame PSNR", "Eval/Frame/train_psnr", "Eval/Frame/val_psnr"),
    _chart("CLIP similarity", "Eval/Frame/train_clip_sim", "Eval/Frame/val_clip_sim"),
    _chart("CLIP distance", "Eval/Frame/train_clip_dist", "Eval/Frame/val_clip_dist"),
    _chart("PSNR gap", "Eval/Gap/psnr_gap"),
    _chart("CLIP similarity gap", "Eval/Gap/clip_sim_gap"),
)
_STATISTICS = (
    _chart("Frame PSNR: best and worst", *(tag for tag in _under("Eval/PSNR_Stats/") if not tag.endswith("_std"))),
    _chart("Frame PSNR: spread", *(tag for tag in _under("Eval/PSNR_Stats/") if tag.endswith("_std"))),
    _chart("Patch PSNR: spread", "Eval/Patch/train_psnr_std", "Eval/Patch/val_psnr_std"),
    _chart("Patch CLIP similarity: spread", "Eval/Patch/train_clip_sim_std", "Eval/Patch/val_clip_sim_std"),
)
# TensorBoard's chart tabs draw no histograms (those have a page of their own): a band from worst to best stands in.
_DISTRIBUTIONS = (
    *(
        Chart(
            title=f"Frame PSNR of {words} frames, worst to best",
            margins=(
                Margin(
                    value=f"Eval/Frame/{name}_psnr",
                    lower=f"Eval/PSNR_Stats/{name}_min",
                    upper=f"Eval/PSNR_Stats/{name}_max",
                ),
            ),
        )
        for name, words in (("train", "training"), ("val", "held-out"))
    ),
    _chart("Histograms (TensorBoard: see its Histograms page)", *_under("Eval/Histogram/")),
)

VIDEO_LAYOUT = Layout(
    tabs=(
        Tab(title="Overview", charts=_OVERVIEW),
        Tab(title="Loss Breakdown", charts=_LOSSES),
        Tab(title="Gradients", charts=_GRADIENTS),
        Tab(title="Evaluation", charts=_EVALUATION),
        Tab(title="Statistics", charts=_STATISTICS),
        Tab(title="Distributions", charts=_DISTRIBUTIONS),
        MEMORY_TAB,
    )
)
"""Tab, its charts, their tags."""
