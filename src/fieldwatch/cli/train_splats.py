"""``fieldwatch train splats``: from photos, or a trained 3DGS model, to Gaussians that lie on the surface."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.flags import preset_of
from fieldwatch.cli.front_splats import SPLATS_FRONT
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.sugar import in_our_words
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.cli.training import EXTRA_SINKS, train_and_tell
from fieldwatch.pipelines.splats import PRESETS, SplatsConfig


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train Gaussians that lie on the surface, on photos with cameras; without --data, on a built-in scene.

    Example: fieldwatch train splats --data colmap_scene/ --preset cpu --out runs/mine

    Example: fieldwatch train splats -c 3dgs_output/ -i 7000 -r dn_consistency --test-iterations 9000 15000

    --data is COLMAP's folder (images/ and sparse/0/), or one with transforms.json; -c starts from a trained 3DGS model.
    Iterations count as in the papers: Gaussians grow until 7000, the terms of --regularization draw them to the surface
    from there on, a prune comes at 9000. --schedule-scale 0.2 makes all of that five times shorter.

    The run folder holds everything: run.json, journal.jsonl, events.jsonl, log.txt, tensorboard/, checkpoints/,
    evaluations/ (every held-out photo), 3dgs/ (as 3DGS leaves it at 7000), and in products/ the Gaussians as PLY for
    viewers, SuGaR's .pt, renders, depth and normals, a turntable. Killed at any time, the same command (or `fieldwatch
    resume RUN`) continues it. Flags of the original script (-s, -c, -i, -r, --coarse_iterations, --test_iterations,
    --eval True, --white_background True, --profile_tensors True, ...) work.

    Exits with 0 (healthy), 1 (findings above a note), 2 (bad input), 3 (diverged or failed), 4 (--supervise gave up),
    128 + the signal after it was stopped by one and has saved: 130 ctrl-C, 143 SIGTERM.
    """

    config: SplatsConfig
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    watch: WatchFlags = field(default_factory=WatchFlags)
    out: Path | None = None
    """Run folder; default runs/splats/<time>. One that holds a run is continued if the config agrees."""
    preset: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(PRESETS) + "}")] = "default"
    """Where the other settings start from."""
    resume: Literal["auto", "never", "must"] = "auto"
    """Continue a run found in --out: auto (if there is one), must (there has to be one), never."""
    mirror: str = ""
    """Also copy every checkpoint to this URL (s3://..., file://...: any that fsspec knows); a lost run starts there."""
    csv: bool = False
    """Also write every value to RUN/metrics.csv."""
    wandb: bool = False
    """Also log to Weights & Biases (WANDB_MODE=offline needs no network)."""
    mlflow: bool = False
    """Also log to MLflow, into RUN/mlflow.db."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen, preset = parse(arguments)
    return train_and_tell(
        SPLATS_FRONT,
        chosen.config,
        chosen.out or new_run("splats"),
        preset=preset,
        resume=chosen.resume,
        extra_sinks=[name for name in EXTRA_SINKS if getattr(chosen, name)],
        as_json=chosen.json,
        profile=chosen.profile.chosen(),
        hang_timeout=chosen.watch.timeout,
        mirror=chosen.mirror,
    )


def parse(arguments: Sequence[str]) -> tuple[Arguments, SplatsConfig]:
    """Read a command line; returns what was chosen, and the preset it was chosen from.

    Raises:
        BadInput: a flag of the original scripts that means nothing here; the message says what does.
    """
    words = spelled_out(in_our_words(arguments))
    preset = preset_of(words, PRESETS)
    default = Arguments(config=preset, preset="default")
    chosen = tyro.cli(
        Arguments, prog="fieldwatch train splats", args=words, default=default, config=(tyro.conf.OmitArgPrefixes,)
    )
    return chosen, preset
