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


def _band(title: str, name: str, measure: str, statistics: str) -> Chart:
    """Return a chart of the mean over a set's frames, in a band from the worst to the best frame."""
    worst_to_best = Margin(
        value=f"Eval/Frame/{name}_{measure}",
        lower=f"Eval/{statistics}/{name}_min",
        upper=f"Eval/{statistics}/{name}_max",
    )
    return Chart(title=f"{title}, worst to best", margins=(worst_to_best,))


# TensorBoard's custom chart tabs cannot show histograms: they are on its Histograms page and on the tab fieldwatch.
_DISTRIBUTIONS = (
    _band("Frame PSNR of training frames", "train", "psnr", "PSNR_Stats"),
    _band("Frame PSNR of held-out frames", "val", "psnr", "PSNR_Stats"),
    _band("CLIP similarity of training frames", "train", "clip_sim", "CLIP_Stats"),
    _band("CLIP similarity of held-out frames", "val", "clip_sim", "CLIP_Stats"),
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
