"""Training of normals for the commands: preparation, headline, quality table."""

from collections.abc import Mapping
from dataclasses import replace

from rich.table import Table

from fieldwatch.cli.kit import DataFinding
from fieldwatch.pipeline import Job
from fieldwatch.recon.commands.doctor_settings import FAR, SETTING, distance, far_setting, setting_findings
from fieldwatch.recon.commands.normals.doctor_normals import map_findings
from fieldwatch.recon.commands.view.normals_window import normals_window
from fieldwatch.recon.pipelines.normals import NormalsConfig, NormalsScene, prepare_scene, train_normals

HELD_OUT = "_held_out"
"""Suffix of the tags of held-out views."""
OF_THE_VIEWS = (
    ("mean angular error (degrees)", "Eval/mae", "{:.2f}"),
    ("median angular error (degrees)", "Eval/median_error", "{:.2f}"),
    ("pixels of the mask without a surface", "Eval/missed", "{:.2%}"),
)
"""Rows of the quality table for the views: label, tag, format of the value."""
OF_THE_SURFACE = (
    ("Chamfer distance (% of the diameter)", "Eval/chamfer_percent", "{:.3f}"),
    ("rotation of the cameras, error (degrees)", "Eval/pose_rotation", "{:.3f}"),
    ("position of the cameras, error (units)", "Eval/pose_position", "{:.4f}"),
)
"""Rows of the quality table for the surface and the poses."""
MAGNITUDES = ("lr", "lr_table", "lr_poses", "lr_poses_late", "radius", "first_step", "last_step")
"""Settings whose magnitude decides whether a training works."""
MOST_LEVELS = 0.75
"""Fraction of the levels of the grid below which the missing ones are named."""
CERTAIN_LEVELS = 0.5
"""Fraction below which the surface is coarse for certain."""
CERTAIN_ROTATION = 2.0
"""Noise of fixed poses in degrees that spoils a surface for certain: exact normals reach about one degree."""
TERMS = ("normal", "depth", "mask", "eikonal", "point_cloud", "surface", "consistency")
"""Terms with a weight in the stages."""
SHOWN = {
    "Loss/total": "loss {}",
    "Loss/component_normal": "normal {}",
    "Statistics/s": "s {}",
    "Statistics/samples_per_ray": "{} samples/ray",
    "Eval/mae": "MAE {} deg",
}
"""Tags on the progress bar."""


def prepare(config: NormalsConfig) -> Job:
    """Read maps, masks and cameras, and initialize the poses.

    Raises:
        ValueError, OSError: the config or its input cannot be used.
    """
    scene = prepare_scene(config)
    return Job(
        headline=headline(config, scene),
        total=scene.schedule.total,
        notes=scene.notes,
        device=str(scene.device),
        progress_tags=SHOWN,
        train=lambda folder, how: train_normals(config, scene, folder, **how),
        check=lambda preset: check(config, scene, preset),
        window=lambda port: normals_window(port, config, scene),
    )


def check(config: NormalsConfig, scene: NormalsScene, preset: NormalsConfig | None) -> list[DataFinding]:
    """Check maps, masks, cameras and settings before the first step.

    Args:
        config: settings of the run.
        scene: its maps.
        preset: settings from which they were derived.
    """
    # The built-in object needs no check, and poses that are learned may be far off.
    known = config.data is None or config.poses.learned
    found = [] if known else map_findings(scene.maps)
    found += [*setting_findings(config, preset, MAGNITUDES), *inactive_parts(config)]
    return found if preset is None else [*found, *stage_findings(config, preset)]


