"""``fieldwatch train video``: from frames to a trained, recorded, resumable neural video."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.flags import preset_of, renamed
from fieldwatch.cli.front_video import VIDEO_FRONT
from fieldwatch.cli.new_run import new_run
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
from fieldwatch.cli.supervise import WatchFlags
from fieldwatch.cli.training import EXTRA_SINKS, train_and_tell
from fieldwatch.pipelines.video import PRESETS, VideoConfig

SEED_FLAGS = {
    "--data-path": "--data",
    "-s": "--data",
    "--scene-path": "--data",
    "--outf": "--out",
    "--crop-list": "--crop",
    "--resize-list": "--resize",
    "-b": "--batch",
    "--batchSize": "--batch",
    "--e": "--epochs",
    "-e": "--epochs",
    "--manualSeed": "--seed",
}
"""Flags of the original scripts, by the name they have here."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train a neural video on a folder of frames or a video file; without --data, on a built-in clip.

    Example: fieldwatch train video --data frames/ --data-split 7_7_8 --preset small --out runs/mine

    The run folder holds everything: run.json, journal.jsonl, events.jsonl, log.txt, tensorboard/, checkpoints/. Killed
    at any time, the same command (or `fieldwatch resume RUN`) continues it. Flags of the original scripts (--data-path,
    --vid, --embed, --fc-dim, --fc-hw, --dec-strds, --reduce, --lower-width, --lr-type, --clip-loss-weight, ...) work.

    Exits with 0 (healthy), 1 (findings above a note), 2 (bad input), 3 (diverged or failed), 4 (--supervise gave up),
    128 + the signal after it was stopped by one and has saved: 130 ctrl-C, 143 SIGTERM.
    """

    config: VideoConfig
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    watch: WatchFlags = field(default_factory=WatchFlags)
    out: Path | None = None
    """Run folder; default runs/video/<time>. One that holds a run is continued if the config agrees."""
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
        VIDEO_FRONT,
        chosen.config,
        chosen.out or new_run("video"),
        preset=preset,
        resume=chosen.resume,
        extra_sinks=[name for name in EXTRA_SINKS if getattr(chosen, name)],
        as_json=chosen.json,
        profile=chosen.profile.chosen(),
        hang_timeout=chosen.watch.timeout,
        mirror=chosen.mirror,
    )


def parse(arguments: Sequence[str]) -> tuple[Arguments, VideoConfig]:
    """Read a command line; returns what was chosen, and the preset it was chosen from.

    Raises:
        BadInput: there is no such preset.
    """
    words = spelled_out(renamed(arguments, SEED_FLAGS))
    preset = preset_of(words, PRESETS)
    default = Arguments(config=preset, preset="default")
    chosen = tyro.cli(
        Arguments, prog="fieldwatch train video", args=words, default=default, config=(tyro.conf.OmitArgPrefixes,)
    )
    return chosen, preset
