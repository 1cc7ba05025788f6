"""Training as a command: input checked first, then the run, then what came of it and where it lies."""

import os
import shlex
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from rich.console import Console
from rich.text import Text

from fieldwatch import ConfigMismatch, Diverged
from fieldwatch.checkpoint import CheckpointError, FolderInUseError
from fieldwatch.cli.ending import BadInput, print_findings, print_json, print_places, reading_input
from fieldwatch.cli.front import Config, Front, Job
from fieldwatch.cli.progress import ProgressBar
from fieldwatch.record import MEMORY_LOG, Sink, plain
from fieldwatch.record.sinks import Csv, MLflow, Wandb
from fieldwatch.run import HangTimeout, Outcome, Profile, RankLost, Ranks, RunChoices, check_folder, default_sinks

_EXTRA: dict[str, Callable[[Path], Sink]] = {
    "csv": lambda folder: Csv(folder / "metrics.csv"),
    "wandb": lambda folder: Wandb(folder / "wandb"),
    "mlflow": lambda folder: MLflow(f"sqlite:///{(folder / 'mlflow.db').absolute()}"),
}
EXTRA_SINKS = tuple(_EXTRA)
FAILED = 3


def train_and_tell(  # noqa: PLR0913  one argument per flag
    front: Front[Config],
    config: Config,
    folder: Path,
    *,
    preset: Config | None,
    resume: Literal["auto", "never", "must"],
    extra_sinks: Sequence[str] = (),
    as_json: bool = False,
    profile: Profile | None = None,
    hang_timeout: HangTimeout = "auto",
    mirror: str = "",
) -> int:
    """Train, then say what the rules found and where everything is.

    Returns:
        0 healthy, 1 findings above a note, 3 diverged or failed; 130, 143, 138 or 129 by exception when interrupted.

    Raises:
        BadInput: the input, or the run folder, is not usable; nothing was written.
    """
    ranks = Ranks.of_process()
    console = Console(stderr=as_json, quiet=not ranks.is_first)
    if config.threads:
        torch.set_num_threads(config.threads)
    with reading_input():
        check_folder(folder, plain(config), resume)
        check_writable(folder)
        job = front.prepare(config)
        check_snapshots(profile, job.device)
    print_beginning(console, config.name, job, folder)
    bar = ProgressBar(job.total, job.shown, console)

    def every_sink(place: Path) -> list[Sink]:
        return [*default_sinks(place), *(_EXTRA[name](place) for name in extra_sinks), bar]

    how = RunChoices(preset=preset, sinks=every_sink, resume=resume, profile=profile, hang_timeout=hang_timeout)
    how["mirror"] = mirror
    outcome: Outcome[Any] | None = None
    with Failure(console if ranks.is_first else Console(stderr=True)), bar:
        outcome = job.train(folder, how)
    if outcome is None:
        return FAILED
    if as_json and ranks.is_first:
        print_json(summary(outcome))
    print_ending(console, outcome, front, job)
    return outcome.exit_code if ranks.alone else 0  # to torchrun any other code is a crash: it would start again


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
        if not isinstance(error, Diverged | RankLost):
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


def print_beginning(console: Console, name: str, job: Job, folder: Path) -> None:
    """Say what will be trained on what, where."""
    line = f": {job.headline}, {job.device}; run folder {folder}"
    console.print(Text.assemble((name, "bold"), line), soft_wrap=True)
    console.print(Text(f"  from another terminal: fieldwatch watch {shlex.quote(str(folder))}"), soft_wrap=True)
    for note in job.notes:
        console.print(Text(f"  note: {note}"))


def summary(outcome: Outcome[Any]) -> dict[str, Any]:
    """The outcome for a script."""
    files = {name: path.absolute() for name, path in outcome.products.items()}
    return {
        "run": outcome.folder,
        "exit_code": outcome.exit_code,
        "metrics": outcome.metrics,
        "findings": [finding.as_event() for finding in outcome.findings],
        **({"files": files} if files else {}),
    }


def print_ending(console: Console, outcome: Outcome[Any], front: Front[Any], job: Job) -> None:
    """Say how good it became, beside what needs no training, what was found, and where everything is."""
    if outcome.metrics:
        console.print(front.quality({**outcome.metrics, **job.references}))
    print_findings(console, outcome.findings)
    folder = outcome.folder.absolute()
    run = shlex.quote(str(outcome.folder))
    places: dict[str, str | Path] = {
        "run folder": folder,
        "log": folder / "log.txt",
        "checkpoints": folder / "checkpoints",
        **{name.replace("_", " "): path.absolute() for name, path in outcome.products.items()},
        "look at it": f"fieldwatch tensorboard {run}",
        "one page": f"fieldwatch report {run}",
        "evaluate": f"fieldwatch eval {run}",
    }
    if (folder / MEMORY_LOG).exists():
        places["memory"] = f"fieldwatch memory {run}"
    print_places(console, places)
