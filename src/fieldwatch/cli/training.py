"""Training as a command: input checked first, then the run, then what came of it and where it lies."""

import os
import shlex
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldwatch import ConfigMismatch, Diverged
from fieldwatch.checkpoint import CheckpointError, FolderInUseError
from fieldwatch.cli.ending import BadInput, print_findings, print_json, print_places, reading_input
from fieldwatch.cli.progress import ProgressBar
from fieldwatch.pipelines.video import Outcome, Scene, VideoConfig, prepare_scene, total_steps, train_video
from fieldwatch.record import MEMORY_LOG, Sink, plain
from fieldwatch.record.sinks import Csv, MLflow, Wandb
from fieldwatch.run import Profile, check_folder, default_sinks

QUALITY = (
    ("frame PSNR, pooled (dB)", "Eval/Pooled/{}_psnr", 2),
    ("frame PSNR, mean of patches (dB)", "Eval/Frame/{}_psnr", 2),
    ("SSIM", "Eval/SSIM/{}", 4),
    ("MS-SSIM", "Eval/MS_SSIM/{}", 4),
    ("reference: mean of both neighbours (dB)", "Reference/{}_neighbour_average", 2),
    ("reference: copy previous (dB)", "Reference/{}_copy_previous", 2),
    ("reference: mean frame (dB)", "Reference/{}_mean_frame", 2),
    ("semantic similarity", "Eval/Frame/{}_clip_sim", 4),
    ("baseline: mean embedding", "Eval/Baseline/{}_clip_sim_mean", 4),
    ("baseline: shuffled", "Eval/Baseline/{}_clip_sim_shuffled", 4),
)
"""Rows of the quality table: label, tag with the set left open, digits."""
_EXTRA: dict[str, Callable[[Path], Sink]] = {
    "csv": lambda folder: Csv(folder / "metrics.csv"),
    "wandb": lambda folder: Wandb(folder / "wandb"),
    "mlflow": lambda folder: MLflow(f"sqlite:///{(folder / 'mlflow.db').absolute()}"),
}
EXTRA_SINKS = tuple(_EXTRA)
FAILED = 3


def train_and_tell(  # noqa: PLR0913  one argument per flag
    config: VideoConfig,
    folder: Path,
    *,
    preset: VideoConfig | None,
    resume: Literal["auto", "never", "must"],
    extra_sinks: Sequence[str] = (),
    as_json: bool = False,
    profile: Profile | None = None,
) -> int:
    """Train, then say what the rules found and where everything is.

    Returns:
        0 healthy, 1 findings above a note, 3 diverged or failed; 130/143 by exception when interrupted.

    Raises:
        BadInput: the input, or the run folder, is not usable; nothing was written.
    """
    console = Console(stderr=as_json)
    if config.threads:
        torch.set_num_threads(config.threads)
    with reading_input():
        check_folder(folder, plain(config), resume)
        check_writable(folder)
        scene = prepare_scene(config)
        check_snapshots(profile, scene.device)
    print_beginning(console, config, scene, folder)
    bar = ProgressBar(total_steps(config, scene), shown_values(scene), console)

    def every_sink(place: Path) -> list[Sink]:
        return [*default_sinks(place), *(_EXTRA[name](place) for name in extra_sinks), bar]

    failure = Failure(console)
    outcome: Outcome | None = None
    with failure, bar:
        outcome = train_video(config, scene, folder, preset=preset, sinks=every_sink, resume=resume, profile=profile)
    if outcome is None:
        return FAILED
    if as_json:
        print_json(summary(outcome))
    print_ending(console, outcome, scene)
    return outcome.exit_code


class Failure:
    """Shows what ended a run badly, so that the command can end with its exit code."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Turn user errors into :class:`BadInput`, show all others whole; interruptions go on their way."""
        if isinstance(error, ConfigMismatch | FolderInUseError | CheckpointError):
            raise BadInput(str(error)) from error
        if not isinstance(error, Exception):
            return False
        if not isinstance(error, Diverged):
            traceback.print_exception(error)
        self._console.print(f"[bold red]{type(error).__name__}[/]", Text(str(error)), soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            self._console.print(Text(note), soft_wrap=True)
        return True


def check_snapshots(profile: Profile | None, device: torch.device) -> None:
    """Refuse allocator snapshots where there is no allocator to write one.

    Raises:
        ValueError: the device is no GPU.
    """
    if profile is not None and profile.snapshot_at and device.type != "cuda":
        raise ValueError(
            f"--snapshot-at needs a GPU, and this run trains on {device}: leave it out, or use --device cuda"
        )


def check_writable(folder: Path) -> None:
    """Refuse a place where nothing can be written, before any work is done.

    Raises:
        PermissionError: names the nearest folder that exists.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(
            f"cannot write into {nearest}: choose another run folder with --out, or change its rights"
        )


def shown_values(scene: Scene) -> dict[str, str]:
    """What the progress bar shows; the held-out quality beside that of the mean of both neighbours."""
    blend = scene.references.get("Reference/val_neighbour_average")
    held_out = "held out {} dB" + (f" (blend {blend:.2f})" if blend is not None else "")
    return {"Loss/total": "loss {}", "Train_Batch/PSNR": "{} dB", "Eval/Pooled/val_psnr": held_out}


def print_beginning(console: Console, config: VideoConfig, scene: Scene, folder: Path) -> None:
    """Say what will be trained on what, where."""
    split, clip = scene.split, scene.clip
    console.print(
        f"[bold]{config.name}[/]: {len(clip)} frames {clip.width}x{clip.height}, {len(split.train)} train, "
        f"{len(split.val)} held out ({config.data_split}); model {config.model}, teacher {scene.teacher}, "
        f"{scene.device}; run folder {folder}",
        soft_wrap=True,
    )
    for note in (scene.teacher_note, *clip.notes, *split.notes):
        console.print(Text(f"  note: {note}"))


def summary(outcome: Outcome) -> dict[str, Any]:
    """The outcome for a script."""
    return {
        "run": outcome.folder,
        "exit_code": outcome.exit_code,
        "metrics": outcome.evaluation.metrics if outcome.evaluation else {},
        "findings": [finding.as_event() for finding in outcome.findings],
    }


def print_ending(console: Console, outcome: Outcome, scene: Scene) -> None:
    """Say how good it became, beside what needs no network, what was found, and where everything is."""
    if outcome.evaluation is not None:
        console.print(quality_table(outcome.evaluation.metrics | dict(scene.references)))
    print_findings(console, outcome.findings)
    folder = outcome.folder.absolute()
    places: dict[str, str | Path] = {
        "run folder": folder,
        "log": folder / "log.txt",
        "checkpoints": folder / "checkpoints",
        "look at it": "fieldwatch tensorboard " + shlex.quote(str(outcome.folder)),
        "evaluate": "fieldwatch eval " + shlex.quote(str(outcome.folder)),
    }
    if (folder / MEMORY_LOG).exists():
        places["memory"] = "fieldwatch memory " + shlex.quote(str(outcome.folder))
    print_places(console, places)


def quality_table(metrics: Mapping[str, float]) -> Table:
    """Quality on training and held-out frames, beside references that need no network."""
    table = Table(title="quality", title_justify="left")
    for column in ("", "train", "held out"):
        table.add_column(column, justify="left" if not column else "right")
    for label, tag, digits in QUALITY:
        values = [metrics.get(tag.format(part)) for part in ("train", "val")]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else f"{value:.{digits}f}" for value in values))
    return table
