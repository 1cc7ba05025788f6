"""``fieldwatch train video``: from frames to a trained, recorded, resumable neural video."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.profiling import ProfileFlags, spelled_out
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
    """

    config: VideoConfig
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    out: Path | None = None
    """Run folder; default runs/video/<time>. One that holds a run is continued if the config agrees."""
    preset: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(PRESETS) + "}")] = "default"
    """Where the other settings start from."""
    resume: Literal["auto", "never", "must"] = "auto"
    """Continue a run found in --out: auto (if there is one), must (there has to be one), never."""
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
    words = spelled_out([_renamed(word) for word in arguments])
    preset = _preset_of(words)
    default = Arguments(config=preset, preset="default")
    chosen = tyro.cli(
        Arguments, prog="fieldwatch train video", args=words, default=default, config=(tyro.conf.OmitArgPrefixes,)
    )
    folder = chosen.out or Path("runs/video") / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    extra = [name for name in EXTRA_SINKS if getattr(chosen, name)]
    return train_and_tell(
        chosen.config,
        folder,
        preset=preset,
        resume=chosen.resume,
        extra_sinks=extra,
        as_json=chosen.json,
        profile=chosen.profile.chosen(),
    )


def _renamed(word: str) -> str:
    flag, equals, value = word.partition("=")
    spelled = "--" + flag[2:].replace("_", "-") if flag.startswith("--") else flag
    return SEED_FLAGS.get(spelled, SEED_FLAGS.get(flag, flag)) + equals + value


def _preset_of(words: Sequence[str]) -> VideoConfig:
    name = "default"
    for i, word in enumerate(words):
        if word.startswith("--preset="):
            name = word.removeprefix("--preset=")
        elif word == "--preset" and i + 1 < len(words):
            name = words[i + 1]
    if name not in PRESETS:
        raise BadInput(f"--preset {name!r} is not known: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()