def inactive_parts(config: NormalsConfig) -> list[DataFinding]:
    """Return a warning for each part that the settings leave out of the whole training."""
    found: list[DataFinding] = []
    field = config.sdf
    active = field.first_levels + (field.levels - field.first_levels) * min(config.nominal / max(field.levels_by, 1), 1)
    if active < MOST_LEVELS * field.levels:
        found.append(
            DataFinding(
                name=f"{SETTING} --levels-by",
                severity="warning",
                message=(
                    f"only {active:.1f} of {field.levels} levels of the grid are active at the end: --levels-by "
                    f"{field.levels_by:,} is later than --nominal {config.nominal:,}, so fine detail is not learned."
                ),
                remedy=f"Use --levels-by {config.nominal // 2}, or fewer --levels.",
                certain=active < CERTAIN_LEVELS * field.levels,
            )
        )
    poses = config.poses
    if poses.pose_start != "dataset" and not poses.learned:
        what = "on a ring" if poses.pose_start == "ring" else f"with {poses.rotation_noise:g} degrees of noise"
        found.append(
            DataFinding(
                name=f"{SETTING} --pose-start",
                severity="warning",
                message=f"the poses start {what} (--pose-start {poses.pose_start}) and are not optimized.",
                remedy="Use --pose-start dataset, or optimize them with --learn-rotation --learn-translation.",
                certain=poses.pose_start == "ring" or poses.rotation_noise >= CERTAIN_ROTATION,
            )
        )
    return found


def stage_findings(config: NormalsConfig, preset: NormalsConfig) -> list[DataFinding]:
    """Compare the largest weight of each term, relative to that of the normals, with the preset's."""
    chosen, usual = (_largest_weights(each) for each in (config, preset))
    far = {term: distance(chosen[term], usual[term]) for term in chosen if usual.get(term)}
    found: list[DataFinding] = []
    for term in sorted(far, key=lambda term: -far[term]):
        if far[term] >= FAR:
            finding = far_setting("--stages", chosen[term], usual[term], f"{term}_weight")
            message = finding.message.replace("--stages is", f"the weight of {term} in --stages is")
            verb = "Lower" if chosen[term] > usual[term] else "Raise"
            remedy = (
                f"{verb} the weight of {term} in --stages to about {usual[term]:g} beside normal=1, or leave it out."
            )
            name = f"{SETTING} --stages {term}"
            found.append(replace(finding, name=name, message=message, remedy=remedy))
    return found


def _largest_weights(config: NormalsConfig) -> dict[str, float]:
    """Return the largest weight of each term over the stages, relative to the largest one of the normals."""
    stages = config.parsed_stages
    weights = {term: max(float(getattr(stage, term)) for stage in stages) for term in TERMS}
    return {term: weight / (weights["normal"] or 1.0) for term, weight in weights.items() if weight > 0}


def headline(config: NormalsConfig, scene: NormalsScene) -> str:
    """Return a line about the data and the training."""
    sizes = sorted({view.size for view in scene.maps.views})
    height, width = (max(size[side] for size in sizes) for side in (0, 1))
    starts = {
        "dataset": "poses of the data",
        "noisy": f"poses with {config.poses.rotation_noise:g} deg and {config.poses.translation_noise:g} of noise",
        "ring": "poses on a ring",
    }
    held_out = f", {len(scene.test)} held out" if scene.test else ""
    moved = ", which are learned" if config.poses.learned else ""
    return (
        f"{len(scene.maps)} views {'up to ' if len(sizes) > 1 else ''}{width}x{height}, {len(scene.train)} train"
        f"{held_out}; {starts[config.poses.pose_start]}{moved}; {scene.schedule.total:,} steps"
    )


def quality_table(metrics: Mapping[str, float]) -> Table:
    """Return a table of normals, surface and poses; values that were not measured have no row."""
    held_out = any(tag.endswith(HELD_OUT) for tag in metrics)
    table = Table(title="quality", title_justify="left")
    table.add_column()
    table.add_column("train" if held_out else "", justify="right")
    if held_out:
        table.add_column("held out", justify="right")
    for label, tag, form in OF_THE_VIEWS:
        values = [metrics.get(tag), *([metrics.get(tag + HELD_OUT)] if held_out else [])]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else form.format(value) for value in values))
    # Surface and poses have no held-out part: one value per row.
    table.add_section()
    for label, tag, form in OF_THE_SURFACE:
        if tag in metrics:
            table.add_row(label, form.format(metrics[tag]))
    return table
