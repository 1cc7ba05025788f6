"""Training as a command: input checked first, then the run, then what came of it and where it lies."""

import os
import shlex
import traceback
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.text import Text

from fieldwatch import Diverged
from fieldwatch.base import InputError, output_path
from fieldwatch.cli.output import count, print_findings, print_json, print_paths, reading_input
from fieldwatch.cli.progress import ProgressBar
from fieldwatch.cli.quality import quality_of
from fieldwatch.cli.train_flags import TrainingFlags
from fieldwatch.health import training_exit_code
from fieldwatch.monitor import report_exit
from fieldwatch.record import Sink, Terminal, holds_run
from fieldwatch.record.config import plain_values
from fieldwatch.record.memory import MEMORY_LOG
from fieldwatch.record.sinks import Csv, MLflow, Wandb
from fieldwatch.registry import Job, Pipeline
from fieldwatch.run import (
    Outcome,
    Profile,
    RankLost,
    Ranks,
    RunChoices,
    check_folder,
    default_sinks,
    leave_crash_outside,
)

_EXTRA: dict[str, Callable[[Path], Sink]] = {
    "csv": lambda folder: Csv(output_path(folder, "metrics.csv")),
    "wandb": lambda folder: Wandb(output_path(folder, "wandb")),
    "mlflow": lambda folder: MLflow(f"sqlite:///{output_path(folder, 'mlflow.db').absolute()}"),
}
EXTRA_SINKS = tuple(_EXTRA)
"""Names of the sinks that flags add to the default ones."""
FAILED = 3


