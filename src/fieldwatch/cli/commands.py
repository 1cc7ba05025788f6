"""Table of all commands: those of the toolkit, and those that installed pipelines add."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from fieldwatch.cli.flag_help import flag_fields
from fieldwatch.registry import Command, find_pipeline, pipeline_names, resolve, working_pipelines

TRAIN: Final = "train"
_TRAIN_WITH: Final = "fieldwatch.cli.train:run"
_FLAGS_OF_TRAINING: Final = "fieldwatch.cli.train_flags:flags_of_words"

# References instead of functions: listing the commands imports none of them.
COMMANDS = {
    "train-many": Command(
        run="fieldwatch.cli.train_many:run",
        flags="fieldwatch.cli.train_flags:TrainManyFlags",
        about="train many scenes of a TOML file, on Ray: retries, resume, one comparison",
    ),
    "resume": Command(
        run="fieldwatch.cli.resume:run",
        flags="fieldwatch.cli.train_flags:ResumeFlags",
        about="continue a run with its stored config",
        takes_run=True,
    ),
    "eval": Command(
        run="fieldwatch.cli.evaluate:run",
        flags="fieldwatch.cli.evaluate_flags:evaluate_flags",
        about="evaluate a checkpoint on training and held-out data: CSV, JSON, pictures",
        takes_run=True,
    ),
    "memory": Command(
        run="fieldwatch.cli.memory:run",
        flags="fieldwatch.cli.memory:Arguments",
        about="report on memory: runs, tensor logs, memory.jsonl, allocator snapshots",
        takes_run=True,
    ),
    "report": Command(
        run="fieldwatch.cli.report:run",
        flags="fieldwatch.cli.report:Arguments",
        about="write a run as one HTML page: verdict, charts, tables, pictures; opens offline",
        takes_run=True,
    ),
    "growth": Command(
        run="fieldwatch.cli.growth:run",
        flags="fieldwatch.cli.growth:Arguments",
        about="list every densification, prune and reset of a run: size, loss, PSNR, memory",
        takes_run=True,
    ),
    "health": Command(
        run="fieldwatch.cli.health:run",
        flags="fieldwatch.cli.health:Arguments",
        about="examine a run with the health rules: step, message, remedy",
        takes_run=True,
    ),
    "replay": Command(
        run="fieldwatch.cli.replay:run",
        flags="fieldwatch.cli.replay_flags:Arguments",
        about="make one step of a run again and look at it: first NaN, each term's gradient, memory by line",
        takes_run=True,
    ),
    "export": Command(
        run="fieldwatch.cli.export:run",
        flags="fieldwatch.cli.export:flags_class",
        about="export a run's record (Parquet, CSV, TensorBoard) or its model for other programs",
        takes_run=True,
    ),
    "import": Command(
        run="fieldwatch.cli.import_run:run",
        flags="fieldwatch.cli.import_run:Arguments",
        about="import a run of TensorBoard, W&B, MLflow, Trackio or a CSV file",
    ),
    "compare": Command(
        run="fieldwatch.cli.compare:run",
        flags="fieldwatch.cli.compare:flags_class",
        about="compare runs: which is better, and why; or rank a run's checkpoints",
        takes_run=True,
    ),
    "doctor": Command(
        run="fieldwatch.cli.doctor:run",
        flags="fieldwatch.cli.doctor_flags:doctor_flags",
        about="check this machine and its installation; or check a data set",
    ),
    "watch": Command(
        run="fieldwatch.cli.watch:run",
        flags="fieldwatch.cli.watch:Arguments",
        about="watch a run live: losses, memory, speed, findings, time left",
        takes_run=True,
    ),
    "gpu": Command(
        run="fieldwatch.cli.gpu:run",
        flags="fieldwatch.cli.gpu:Arguments",
        about="watch the machine: GPUs, their processes, the runs on it",
    ),
    "nsys snapshot": Command(
        run="fieldwatch.cli.nsys_snapshot:run",
        flags="fieldwatch.cli.nsys_snapshot:Arguments",
        about="record some seconds of a running command with Nsight Systems",
    ),
    "nsys train": Command(
        run="fieldwatch.cli.nsys_train:run",
        flags="fieldwatch.cli.nsys_train:Arguments",
        about="record a command with Nsight Systems: all of it, some steps, or from a finding on",
    ),
    "tensorboard": Command(
        run="fieldwatch.cli.tensorboard:run",
        flags="fieldwatch.cli.tensorboard:Arguments",
        about="start TensorBoard on runs, on localhost",
        takes_run=True,
    ),
    "completion": Command(
        run="fieldwatch.cli.completion:run",
        flags="fieldwatch.cli.completion:Arguments",
        about="print a script for tab completion: bash, zsh, fish",
    ),
}
"""Commands of the toolkit by name; pipelines add theirs."""


def all_commands() -> dict[str, Command]:
    """Return all commands by name: trainings first, then those of the toolkit and of the pipelines.

    A pipeline whose package cannot be loaded adds none.
    """
    pipelines, _ = working_pipelines()
    trains = {
        each.start_command: Command(run=_TRAIN_WITH, about=each.about) for each in pipelines if not each.trained_by
    }
    return {**trains, **COMMANDS, **{words: one for each in pipelines for words, one in each.commands.items()}}


def find_command(words: Sequence[str]) -> str | None:
    """Return the command that a command line begins with; None for none. Imports no pipeline that is not asked for.

    Raises:
        PipelineError: the package of the pipeline to train with cannot be used.
    """
    # Most commands have one word; some have two, such as `nsys train`.
    both = " ".join(words[:2])
    if words[0] in COMMANDS:
        return words[0]
    if both in COMMANDS:
        return both
    # Only the named pipeline is imported: another broken package must not keep this one from training.
    if words[0] == TRAIN:
        known = len(words) > 1 and words[1] in pipeline_names() and not find_pipeline(words[1]).trained_by
        return both if known else None
    commands = all_commands()
    return next((name for name in (both, words[0]) if name in commands), None)


def runner_of(name: str) -> Callable[[Sequence[str]], Any]:
    """Import the function that runs a command.

    Args:
        name: its words, as `find_command` returns them.
    """
    if name in COMMANDS:
        return resolve(COMMANDS[name].run)
    first, _, rest = name.partition(" ")
    if first == TRAIN:
        return partial(resolve(_TRAIN_WITH), rest)
    return resolve(all_commands()[name].run)


def flag_names(name: str) -> set[str]:
    """Return the flags of a command, with their dashes, other spellings and ``--no-`` included.

    Args:
        name: its words; it names the class of its flags.
    """
    kind = flags_of(name)
    return set() if kind is None else {word for each in flag_fields(kind) for word in each.spellings}


def flags_of(name: str, arguments: Sequence[str] = ()) -> type | None:
    """Return the dataclass of a command's flags, without importing what runs it; None if it names none.

    Args:
        name: its words, as `find_command` returns them.
        arguments: the words after them; a preset among them changes the defaults.

    Raises:
        InputError: there is no such preset.
        PipelineError: the package of a pipeline cannot be used.
    """
    first, _, rest = name.partition(" ")
    if first == TRAIN:
        return resolve(_FLAGS_OF_TRAINING)(rest, arguments)
    reference = (COMMANDS if name in COMMANDS else all_commands())[name].flags
    found = resolve(reference) if reference else None
    return found if found is None or isinstance(found, type) else found(arguments)
