"""What is known about a process that died without a word: ``crash/<time>/``, written by whoever comes after it."""

import os
import re
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import orjson

from fieldwatch.base import output_path, write_file
from fieldwatch.monitor.black_box import FOLDER, STACKS, Heartbeat, mark_explained, read_black_box
from fieldwatch.monitor.causes import Death, cause_without_status

CRASH: Final = "crash"
REPORT: Final = "crash.json"
NOTE: Final = "end.json"
_CHECKPOINT: Final = re.compile(r"(?:step|ckpt)_(\d{6,19})(?:\.\d{1,9})?")
_SEGMENT: Final = "=== process "
_TAIL: Final = 1 << 20
"""Bytes of ``stacks.txt`` that are looked at, from its end."""


def last_checkpoint(folder: Path, beat: Heartbeat | None = None) -> int | None:
    """The highest step that has a whole checkpoint in the run folder, or that the black box names; None without any.

    Only names and manifests are looked at: whether the hashes are right shows when it is loaded.
    """
    steps = [beat.saved] if beat is not None and beat.saved >= 0 else []
    checkpoints = folder / "checkpoints"
    for path in checkpoints.iterdir() if checkpoints.is_dir() else ():
        name = _CHECKPOINT.fullmatch(path.name)
        if name is not None and (path / "manifest.sha256").exists():
            steps.append(int(name[1]))
    return max(steps, default=None)


def resume_command(folder: Path) -> str:
    """The command that goes on with a run, from any folder; bytes of a path that are no UTF-8 become a mark."""
    return f"fieldwatch resume {shlex.quote(os.fsencode(folder.absolute()).decode(errors='replace'))}"


def heading(attempt: int) -> str:
    """The line that begins a process's part of ``stacks.txt``."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{_SEGMENT}{os.getpid()}, attempt {attempt}, since {now} ===\n"


def last_stacks(folder: Path, pid: int) -> str:
    """What `faulthandler` wrote of one process, the last one that wrote; empty where it wrote nothing."""
    try:
        with (folder / FOLDER / STACKS).open("rb") as file:
            # Only the end: a run that was restarted often has a long file.
            file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    head, _, text_of_process = text.rpartition(_SEGMENT)
    if not text_of_process.startswith(f"{pid},"):
        return ""
    return text_of_process.partition("\n")[2] if head or _ else ""


def write_post_mortem(folder: Path, death: Death, beat: Heartbeat) -> Path:
    """Write ``crash/<time>/`` about a process that could not do so itself, and note in the black box that it is told.

    It holds ``crash.json`` (cause, step, phase, last checkpoint, how to resume) and ``stacks.txt``, if there are any.

    Args:
        folder: the run folder.
        death: what ended it.
        beat: its black box.

    Returns:
        The crash folder.

    Raises:
        OSError: the disk is full or read-only.
    """
    crash = output_path(folder, CRASH, datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
    crash.mkdir(parents=True)
    stacks = last_stacks(folder, beat.pid)
    if stacks:
        (crash / STACKS).write_text(stacks)
    report = {
        "cause": death.cause,
        "error": death.detail,
        "step": beat.step,
        "phase": beat.phase,
        "last_sign_of_life": beat.when,
        "last_checkpoint": last_checkpoint(folder, beat),
        "pid": beat.pid,
        "attempt": beat.attempt,
        "stacks": STACKS if stacks else None,
        "resume": resume_command(folder),
    }
    (crash / REPORT).write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    mark_explained(folder)
    return crash


def leave_note(folder: Path, death: Death, step: int) -> None:
    """Write ``black_box/end.json``: why the run's last process ended in order, at which step, and how to go on.

    On a disk that takes nothing there is no note; the black box itself says the same.
    """
    report = {
        "cause": death.cause,
        "error": death.detail,
        "step": step,
        "last_checkpoint": last_checkpoint(folder),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "resume": resume_command(folder),
    }
    # A run that ends on a full disk must still end in order.
    with suppress(OSError):
        write_file(output_path(folder, FOLDER, NOTE), orjson.dumps(report, option=orjson.OPT_INDENT_2))


def explain_silent_end(folder: Path) -> tuple[Death, Heartbeat, Path] | None:
    """Write the post-mortem of a process that died without a word, if the run's last one did; for who takes its folder.

    The caller holds the folder's lock, so that the process is surely gone.

    Returns:
        What ended it, its black box and the crash folder; None where it ended in order, or was told of already.

    Raises:
        OSError: the disk is full or read-only.
    """
    beat = read_black_box(folder)
    if beat is None or beat.ending != "running":
        return None
    death = cause_without_status(beat, last_stacks(folder, beat.pid))
    return death, beat, write_post_mortem(folder, death, beat)


def read_post_mortems(folder: Path) -> list[dict[str, Any]]:
    """Read every ``crash/<time>/crash.json`` of a run, oldest first, each with its folder as ``place``.

    One that cannot be read (a full disk) stands there with its folder alone.
    """
    folders = sorted((folder / CRASH).glob("*/")) if (folder / CRASH).is_dir() else []
    return [{**_report(path / REPORT), "place": str(path.relative_to(folder))} for path in folders]


def _report(path: Path) -> dict[str, Any]:
    try:
        report = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return cast("dict[str, Any]", report) if isinstance(report, dict) else {}
