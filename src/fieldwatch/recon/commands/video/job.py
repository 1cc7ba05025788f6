"""Training of neural videos for the commands: preparation, headline, quality table."""

from collections.abc import Mapping

from rich.table import Table

from fieldwatch.cli.kit import DataFinding
from fieldwatch.pipeline import Job
from fieldwatch.recon.commands.doctor_settings import setting_findings
from fieldwatch.recon.commands.video.doctor_frames import clip_findings
from fieldwatch.recon.pipelines.video import (
    VideoConfig,
    VideoScene,
    prepare_scene,
    total_steps,
    train_video,
)

QUALITY = (
    ("frame PSNR, pooled (dB)", "Eval/Pooled/{}_psnr", 2),
    ("frame PSNR, mean of patches (dB)", "Eval/Frame/{}_psnr", 2),
    ("SSIM", "Eval/SSIM/{}", 4),
    ("MS-SSIM", "Eval/MS_SSIM/{}", 4),
    ("reference: mean of both neighbors (dB)", "Reference/{}_neighbor_average", 2),
    ("reference: copy previous (dB)", "Reference/{}_copy_previous", 2),
    ("reference: mean frame (dB)", "Reference/{}_mean_frame", 2),
    ("semantic similarity", "Eval/Frame/{}_clip_sim", 4),
    ("baseline: mean embedding", "Eval/Baseline/{}_clip_sim_mean", 4),
    ("baseline: shuffled", "Eval/Baseline/{}_clip_sim_shuffled", 4),
)
"""Rows of the quality table: label, tag with a placeholder for the set, number of decimals."""

MOST_FRAMES = 300
"""Number of frames that are checked before a training; `fieldwatch doctor --data` checks all of them."""
MAGNITUDES = ("lr", "pixel_weight", "clip_loss_weight", "between_weight", "clip_norm")
"""Settings whose magnitude decides whether a training works."""


def prepare(config: VideoConfig) -> Job:
    """Read the clip and compute its targets.

    Raises:
        ClipError, ValueError: the config or the clip cannot be used.
    """
    scene = prepare_scene(config)
    return Job(
        headline=headline(config, scene),
        notes=(scene.teacher_note, *scene.notes),
        device=str(scene.device),
        total=total_steps(config, scene),
        progress_tags=shown_values(scene),
        references=scene.references,
        train=lambda folder, how: train_video(config, scene, folder, **how),
        check=lambda preset: check(config, scene, preset),
    )


def check(config: VideoConfig, scene: VideoScene, preset: VideoConfig | None) -> list[DataFinding]:
    """Check frames and settings before the first step.

    Args:
        config: settings of the run.
        scene: its clip.
        preset: settings from which they were derived.
    """
    about_data = [] if config.data is None else list(clip_findings(scene.clip, MOST_FRAMES))
    return [*about_data, *setting_findings(config, preset, MAGNITUDES, instead={"clip_norm": 1.0})]


def headline(config: VideoConfig, scene: VideoScene) -> str:
    """Return a line about the data and the training."""
    split, clip = scene.split, scene.clip
    return (
        f"{len(clip)} frames {clip.width}x{clip.height}, {len(split.train)} train, {len(split.val)} held out "
        f"({config.data_split}); model {config.model}, teacher {scene.teacher}"
    )


def shown_values(scene: VideoScene) -> dict[str, str]:
    """Return the tags on the progress bar; the held-out PSNR is shown with that of blending both neighbors."""
    # Blending both neighbors is the baseline that a useful network must exceed.
    blend = scene.references.get("Reference/val_neighbor_average")
    held_out = "held out {} dB" + (f" (blend {blend:.2f})" if blend is not None else "")
    return {"Loss/total": "loss {}", "Train_Batch/PSNR": "{} dB", "Eval/Pooled/val_psnr": held_out}


def quality_table(metrics: Mapping[str, float]) -> Table:
    """Return a table of quality on training and held-out frames, with references that need no network."""
    table = Table(title="quality", title_justify="left")
    for column in ("", "train", "held out"):
        table.add_column(column, justify="left" if not column else "right")
    for label, tag, digits in QUALITY:
        values = [metrics.get(tag.format(part)) for part in ("train", "val")]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else f"{value:.{digits}f}" for value in values))
    return table
