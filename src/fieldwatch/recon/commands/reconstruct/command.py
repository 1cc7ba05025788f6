"""``fieldwatch reconstruct INPUT -o OUT``: run all stages, each as a command of its own."""

import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fieldwatch.cli.kit import (
    BadInput,
    FolderLock,
    Terminal,
    check_writable,
    print_json,
    print_paths,
    read_flags,
    reading_input,
    run_command,
)
from fieldwatch.files import output_path
from fieldwatch.pipeline import choose_device
from fieldwatch.recon.commands.reconstruct.flags import ReconstructFlags
from fieldwatch.recon.commands.reconstruct.page import PAGE, write_page
from fieldwatch.recon.commands.reconstruct.record import Record, StageRecord
from fieldwatch.recon.commands.reconstruct.stages import Stage, kind_of_input, run_folder, stages_of

FINDINGS = 1
"""Exit code of a training that finished with an error among its findings."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    ours, training = split_at_dashes(arguments)
    chosen = read_flags(ReconstructFlags, prog="fieldwatch reconstruct", arguments=ours)
    # Progress only; results go to standard output.
    console = Terminal(stderr=True)
    with reading_input():
        kind = kind_of_input(chosen.data)
        refuse_inside_input(chosen.data, chosen.out)
        on_gpu = choose_device(chosen.device).type == "cuda"
        stages = stages_of(chosen, kind, training, on_gpu=on_gpu)
        record = Record.open(chosen, training)
        check_writable(chosen.out)
        chosen.out.mkdir(parents=True, exist_ok=True)
        with FolderLock(chosen.out):
            return reconstruct(chosen, stages, record, console, on_gpu=on_gpu)


def split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and those after it, which go to the training."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def reconstruct(
    chosen: ReconstructFlags, stages: Sequence[Stage], record: Record, console: Console, *, on_gpu: bool
) -> int:
    """Run the stages that are not finished yet, and print the results.

    Returns:
        Exit code.
    """
    record.write()
    if not on_gpu:
        console.print(
            "No GPU is used: the training has 256 pixels, 3,000 steps and at most 50,000 Gaussians unless flags say "
            "otherwise. A GPU trains 1,600 pixels and 15,000 steps, with finer surfaces.",
            soft_wrap=True,
        )
    for position, stage in enumerate(stages, start=1):
        heading = f"[{position}/{len(stages)}] {stage.title}"
        if stage.name in record.stages:
            console.print(Text(f"{heading}: done earlier", "dim"))
            continue
        code = run_stage(stage, record, heading, console)
        write_page(chosen, stages, record)
        if code:
            console.print(
                Text(f"`{stage.name}` ended with exit code {code}: the same command continues here"), soft_wrap=True
            )
            return code
    return print_outcome(chosen, record)


def run_stage(stage: Stage, record: Record, heading: str, console: Console) -> int:
    """Run a stage and record it if it finished; return 0 then, else its exit code."""
    words = list(stage.words({name: each.outcome for name, each in record.stages.items()}))
    console.print(Text(heading, "bold"), Text(f"  fieldwatch {shlex.join(words)}", "dim"), sep="\n", soft_wrap=True)
    began = time.monotonic()
    used = children_seconds()
    result = run_command(words)
    finished = result.code == 0 or (stage.may_find and result.code == FINDINGS)
    if result.stopped_by:
        return 128 + result.stopped_by
    if not finished:
        return result.code
    done = StageRecord(
        words=words,
        seconds=time.monotonic() - began,
        code=result.code,
        outcome=result.outcome,
        processor_seconds=children_seconds() - used,
    )
    record.add(stage.name, done)
    return 0


def children_seconds() -> float:
    """Return the processor time of all finished commands; 0 on Windows, which does not tell it."""
    times = os.times()
    return times.children_user + times.children_system


def refuse_inside_input(data: Path, out: Path) -> None:
    """Refuse to write into the input.

    Raises:
        BadInput: the folder of the results is the input folder, or below it.
    """
    if data.is_dir() and out.resolve().is_relative_to(data.resolve()):
        raise BadInput(f"-o {out} lies in the input folder {data}, which is never written to: use a folder beside it")


def print_outcome(chosen: ReconstructFlags, record: Record) -> int:
    """Print the files, and return the exit code."""
    files = product_files(chosen, record)
    code = max(each.code for each in record.stages.values())
    if chosen.json:
        seconds = {name: each.seconds for name, each in record.stages.items()}
        processor = {name: each.processor_seconds for name, each in record.stages.items()}
        outcomes = {name: each.outcome for name, each in record.stages.items()}
        times = {"seconds": seconds, "processor_seconds": processor}
        print_json({"out": chosen.out, "exit_code": code, **times, "files": files, "stages": outcomes})
        return code
    print_paths(Terminal(), files)
    return code


def product_files(chosen: ReconstructFlags, record: Record) -> dict[str, Any]:
    """Return the files that a user looks for, by content; the page lists all."""
    products = {
        "Gaussians": ("train", "point_cloud"),
        "textured mesh": ("texture", "glb"),
        "mesh": ("mesh", "file"),
        "mesh page": ("view", "page"),
        "turntable": ("view", "film"),
        "turntable of Gaussians": ("train", "turntable"),
    }
    found = {title: record.file_of(stage, name) for title, (stage, name) in products.items()}
    page = {"page": str(output_path(chosen.out, PAGE).absolute())}
    return page | {title: path for title, path in found.items() if path} | {"run": str(run_folder(chosen).absolute())}
