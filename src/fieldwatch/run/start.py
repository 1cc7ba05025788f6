"""The two ends of a run: may it begin in this folder, and how did it end."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fieldwatch.record import State, holds_run, read_manifest, refuse_mismatch

Resume = Literal["auto", "never", "must"]


class Interrupted(SystemExit):
    """SIGTERM or SIGINT came: the step was finished and saved. Exits with 143 or 130."""


def check_folder(folder: Path, config: Mapping[str, Any], resume: Resume) -> bool:
    """Whether the run in this folder is to be continued.

    Raises:
        ConfigMismatch: it holds a run with another config.
        FileExistsError: it holds a run, and ``resume`` is ``never``; or it is a file.
        FileNotFoundError: it holds none, and ``resume`` is ``must``.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: a run needs a folder of its own, choose another with --out")
    found = holds_run(folder)
    if found and resume == "never":
        raise FileExistsError(f"{folder} holds a run already: choose another folder, or continue it (resume='auto')")
    if not found and resume == "must":
        raise FileNotFoundError(
            f"{folder} holds no run to resume: check the path, or start one with `fieldwatch train`"
        )
    if found:
        refuse_mismatch(folder, read_manifest(folder).config, config)
    return found


def end_state(error: BaseException | None, *, diverged: bool) -> State:
    """How a segment ended, in one word."""
    if error is None:
        return "finished"
    if diverged:
        return "diverged"
    return "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"


def note_end(folder: Path, state: State) -> None:
    """Write the end into the manifest of a run that had begun."""
    if holds_run(folder):
        replace(read_manifest(folder), state=state).write(folder)
