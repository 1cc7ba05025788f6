"""Training as a command: check the input, train, then print results and paths."""

import os
import shlex
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.text import Text

from fieldwatch import Diverged
from fieldwatch.base import InputError, missing_package
from fieldwatch.checkpoint import CheckpointSelector
from fieldwatch.cli.data_check import check_data
from fieldwatch.cli.doctor_checks import unused_gpu
from fieldwatch.cli.flags import seconds_of
from fieldwatch.cli.output import closer_look, count, print_findings, print_json, print_paths, reading_input
from fieldwatch.cli.progress import ProgressBar
from fieldwatch.cli.quality import quality_of
from fieldwatch.cli.train_flags import EXTRA_SINKS, TrainingFlags
from fieldwatch.health import training_exit_code
from fieldwatch.monitor import read_machine, report_exit
from fieldwatch.record import Sink, Terminal, holds_run
from fieldwatch.record.memory import MEMORY_LOG
from fieldwatch.registry import Job, Pipeline
from fieldwatch.run import (
    LOG_EVERY,
    Outcome,
    Profile,
    RankLost,
    Ranks,
    RunChoices,
    check_folder,
    default_sinks,
    deterministic_algorithms,
    leave_crash_outside,
)

FAILED = 3


def train_and_report(  # noqa: PLR0913  pipeline, config, folder and flags make a run; three more start it
    pipeline: Pipeline,
    config: Any,
    folder: Path,
    flags: TrainingFlags,
    *,
    preset: Any,
    resume: Literal["auto", "never", "must", "start-over"],
    resume_from: CheckpointSelector = "last",
    sinks: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> int:
    """Train, then report the findings and the files.

    Args:
        pipeline: pipeline that trains.
        config: config of the pipeline.
        folder: run folder.
        flags: common flags of all trainings.
        preset: config from which ``config`` was derived.
        resume: whether to continue a run that is already in the folder.
        resume_from: checkpoint to continue from: "last", "best" or a step.
        sinks: names of additional sinks; None means those of the flags.
        notes: lines to print at the start.

    Returns:
        0 if finished; 1 if finished with an error among the findings (with ``--strict`` also a warning); 3 if diverged
        or failed; 130, 143, 138 or 129 by exception if interrupted.

    Raises:
        InputError: the input or the run folder cannot be used; nothing has been written then.
    """
    ranks = Ranks.of_process()
    console = Terminal(stderr=flags.json, quiet=not ranks.is_first)
    extra = [name for name in EXTRA_SINKS if getattr(flags, name)] if sinks is None else sinks
    profile = flags.profile.chosen()
    log_every = flags.log_every or LOG_EVERY
    within = seconds_of("--replay-within", flags.replay_within) if flags.replay_within else 0.0
    threads = getattr(config, "threads", 0)
    if threads:
        torch.set_num_threads(threads)

    def train() -> int:
        job = prepared(pipeline, config, folder, resume, profile)
        job = replace(job, notes=(*_notes_on_the_gpu(config), *notes, *job.notes))
        # A run that continues was checked when it began.
        starts = resume == "start-over" or not holds_run(folder)
        found = check_data(job, preset, console) if starts and getattr(flags, "doctor", False) else ()
        # After the checks: whatever is announced is also trained.
        print_start(console, getattr(config, "name", pipeline.name), job, folder)
        bar = ProgressBar(job.total, job.progress_tags, console)

        def every_sink(place: Path) -> list[Sink]:
            return [
                *default_sinks(place, log_every=log_every),
                *(EXTRA_SINKS[name].of_run(place) for name in extra),
                bar,
            ]

        how = RunChoices(preset=preset, sinks=every_sink, resume=resume, profile=profile, mirror=flags.mirror)
        how["resume_from"] = resume_from
        how["hang_timeout"] = flags.watch.timeout
        how["sink_names"] = tuple(extra)
        how["log_every"] = log_every
        how["data_findings"] = found
        if within:
            how["replay_within"] = within
        with window_of(job, flags, console) as train_job, bar:
            outcome = train_job(folder, how)
        code = training_exit_code(outcome.findings, strict=flags.strict)
        if flags.json and ranks.is_first:
            print_json(summary(outcome, code))
        print_outcome(console, outcome, pipeline, job)
        # torchrun takes any other code for a crash, and would restart all ranks.
        return code if ranks.alone else 0

    border = console if ranks.is_first else Terminal(stderr=True)
    with deterministic_algorithms(wanted=getattr(config, "deterministic", False)):
        return report_failure(train, folder, border, extras=pipeline.start_command.split())


@contextmanager
def window_of(job: Job, flags: TrainingFlags, console: Console) -> Iterator[Callable[..., Outcome[Any]]]:
    """Open the window of ``--viewer``, if it is wanted, and yield the function that trains.

    Raises:
        InputError: the pipeline has no window, several processes train together, or the window cannot be opened.
    """
    if not flags.viewer:
        yield job.train
        return
    if job.window is None:
        raise InputError("--viewer: this pipeline has no window; leave it out, and use `fieldwatch watch` instead")
    if not Ranks.of_process().alone:
        raise InputError("--viewer: expected one process, got several that train together; leave it out")
    with job.window(flags.viewer_port) as window:
        console.print(Text(f"  look at it: {window.address}"), soft_wrap=True)
        yield window.train


def _notes_on_the_gpu(config: Any) -> tuple[str, ...]:
    """Return a note if the device is chosen automatically, and a GPU of the machine cannot be used."""
    if getattr(config, "device", "") != "auto":
        return ()
    machine = read_machine(settle=0.0)
    return unused_gpu(machine.gpus, machine.driver)


def prepared(
    pipeline: Pipeline,
    config: Any,
    folder: Path,
    resume: Literal["auto", "never", "must", "start-over"],
    profile: Profile | None,
) -> Job:
    """Read and check all input before anything is written but data that the pipeline makes of raw input.

    Raises:
        InputError: the input or the run folder cannot be used.
    """
    with reading_input():
        # The cheap checks first: reading the data may take minutes.
        convert = pipeline.load("convert")
        conversion = convert(config, folder) if convert else None
        config, make = conversion or (config, None)
        check_folder(folder, config, resume)
        check_writable(folder)
        if make is not None:
            make()
        job = pipeline.load("prepare")(config)
        check_apart(folder, config)
        check_snapshots(profile, job.device)
    return job


def report_failure(train: Callable[[], int], folder: Path, console: Console, *, extras: Collection[str] = ()) -> int:
    """Run a training and report a failure; interruptions and input errors are raised unchanged.

    Args:
        train: function that trains and returns the exit code.
        folder: run folder.
        console: console for the failure.
        extras: extras to recommend if several install a missing package.

    Returns:
        Exit code of the training; 3 if it diverged or failed.

    Raises:
        InputError: the user can fix it; the command line prints the message without traceback.
        MissingPackageError: a package of an optional extra is not installed.
    """
    try:
        return train()
    except InputError:
        raise
    except ModuleNotFoundError as error:
        # Packages are imported when they are first used, which may be at the end of a training.
        missing = missing_package(error, preferred=extras)
        if missing is not None:
            raise missing from error
        return _report_crash(error, folder, console)
    except Exception as error:  # noqa: BLE001  process border: printed, stored in the run folder, turned into an exit code
        return _report_crash(error, folder, console)


def _report_crash(error: Exception, folder: Path, console: Console) -> int:
    # Before the traceback: printing may fail on a full disk or a closed terminal.
    report_exit(error)
    leave_crash_outside(error, folder)
    # These two are no bugs, and their messages are complete.
    if not isinstance(error, Diverged | RankLost):
        traceback.print_exception(error)
    console.print(Text.assemble((type(error).__name__, "bold red"), f" {error}"), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        console.print(Text(note), soft_wrap=True)
    return FAILED


def check_snapshots(profile: Profile | None, device: str) -> None:
    """Refuse snapshots of the CUDA allocator on other devices.

    Raises:
        InputError: the device is no GPU.
    """
    if profile is not None and profile.snapshot_at and not device.startswith("cuda"):
        raise InputError(
            f"--snapshot-at needs a GPU, and this run trains on {device}: leave it out, or use --device cuda"
        )


def check_apart(folder: Path, config: object) -> None:
    """Refuse a new run folder inside one of its input folders: inputs are never changed.

    Existing runs are exempt, and so are refinements, which are inside the folder of their run.

    Raises:
        InputError: the run folder is inside an input folder; the message names both.
    """
    if holds_run(folder) or not is_dataclass(config):
        return
    for field in fields(config):
        path = getattr(config, field.name)
        # A cache is written by definition.
        if field.name == "cache" or not isinstance(path, Path) or not path.is_dir() or holds_run(path):
            continue
        if folder.resolve().is_relative_to(path.resolve()):
            raise InputError(
                f"the run folder {folder} is inside the input folder {path}, which must stay unchanged: choose another "
                "folder with --out"
            )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before any work is done.

    Raises:
        InputError: the folder, or its nearest existing parent, is not writable.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {nearest}: choose another run folder with --out, or change its rights")


def print_start(console: Console, name: str, job: Job, folder: Path) -> None:
    """Print the headline, the commands for monitoring, and the notes."""
    line = f": {job.headline}, {job.device}; run folder {folder}"
    console.print(Text.assemble((name, "bold"), line), soft_wrap=True)
    place = shlex.quote(str(folder))
    console.print(Text(f"  watch it: fieldwatch watch {place}"), soft_wrap=True)
    console.print(Text(f"  all tags: fieldwatch tensorboard {place}"), soft_wrap=True)
    for note in job.notes:
        console.print(Text(f"  note: {note}"))


def summary(outcome: Outcome[Any], code: int) -> dict[str, Any]:
    """Return the outcome as plain values; ``code`` is the exit code of the command."""
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
    """Print quality with the references that need no training, findings, and paths."""
    if outcome.metrics:
        # References, such as a frame interpolation, put the metrics into perspective.
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
    print_paths(console, paths | closer_look(outcome.folder, outcome.findings))
