"""Finds the command that was asked for, runs it, and turns what went wrong into one clear message and an exit code."""

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from fieldwatch.cli.ending import BadInput
from fieldwatch.cli.supervise import is_supervised, supervise


class Command(NamedTuple):
    """A command: the module whose ``run(arguments)`` does it, and one line about it."""

    module: str
    about: str


COMMANDS = {
    "train video": Command("train_video", "train a neural video on frames or a video file (no data: a built-in clip)"),
    "train splats": Command("train_splats", "train Gaussians on the surface, from photos (no data: a built-in scene)"),
    "train normals": Command("train_normals", "train a surface on normal maps, poses optimised (no data: built-in)"),
    "train-many": Command("train_many", "train many scenes of a TOML file, on Ray: retries, resume, one comparison"),
    "resume": Command("resume", "continue a run with its stored config"),
    "eval": Command("evaluate", "metrics of a checkpoint on train and held-out data: CSV, JSON, pictures"),
    "memory": Command("memory", "where the memory of a run went: tensor logs, memory.jsonl, allocator snapshots"),
    "report": Command("report", "a run as one page to send: verdict, charts, tables, pictures; opens without network"),
    "growth": Command("growth", "every growth, prune and reset of a run: Gaussians, loss, PSNR, memory around it"),
    "health": Command("health", "what the rules find in a run: step, message, remedy"),
    "infer video": Command("infer_video", "draw frames, patches or the whole clip; search it by text or image"),
    "infer splats": Command(
        "infer_splats", "draw a trained scene: its photos' views, new cameras, paths; depth, normals"
    ),
    "infer normals": Command(
        "infer_normals", "a new normal map against a trained surface: its pose, depth, normals completed"
    ),
    "mesh extract": Command("mesh_extract", "from a splats run to a mesh: surface points, Poisson or fusion, clean-up"),
    "mesh refine": Command("mesh_refine", "train a mesh with Gaussians bound to its triangles, on the run's photos"),
    "mesh texture": Command("mesh_texture", "a texture atlas from the photos: OBJ with MTL and PNG, and GLB"),
    "mesh quality": Command("mesh_quality", "how good a mesh is: 37 figures, a grade, the reasons for it"),
    "mesh evaluate": Command("mesh_evaluate", "a mesh against the true one: Chamfer, F-score, normals, error picture"),
    "mesh view": Command("mesh_view", "stills, a turntable film, and a page that opens without network"),
    "data render-normals": Command(
        "data_render_normals", "normal maps of any mesh: exact normals, masks, depth, cameras on a ring"
    ),
    "export": Command(
        "export", "a run's record (Parquet, CSV, TensorBoard) and products (bitstream; PLY, 3DGS; meshes, poses)"
    ),
    "compare": Command("compare", "runs beside each other: which is better, and why; or a run's checkpoints, ranked"),
    "doctor": Command("doctor", "what machine this is, what is installed; what a data set holds and what is wrong"),
    "watch": Command("watch", "a run that another process trains, live: losses, memory, speed, findings, time left"),
    "gpu": Command("gpu", "watch the machine: GPUs, their processes, the runs on it"),
    "nsys snapshot": Command("nsys_snapshot", "some seconds of a running command with Nsight Systems"),
    "nsys train": Command("nsys_train", "run a command under Nsight Systems: whole, some steps, or on a finding"),
    "tensorboard": Command("tensorboard", "start TensorBoard on runs, on localhost"),
    "completion": Command("completion", "a script for tab completion: bash, zsh, fish"),
}
"""Every command, by the words it is called with."""

USAGE, INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 done or healthy, 1 finished with findings, 2 wrong usage or bad input, 3 diverged or failed,
        4 supervised and given up, 128 and the signal (130, 143, 138, 129) interrupted after saving.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        _print_help()
        return 0
    if words[0] == "--version":
        sys.stdout.write(f"fieldwatch {metadata.version('fieldwatch')}\n")
        return 0
    name = _find(words)
    if name is None:
        return _unknown(words)
    return _run(name, words[len(name.split()) :])


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command, and tell what ended it."""
    if is_supervised(name, arguments):
        return supervise(name, arguments)
    module = import_module(f"fieldwatch.cli.{COMMANDS[name].module}")
    try:
        return int(module.run(arguments))
    except BadInput as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]fieldwatch {name}:[/] ", end="")
        sys.stderr.write(f"{error}\n")
        return USAGE
    except KeyboardInterrupt:  # a training saves first, and ends by itself; all else leaves nothing half written
        sys.stderr.write(f"\nfieldwatch {name}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe (`| head`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _find(words: Sequence[str]) -> str | None:
    return next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)


def _unknown(words: Sequence[str]) -> int:
    asked = " ".join(word for word in words[:2] if not word.startswith("-"))
    near = difflib.get_close_matches(asked, COMMANDS, n=1, cutoff=0.4)
    hint = f"; did you mean `fieldwatch {near[0]}`?" if near else ""
    sys.stderr.write(f"fieldwatch: there is no command {asked!r}{hint} Commands: {', '.join(COMMANDS)}\n")
    return USAGE


def _print_help() -> None:
    console = Console()
    console.print("[bold]fieldwatch[/]: train neural reconstructions in plain sight, and do not lose the run.\n")
    table = Table.grid(padding=(0, 3))
    for name, command in COMMANDS.items():
        table.add_row(f"  [bold]fieldwatch {name}[/]", command.about)
    console.print(table)
    begin = ", ".join(f"[bold]fieldwatch train {what}[/]" for what in ("video", "splats", "normals"))
    console.print(f"\nEvery command explains itself with --help. To begin: {begin}")
    console.print('Tab completion: eval "$(fieldwatch completion bash)" (or zsh, fish)', highlight=False)
