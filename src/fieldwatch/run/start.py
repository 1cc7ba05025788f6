"""The two ends of a run: may it begin in this folder, and how did it end."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fieldwatch.guard import Diverged
from fieldwatch.record import State, holds_run, read_manifest, refuse_mismatch

Resume = Literal["auto", "never", "must"]


class Interrupted(SystemExit):
    """A signal came, the run has ended in order. Exits with 143 (SIGTERM), 130 (SIGINT), 138 (SIGUSR1), 129 (SIGHUP).

    The step was finished and saved; or it was given up at a stop point: then the last checkpoint stands.
    """


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


def end_state(error: BaseException | None) -> State:
    """How a segment ended, in one word."""
    if error is None:
        return "finished"
    if isinstance(error, Diverged):
        return "diverged"
    return "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else "failed"


def note_end(folder: Path, state: State) -> None:
    """Write the end into the manifest of a run that had begun."""
    if holds_run(folder):
        replace(read_manifest(folder), state=state).write(folder)