def train_and_report(  # noqa: PLR0913  pipeline, config, folder and flags make a run; three more start it
    pipeline: Pipeline,
    config: Any,
    folder: Path,
    flags: TrainingFlags,
    *,
    preset: Any,
    resume: Literal["auto", "never", "must", "start-over"],
    sinks: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> int:
    """Train, then report the findings and the files.

    Args:
        pipeline: what trains.
        config: its settings.
        folder: the run folder.
        flags: flags that every training has.
        preset: settings from which ``config`` was derived.
        resume: whether to continue a run that is in the folder.
        sinks: names of further sinks; None takes those that the flags name.
        notes: lines to print at the start.

    Returns:
        0 finished, 1 finished with an error among the findings (with ``--strict`` also with a warning), 3 diverged or
        failed; 130, 143, 138 or 129 by exception when interrupted.

    Raises:
        InputError: the input, or the run folder, is not usable; before the first step nothing was written.
    """
    ranks = Ranks.of_process()
    console = Terminal(stderr=flags.json, quiet=not ranks.is_first)
    extra = [name for name in EXTRA_SINKS if getattr(flags, name)] if sinks is None else sinks
    profile = flags.profile.chosen()
    threads = getattr(config, "threads", 0)
    if threads:
        torch.set_num_threads(threads)

    def train() -> int:
        job = prepared(pipeline, config, folder, resume, profile)
        job = replace(job, notes=(*notes, *job.notes))
        # After the checks: what is printed here will be trained.
        print_start(console, getattr(config, "name", pipeline.name), job, folder)
        bar = ProgressBar(job.total, job.progress_tags, console)

        def every_sink(place: Path) -> list[Sink]:
            return [*default_sinks(place), *(_EXTRA[name](place) for name in extra), bar]

        how = RunChoices(preset=preset, sinks=every_sink, resume=resume, profile=profile, mirror=flags.mirror)
        how["hang_timeout"] = flags.watch.timeout
        how["sink_names"] = tuple(extra)
        with bar:
            outcome = job.train(folder, how)
        code = training_exit_code(outcome.findings, strict=flags.strict)
        if flags.json and ranks.is_first:
            print_json(summary(outcome, code))
        print_outcome(console, outcome, pipeline, job)
        return code if ranks.alone else 0  # to torchrun any other code is a crash: it would start again

    return report_failure(train, folder, console if ranks.is_first else Terminal(stderr=True))


def prepared(
    pipeline: Pipeline,
    config: Any,
    folder: Path,
    resume: Literal["auto", "never", "must", "start-over"],
    profile: Profile | None,
) -> Job:
    """Read and check all input, before anything is written.

    Raises:
        InputError: the input, or the run folder, is not usable.
    """
    with reading_input():
        check_folder(folder, plain_values(config), resume)
        check_writable(folder)
        job = pipeline.load("prepare")(config)
        check_apart(folder, config)
        check_snapshots(profile, job.device)
    return job


def report_failure(train: Callable[[], int], folder: Path, console: Console) -> int:
    """Run a training and show what ended it badly; interruptions and errors of input go on their way.

    Returns:
        Its exit code; 3 when it diverged or failed.

    Raises:
        InputError: the user can mend it; the command line shows the message alone.
    """
    try:
        return train()
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001  process border: shown whole, kept in the run folder, and an exit code
        # Before the traceback: printing may fail on a full disk or a closed terminal.
        report_exit(error)
        leave_crash_outside(error, folder)
        if not isinstance(error, Diverged | RankLost):  # these two are no bugs, and their messages say all
            traceback.print_exception(error)
        console.print(f"[bold red]{type(error).__name__}[/]", Text(str(error)), soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            console.print(Text(note), soft_wrap=True)
        return FAILED


def check_snapshots(profile: Profile | None, device: str) -> None:
    """Refuse allocator snapshots where there is no allocator to write one.

    Raises:
        InputError: the device is no GPU.
    """
    if profile is not None and profile.snapshot_at and not device.startswith("cuda"):
        raise InputError(
            f"--snapshot-at needs a GPU, and this run trains on {device}: leave it out, or use --device cuda"
        )


def check_apart(folder: Path, config: object) -> None:
    """Refuse a new run folder that is, or lies in, a folder of its own input: inputs are only ever read.

    A run that is there already goes on where it is; a refinement lies in the folder of the run that it refines.

    Raises:
        InputError: names both.
    """
    if holds_run(folder) or not is_dataclass(config):
        return
    for field in fields(config):
        path = getattr(config, field.name)
        if field.name == "cache" or not isinstance(path, Path) or not path.is_dir() or holds_run(path):
            continue
        if folder.resolve().is_relative_to(path.resolve()):
            raise InputError(
                f"the run folder {folder} is inside the input folder {path}, which must stay unchanged: choose another "
                "folder with --out"
            )


def check_writable(folder: Path) -> None:
    """Refuse a place where nothing can be written, before any work is done.

    Raises:
        InputError: names the nearest folder that exists.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {nearest}: choose another run folder with --out, or change its rights")


def print_start(console: Console, name: str, job: Job, folder: Path) -> None:
    """Say what will be trained on what, where."""
    line = f": {job.headline}, {job.device}; run folder {folder}"
    console.print(Text.assemble((name, "bold"), line), soft_wrap=True)
    place = shlex.quote(str(folder))
    console.print(Text(f"  watch it: fieldwatch watch {place}"), soft_wrap=True)
    console.print(Text(f"  all tags: fieldwatch tensorboard {place}"), soft_wrap=True)
    for note in job.notes:
        console.print(Text(f"  note: {note}"))


def summary(outcome: Outcome[Any], code: int) -> dict[str, Any]:
    """The outcome for a script; ``code`` is the command's exit code."""
    files = {name: path.absolute() for name, path in outcome.products.items()}
    return {
        "run": outcome.folder,
        "exit_code": code,
        "metrics": outcome.metrics,
        "counted": count(outcome.findings),
        "findings": [finding.as_event() for finding in outcome.findings],
        **({"files": files} if files else {}),
    }


def print_outcome(console: Console, outcome: Outcome[Any], pipeline: Pipeline, job: Job) -> None:
    """Say how good it became, beside what needs no training, what was found, and where everything is."""
    if outcome.metrics:
        console.print(quality_of(pipeline, {**outcome.metrics, **job.references}))
    print_findings(console, outcome.findings)
    folder = outcome.folder.absolute()
    run = shlex.quote(str(outcome.folder))
    paths: dict[str, str | Path] = {
        "run folder": folder,
        "log": folder / "log.txt",
        "checkpoints": folder / "checkpoints",
        **{name.replace("_", " "): path.absolute() for name, path in outcome.products.items()},
        "look at it": f"fieldwatch tensorboard {run}",
        "one page": f"fieldwatch report {run}",
    }
    if pipeline.evaluate:
        paths["evaluate"] = f"fieldwatch eval {run}"
    if (folder / MEMORY_LOG).exists():
        paths["memory"] = f"fieldwatch memory {run}"
    print_paths(console, paths)
