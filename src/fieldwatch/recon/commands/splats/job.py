"""Training of splats for the commands: preparation, headline, quality table."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.table import Table

from fieldwatch.cli.kit import DataFinding
from fieldwatch.pipeline import Job, Outcome, RunChoices
from fieldwatch.recon.commands.doctor_settings import CERTAIN, FAR, SETTING, setting_findings
from fieldwatch.recon.commands.splats.doctor_photos import check_scene
from fieldwatch.recon.commands.splats.doctor_point_colors import COLOR_OF_PHOTOS
from fieldwatch.recon.commands.view.splats_window import OnStepEnd, splats_window
from fieldwatch.recon.losses import find_lpips
from fieldwatch.recon.pipelines.splats import STAGE0, Evaluation, Scene, SplatsConfig, prepare_scene, train_splats

QUALITY = (
    ("PSNR (dB)", "Test/psnr", "{:.2f}"),
    ("PSNR without color maps (dB)", "Test/psnr_as_drawn", "{:.2f}"),
    ("PSNR, color map fitted (dB)", "Test/psnr_fitted", "{:.2f}"),
    ("SSIM", "Test/ssim", "{:.4f}"),
    ("SSIM, color map fitted", "Test/ssim_fitted", "{:.4f}"),
    ("LPIPS", "Test/lpips", "{:.4f}"),
    ("mean absolute error", "Test/l1", "{:.4f}"),
    ("rendering one photo (ms)", "Test/render_time_ms", "{:.1f}"),
)
"""Rows of the quality table for the photos: label, tag, format of the value."""
OF_THE_GAUSSIANS = (
    ("distance to the true surface, mean", "Surface/mean_distance", "{:.4f}"),
    ("distance to the true surface, median", "Surface/median_distance", "{:.4f}"),
    ("nearer to it than 1 % of the extent", "Surface/within_1_percent", "{:.1%}"),
)
"""Rows of the quality table for the Gaussians."""
MAGNITUDES = (
    *("lr_factor", "lr_means", "lr_scales", "lr_quaternions", "lr_opacities", "lr_constant", "lr_rest"),
    *("lr_exposures", "lr_beta", "growth_pull", "least_opacity", "largest_size", "reset_every"),
    *("depth_normal_weight", "flatness_weight", "entropy_weight", "density_weight", "better_normal_weight"),
    *("samples_on_surface_weight", "smoothing_weight"),
)
"""Settings whose magnitude decides whether a training works."""
SHOWN = {
    "Loss/total": "loss {}",
    "Train/PSNR": "{} dB",
    "Model/size": "{} Gaussians",
    "Test/psnr": "test {} dB",
}
"""Tags on the progress bar."""


def prepare(config: SplatsConfig) -> Job:
    """Read photos, cameras and Gaussians, and plan the steps.

    Raises:
        ValueError, OSError: the config or its input cannot be used.
    """
    scene = prepare_scene(config)
    # LPIPS needs weights that are not part of the package: the training works without them.
    lpips, why = find_lpips()
    return Job(
        headline=headline(config, scene),
        notes=(*scene.notes, *([] if lpips else [lpips_note(why)])),
        device=str(scene.device),
        total=scene.plan.total,
        progress_tags=SHOWN,
        train=lambda folder, how: _train(config, scene, folder, how),
        check=lambda preset: check(config, scene, preset),
        window=lambda port: splats_window(port, scene, partial(_train, config, scene)),
    )


def check(config: SplatsConfig, scene: Scene, preset: SplatsConfig | None) -> tuple[DataFinding, ...]:
    """Check photos, cameras and settings before the first step.

    Args:
        config: settings of the run.
        scene: its photos.
        preset: settings from which they were derived.

    Raises:
        ColmapError: the sparse model is damaged.
    """
    # The built-in scene needs no check.
    known = config.data is None and config.checkpoint_path is None
    about_data = () if known else check_scene(scene.photos, config.data, scene.background)
    # A training that learns the colors of each photo has answered this already.
    about_data = tuple(each for each in about_data if each.name != COLOR_OF_PHOTOS or not config.exposure)
    # The thresholds and the interval of 3DGS and AbsGS.
    instead = {"growth_pull": 2e-4 if config.growth_options.growth_gradient == "signed" else 1e-3, "reset_every": 3000}
    settings = setting_findings(config, preset, MAGNITUDES, instead=instead)
    return (*about_data, *low_cap(config.growth_options.growth_cap, len(scene.photos.points)), *settings)


def low_cap(cap: int | None, points: int) -> list[DataFinding]:
    """Return a warning if the limit of the Gaussians leaves out most of the points that training starts from.

    Args:
        cap: maximum number of Gaussians; None for no limit.
        points: number of points of the scene.
    """
    if cap is None or points < FAR * cap:
        return []
    message = f"--growth-cap {cap:,} leaves out {points - cap:,} of the {points:,} points that training starts from."
    return [
        DataFinding(
            name=f"{SETTING} --growth-cap",
            severity="warning",
            message=message,
            remedy=f"Use --growth-cap {points} or more Gaussians, or leave the flag out.",
            certain=points >= CERTAIN * cap,
        )
    ]


def _train(
    config: SplatsConfig, scene: Scene, folder: Path, how: RunChoices, on_step_end: OnStepEnd | None = None
) -> Outcome[Evaluation]:
    """Train, and add the files that the training wrote before its end to the products."""
    outcome = train_splats(config, scene, folder, on_step_end, **how)
    # Short runs may end before iteration 7000, at which this folder is written.
    stage0 = outcome.folder / STAGE0
    return replace(outcome, products={"3dgs": stage0, **outcome.products}) if stage0.is_dir() else outcome


def lpips_note(why: str) -> str:
    """Return the note of a training that does not measure LPIPS; ``why`` is from `find_lpips`."""
    return f"LPIPS is not measured: {why} (`fieldwatch doctor` tells how to get them)"


def headline(config: SplatsConfig, scene: Scene) -> str:
    """Return a line about the data and the training."""
    photos, plan = scene.photos, scene.plan
    width, height = (max(getattr(camera, side) for camera in photos.cameras) for side in ("width", "height"))
    sizes = {(camera.width, camera.height) for camera in photos.cameras}
    size = f"{'up to ' if len(sizes) > 1 else ''}{width}x{height}"
    if scene.cloud is not None:
        start = f"{len(scene.cloud):,} Gaussians of iteration {scene.loaded}"
    else:
        start = f"{len(photos.points):,} points" if len(photos.points) else "random points"
    return (
        f"{len(photos)} photos {size}, {len(photos.train)} train, {len(photos.test)} held out; from {start}, "
        f"regularization {config.regularization}, steps {plan.first} to {plan.total}"
    )


def quality_table(metrics: Mapping[str, float], training: Mapping[str, float] | None = None) -> Table:
    """Return a table of quality on held-out and, if measured, training photos; other values have no row.

    Args:
        metrics: metrics of the held-out photos; of the training photos if none is held out.
        training: metrics of all training photos; None if at most the mean PSNR of some of them is known.
    """
    # The gap between training and test PSNR exists only if photos are held out.
    held_out = "Test/psnr_gap" in metrics
    table = Table(title="quality", title_justify="left")
    table.add_column()
    table.add_column("held out" if held_out else "training photos (none is held out)", justify="right")
    if held_out:
        table.add_column("train", justify="right")
    others = training or {"Test/psnr": metrics.get("Test/train_psnr", math.nan)}
    for label, tag, form in QUALITY:
        if tag in metrics:
            train = [form.format(others[tag]) if tag in others else "-"] if held_out else []
            table.add_row(label, form.format(metrics[tag]), *train)
    table.add_section()
    if "Test/num_gaussians_K" in metrics:
        table.add_row("Gaussians", f"{1e3 * metrics['Test/num_gaussians_K']:,.0f}")
    for label, tag, form in OF_THE_GAUSSIANS:
        if tag in metrics:
            table.add_row(label, form.format(metrics[tag]))
    return table
