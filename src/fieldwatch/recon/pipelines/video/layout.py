"""Dashboard layout of a video run: six tabs for the tags of the dual-head HNeRV code, and one for memory."""

from fieldwatch import Chart, Layout, Margin, Tab
from fieldwatch.pipeline import MEMORY_TAB
from fieldwatch.recon.pipelines.video.tags import DUAL_HEAD_METRICS


def _under(prefix: str) -> tuple[str, ...]:
    """Return all tags of the dual-head HNeRV code with this prefix."""
    return tuple(metric.name for metric in DUAL_HEAD_METRICS if metric.name.startswith(prefix))


_OVERVIEW = (
    Chart.of("PSNR: training and held-out", "Train/PSNR", "Eval/Frame/val_psnr"),
    Chart.of("Total loss", "Train/Loss/total_loss"),
    Chart.of("Learning rate", "Train/learning_rate"),
)
_LOSSES = tuple(
    Chart.of(title, tag)
    for title, tag in (
        ("Pixel loss", "Train/Loss/pixel_loss"),
        ("CLIP loss", "Train/Loss/clip_loss"),
        ("CLIP loss, weighted", "Train/Loss/clip_loss_weighted"),
        ("CLIP loss active", "Train/clip_loss_active"),
    )
)
# Ratios have a separate chart, because their scale differs from that of the norms.
_GRADIENTS = (
    Chart.of("Gradient norms", *(tag for tag in _under("Train/Gradients/") if not tag.endswith("_ratio"))),
    Chart.of("RGB head over CLIP head", "Train/Gradients/rgb_to_clip_ratio"),
)
_EVALUATION = (
    Chart.of("Frame PSNR", "Eval/Frame/train_psnr", "Eval/Frame/val_psnr"),
    Chart.of("CLIP similarity", "Eval/Frame/train_clip_sim", "Eval/Frame/val_clip_sim"),
    Chart.of("CLIP distance", "Eval/Frame/train_clip_dist", "Eval/Frame/val_clip_dist"),
    Chart.of("PSNR gap", "Eval/Gap/psnr_gap"),
    Chart.of("CLIP similarity gap", "Eval/Gap/clip_sim_gap"),
)
_STATISTICS = (
    Chart.of("Frame PSNR: best and worst", *(tag for tag in _under("Eval/PSNR_Stats/") if not tag.endswith("_std"))),
    Chart.of("Frame PSNR: spread", *(tag for tag in _under("Eval/PSNR_Stats/") if tag.endswith("_std"))),
    Chart.of("Patch PSNR: spread", "Eval/Patch/train_psnr_std", "Eval/Patch/val_psnr_std"),
    Chart.of("Patch CLIP similarity: spread", "Eval/Patch/train_clip_sim_std", "Eval/Patch/val_clip_sim_std"),
)
# TensorBoard's custom chart tabs cannot show histograms, which have a separate page, so a band shows worst to best.
_DISTRIBUTIONS = (
    *(
        Chart(
            title=f"Frame PSNR of {subset} frames, worst to best",
            margins=(
                Margin(
                    value=f"Eval/Frame/{name}_psnr",
                    lower=f"Eval/PSNR_Stats/{name}_min",
                    upper=f"Eval/PSNR_Stats/{name}_max",
                ),
            ),
        )
        for name, subset in (("train", "training"), ("val", "held-out"))
    ),
    Chart.of("Histograms (TensorBoard: see its Histograms page)", *_under("Eval/Histogram/")),
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
"""Tabs of the dashboard, each with its charts and their tags."""
