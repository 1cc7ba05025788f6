"""``fieldwatch tensorboard RUN...``: TensorBoard on the right folders."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fieldwatch.cli.ending import BadInput


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Start TensorBoard on one or more runs, on this machine only.

    Example: fieldwatch tensorboard runs/bunny runs/bunny-literal --port 6007
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders that hold runs."""
    port: int = 6006
    """Port to listen on."""
    bind_all: bool = False
    """Listen on all addresses: anyone who can reach this machine can look."""
    print_only: Annotated[bool, tyro.conf.arg(name="print")] = field(default=False)
    """Print the command instead of starting it."""


def command(runs: Sequence[Path], *, port: int = 6006, bind_all: bool = False) -> list[str]:
    """The TensorBoard command for some runs."""
    whole = [sys.executable, "-m", "tensorboard.main", "--port", str(port)]
    whole += ["--bind_all"] if bind_all else ["--host", "localhost"]
    if len(runs) == 1:
        return [*whole, "--logdir", str(_events_of(runs[0]))]
    return [*whole, "--logdir_spec", ",".join(f"{run.name}:{_events_of(run)}" for run in runs)]


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = tyro.cli(Arguments, prog="fieldwatch tensorboard", args=arguments)
    missing = [folder for folder in chosen.runs if not folder.is_dir()]
    if missing or not chosen.runs:
        wanted = "give the folders that `fieldwatch train` printed"
        raise BadInput(f"{missing[0]} is not a folder: {wanted}" if missing else f"no run was named: {wanted}")
    line = command(chosen.runs, port=chosen.port, bind_all=chosen.bind_all)
    if chosen.print_only:
        sys.stdout.write(" ".join(line) + "\n")
        return 0
    return subprocess.run(line, check=False).returncode  # noqa: S603  our own interpreter, folders checked above


def _events_of(folder: Path) -> Path:
    inside = folder / "tensorboard"
    return inside if inside.is_dir() else folder
