"""``fieldwatch tensorboard RUN...``: start TensorBoard on runs, with the tab "fieldwatch"."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fieldwatch.cli.flag_help import HELP, HELP_ALL, flag_fields, read_flags
from fieldwatch.cli.output import BadInput


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Start TensorBoard on one or more runs, on this machine only; its tab "fieldwatch" shows the report, live.

    Other flags are passed to TensorBoard, with everything that follows them.

    Example: fieldwatch tensorboard runs/bunny runs/bunny-literal --port 6007
    Example: fieldwatch tensorboard runs/bunny --reload_interval 5
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders that hold runs."""
    port: int = 6006
    """Port to listen on."""
    bind_all: bool = False
    """Listen on all addresses: everyone who can reach this machine can see the runs."""
    print_only: Annotated[bool, tyro.conf.arg(name="print")] = field(default=False)
    """Print the command instead of starting it."""


def command(runs: Sequence[Path], *, port: int = 6006, bind_all: bool = False) -> list[str]:
    """Return the TensorBoard command for some runs.

    Raises:
        BadInput: TensorBoard's list of folders cannot hold a folder's name.
    """
    whole = [sys.executable, "-m", "tensorboard.main", "--port", str(port)]
    # TensorBoard has no access control: localhost unless asked otherwise.
    whole += ["--bind_all"] if bind_all else ["--host", "localhost"]
    if len(runs) == 1:
        return [*whole, "--logdir", str(_events_of(runs[0]))]
    parts = [f"{name}:{_listable(_events_of(run))}" for name, run in zip(_names(runs), runs, strict=True)]
    return [*whole, "--logdir_spec", ",".join(parts)]


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    own, passed_on = split_flags(arguments)
    chosen = read_flags(Arguments, prog="fieldwatch tensorboard", arguments=own)
    missing = [folder for folder in chosen.runs if not folder.is_dir()]
    if missing or not chosen.runs:
        wanted = "give the folders that `fieldwatch train` printed"
        raise BadInput(f"{missing[0]} is not a folder: {wanted}" if missing else f"no run was named: {wanted}")
    line = [*command(chosen.runs, port=chosen.port, bind_all=chosen.bind_all), *passed_on]
    if chosen.print_only:
        sys.stdout.write(" ".join(line) + "\n")
        return 0
    import tensorboard  # noqa: F401, PLC0415  optional: asked for here, so that a missing one is named before the start

    return subprocess.run(line, check=False).returncode  # noqa: S603  our own interpreter, folders checked above


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line at the first flag that is TensorBoard's.

    Returns:
        The words of this command, and those for TensorBoard. ``--print`` is ours wherever it is.
    """
    flags = [each for each in flag_fields(Arguments) if not each.positional]
    own = {*HELP, HELP_ALL, *(word for each in flags for word in each.spellings)}
    words = [word for word in arguments if word != "--print"]
    foreign = (i for i, word in enumerate(words) if word.startswith("--") and word.partition("=")[0] not in own)
    at = next(foreign, len(words))
    printing = ["--print"] if len(words) < len(arguments) else []
    return [*words[:at], *printing], words[at:]


def _events_of(folder: Path) -> Path:
    # The whole run folder also works, but TensorBoard would search all of it.
    inside = folder / "tensorboard"
    return inside if inside.is_dir() else folder


def _listable(folder: Path) -> Path:
    if "," in str(folder):
        raise BadInput(
            f"{str(folder)!r} has a comma in its name, which TensorBoard takes for the end of a folder when it shows "
            "several: give it alone, or give the folder that holds the runs"
        )
    return folder


def _names(runs: Sequence[Path]) -> list[str]:
    """Return a name per run: that of its folder, with as many parent folders as are needed to make it unique."""
    # Not resolved: a link's own name is the one that the user knows.
    parts = [[part for part in Path(os.path.abspath(run)).parts if part != os.sep] for run in runs]  # noqa: PTH100  a link keeps its name
    names = [_name(own, [other for other in parts if other != own]) for own in parts]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def _name(parts: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    lengths = range(1, len(parts) + 1)
    # The shortest suffix of the path that no other run has.
    enough = next((n for n in lengths if all(other[-n:] != parts[-n:] for other in others)), len(parts))
    return "/".join(parts[-enough:]).replace(",", "_").replace(":", "_") or "root"
