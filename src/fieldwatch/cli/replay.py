"""``fieldwatch replay RUN --step N``: make one step of a run again, in a copy, and look at it."""

import os
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import orjson
import torch
from rich.text import Text

from fieldwatch.base import ExistingPathError, InputError, MissingPathError, output_path, printable, write_file
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.output import BadInput, print_json, print_paths, reading_input
from fieldwatch.cli.replay_flags import Arguments
from fieldwatch.record import Terminal, read_history, read_manifest
from fieldwatch.registry import pipeline_name_of, pipeline_of
from fieldwatch.replay import check_step, look_at_step, variants_of
from fieldwatch.report.page import is_page, write_page
from fieldwatch.report.replay import replay_account, summary_of
from fieldwatch.run import RunChoices, deterministic_algorithms

PAGE = "replay.html"
DATA = "replay.json"
COLORS = {"healthy": "green", "findings": "yellow", "failed": "bold red"}

Loop = Callable[[Path], Any]
"""Function that trains in a copy of the run folder."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    words = list(arguments)
    # The words after `--` are those of the script.
    at = words.index("--") if "--" in words else len(words)
    chosen = read_flags(Arguments, prog="fieldwatch replay", arguments=words[:at])
    script, folder = _script_and_run(chosen)
    variants = variants_of(chosen.do, chosen.without, [chosen.dtype] if chosen.dtype else [])
    out = chosen.out or Path(f"replay-{folder.resolve().name}-{chosen.step}")
    with reading_input():
        _check(folder, chosen, out)
        loop = (
            _loop_of_pipeline(folder, words[at + 1 :]) if script is None else _loop_of_script(script, words[at + 1 :])
        )
        root = next(place for place in out.absolute().parents if place.is_dir())
        # What the loop prints is no part of the result.
        with redirect_stdout(sys.stderr):
            options: dict[str, Any] = {"scratch_root": root, "start": chosen.start}
            result = look_at_step(folder, chosen.step, loop, variants=variants, ahead=chosen.ahead, **options)
            if chosen.against is not None:
                result["against"] = look_at_step(folder, chosen.against, loop, ahead=0, **options)
        account = replay_account(result)
        write_page(account, output_path(out, PAGE))
        write_file(output_path(out, DATA), orjson.dumps(result, option=orjson.OPT_INDENT_2))
    files = {"page": (out / PAGE).absolute(), "data": (out / DATA).absolute()}
    if chosen.json:
        print_json({**result, "files": files})
        return 0
    console = Terminal()
    verdict = account["verdict"]
    console.print(Text(printable(verdict["title"]), COLORS[verdict["level"]]), soft_wrap=True)
    print_paths(console, {name: printable(line, keep="") for name, line in summary_of(result).items()} | files)
    return 0


def _script_and_run(chosen: Arguments) -> tuple[Path | None, Path]:
    """Return the script, or None for a run of a pipeline, and the run folder."""
    is_script = chosen.target.suffix == ".py"
    if chosen.run is None:
        if is_script:
            raise BadInput(f"{chosen.target} is a script: expected the run folder after it, as in replay SCRIPT RUN")
        script = None
        folder = chosen.target
    else:
        if not is_script:
            raise BadInput(f"{chosen.target}: expected RUN, or SCRIPT.py RUN, got two paths of which none is a script")
        script = chosen.target
        folder = chosen.run
    if script is not None and not script.is_file():
        raise MissingPathError(f"{script}: no such file: expected the script that trained {folder}")
    return script, folder.parent if folder.name == "run.json" else folder


def _check(folder: Path, chosen: Arguments, out: Path) -> None:
    """Refuse steps that the run does not have, and an output folder that must not be written."""
    read_manifest(folder)
    last = read_history(folder).step
    for step in (chosen.step, chosen.against):
        if step is not None:
            check_step(folder, step, last)
    if chosen.ahead < 0:
        raise BadInput(f"--ahead {chosen.ahead}: expected a number of steps, 0 or more")
    if out.resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"--out {out} is inside the run {folder}, which is only read: choose another folder")
    if out.exists() and not out.is_dir():
        raise ExistingPathError(f"--out {out} is a file: choose a folder")
    page = out / PAGE
    if page.exists() and not is_page(page):
        raise ExistingPathError(f"{page} exists and was not written by this command: choose another folder with --out")


def _loop_of_pipeline(folder: Path, words: Sequence[str]) -> Loop:
    """Return the training of a pipeline; its data are read and checked."""
    if words:
        raise BadInput(f"-- {' '.join(words)}: words after -- are for a script, and none was given")
    if pipeline_name_of(folder) is None:
        raise InputError(
            f"{folder} holds a run of a loop of your own: expected its script, too: {_with_script(folder)}"
        )
    pipeline = pipeline_of(folder)
    config = pipeline.stored_config(folder)
    preset = pipeline.stored_preset(folder)
    check_resumable = pipeline.load("check_resumable")
    if check_resumable is not None:
        check_resumable(folder, config)
    threads = getattr(config, "threads", 0)
    if threads:
        torch.set_num_threads(threads)
    job = pipeline.load("prepare")(config)
    how = RunChoices(preset=preset, sinks=(), profile=None, mirror="", hang_timeout=None)

    def loop(scratch: Path) -> None:
        with deterministic_algorithms(wanted=getattr(config, "deterministic", False)):
            job.train(scratch, how)

    return loop


def _loop_of_script(script: Path, words: Sequence[str]) -> Loop:
    """Return a function that runs a script as `python SCRIPT WORDS` does."""

    def loop(_: Path) -> None:
        argv = sys.argv
        path = sys.path[:]
        sys.argv = [str(script), *words]
        # Python puts the folder of a script first; runpy does not.
        sys.path.insert(0, os.fspath(script.absolute().parent))
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            sys.argv = argv
            sys.path[:] = path

    return loop


def _with_script(folder: Path) -> str:
    """Return the command line with the script that run.json names."""
    segments = read_manifest(folder).segments
    command = [str(word) for word in segments[-1].get("command", ())] if segments else []
    script = command[0] if command and command[0].endswith(".py") else "SCRIPT.py"
    rest = f" -- {shlex.join(command[1:])}" if len(command) > 1 else ""
    return f"fieldwatch replay {shlex.quote(script)} {shlex.quote(str(folder))} --step N{rest}"
