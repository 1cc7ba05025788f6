"""Post-mortems in ``crash/<time>/`` of processes that died silently, written by the supervisor or the next process."""

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
from fieldwatch.monitor.known_errors import advice_for

CRASH: Final = "crash"
REPORT: Final = "crash.json"
NOTE: Final = "end.json"
_CHECKPOINT: Final = re.compile(r"(?:step|ckpt)_(\d{6,19})(?:\.\d{1,9})?")
_SEGMENT: Final = "=== process "
_TAIL: Final = 1 << 20
"""Number of bytes at the end of ``stacks.txt`` that are read."""


def last_checkpoint(folder: Path, beat: Heartbeat | None = None) -> int | None:
    """Return the highest step with a complete checkpoint in the run folder or in the black box; None without any.

    Only the names of files are examined; hashes are verified when the checkpoint is loaded.
    """
    steps = [beat.saved] if beat is not None and beat.saved >= 0 else []
    checkpoints = folder / "checkpoints"
    for path in checkpoints.iterdir() if checkpoints.is_dir() else ():
        name = _CHECKPOINT.fullmatch(path.name)
        # manifest.sha256 is written last, so its presence means that the checkpoint is complete.
        if name is not None and (path / "manifest.sha256").exists():
            steps.append(int(name[1]))
    return max(steps, default=None)


def resume_command(folder: Path) -> str:
    """Return the command that resumes a run, from any folder; bytes of the path that are not UTF-8 are replaced."""
    return f"fieldwatch resume {shlex.quote(os.fsencode(folder.absolute()).decode(errors='replace'))}"


def heading(attempt: int) -> str:
    """Return the line that starts a process's part of ``stacks.txt``."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"{_SEGMENT}{os.getpid()}, attempt {attempt}, since {now} ===\n"


def last_stacks(folder: Path, pid: int) -> str:
    """Return the output of `faulthandler` for a process if it was the last one to write; else an empty string."""
    try:
        with (folder / FOLDER / STACKS).open("rb") as file:
            # Read only the end, because the file of an often restarted run is long.
            file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    head, _, text_of_process = text.rpartition(_SEGMENT)
    if not text_of_process.startswith(f"{pid},"):
        return ""
    return text_of_process.partition("\n")[2] if head or _ else ""


def write_post_mortem(folder: Path, death: Death, beat: Heartbeat) -> Path:
    """Write ``crash/<time>/`` for a process that could not do so itself, and mark its black box as reported.

    The folder contains ``crash.json`` (cause, step, phase, last checkpoint, resume command) and ``stacks.txt``, if
    there are stack traces.

    Args:
        folder: run folder.
        death: cause of the end.
        beat: black box of the process.

    Returns:
        The crash folder.

    Raises:
        OSError: if the disk is full or read-only.
    """
    # Microseconds keep the names of quick restarts distinct, and sorted by time.
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
    # Last, so that a full disk leaves the death to be reported again.
    mark_explained(folder)
    return crash


def leave_note(folder: Path, death: Death, step: int) -> None:
    """Write ``black_box/end.json``: why the run's last process ended, at which step, and how to resume.

    If the disk cannot be written, the note is omitted; the black box contains the same information.
    """
    report = {
        "cause": death.cause,
        "error": death.detail,
        "step": step,
        "last_checkpoint": last_checkpoint(folder),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "resume": resume_command(folder),
    }
    # A full disk must not turn an orderly end into a crash.
    with suppress(OSError):
        write_file(output_path(folder, FOLDER, NOTE), orjson.dumps(report, option=orjson.OPT_INDENT_2))


def explain_silent_end(folder: Path) -> tuple[Death, Heartbeat, Path] | None:
    """Write the post-mortem of the run's last process if it died silently.

    The caller must hold the lock of the folder, which guarantees that the process is gone.

    Returns:
        The cause, the black box and the crash folder; None if the end was orderly or has already been reported.

    Raises:
        OSError: if the disk is full or read-only.
    """
    beat = read_black_box(folder)
    # A black box that still says "running" without a process is a silent death.
    if beat is None or beat.ending != "running":
        return None
    death = cause_without_status(beat, last_stacks(folder, beat.pid))
    return death, beat, write_post_mortem(folder, death, beat)


def read_post_mortems(folder: Path) -> list[dict[str, Any]]:
    """Read every ``crash/<time>/crash.json`` of a run, oldest first, each with its folder as ``place``.

    A report that cannot be read contains only its ``place``. One of a common error has ``advice``.
    """
    folders = sorted((folder / CRASH).glob("*/")) if (folder / CRASH).is_dir() else []
    return [{**_with_advice(_report(path / REPORT)), "place": str(path.relative_to(folder))} for path in folders]


def _with_advice(report: dict[str, Any]) -> dict[str, Any]:
    advice = advice_for(str(report.get("error", "")))
    return {**report, "advice": advice} if advice else report


def _report(path: Path) -> dict[str, Any]:
    try:
        report = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return cast("dict[str, Any]", report) if isinstance(report, dict) else {}
