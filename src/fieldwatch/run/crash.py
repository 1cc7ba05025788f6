"""What is left behind when a run ends badly: one folder that says when, where and why."""

import faulthandler
import os
import shutil
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fieldwatch.base import DiskFull, InputError, lacks_space, output_path
from fieldwatch.checkpoint import FolderInUseError, FolderLock
from fieldwatch.monitor import STACKS, cause_of_error, last_checkpoint
from fieldwatch.record import History, WriterFailed, holds_run, versions
from fieldwatch.run.full_disk import say
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.recording import Recording

ROWS = 512
"""Values kept per metric."""

KEPT = "what was recorded up to here"
"""How the note begins that names an error's crash folder."""


def leave_crash(error: BaseException, step: int, recording: Recording, memory: RunMemory, resume: str) -> None:
    """Write ``crash/<time>/`` and note its place on the error; a full disk does not hide what happened.

    It holds the traceback, the stacks of all threads, the last rows of every metric, the first bad step, refusals,
    findings and versions; ``crash.json`` names the cause in one word, the last checkpoint and how to resume.

    Args:
        error: what ended the run.
        step: the step it happened in.
        recording: the record, which is drained and examined once more first, if it still works.
        memory: says why memory ran out, if that is what happened.
        resume: how to go on.
    """
    memory.make_room(error)
    try:
        if recording.failure is None:
            with suppress(DiskFull):  # what the record cannot take any more, the crash folder tells
                recording.finish()
                recording.flush()
        place = recording.waiting.run_required(lambda: _write(error, step, recording, memory, resume))
    except (OSError, InputError, WriterFailed) as trouble:
        told = f"{KEPT} could not be kept ({trouble}); the black box names the step"
        error.add_note(told)
        if lacks_space(trouble):
            say(f"fieldwatch: the disk is full, so that there is no crash folder: {error}; {told}; {resume}")
        return
    error.add_note(f"{KEPT}: {place}")
    if lacks_space(error):
        error.add_note(f"The disk is full: free space. {resume}")


def leave_crash_outside(error: BaseException, folder: Path) -> None:
    """Write ``crash/<time>/`` for an error outside of the run itself: before it began, or after it ended.

    Nothing is written where the folder holds no run, where the run has left a crash folder for this error already, or
    while another process writes into the folder.

    Args:
        error: what ended the training; the place is noted on it.
        folder: the run folder.
    """
    if not holds_run(folder) or any(note.startswith(KEPT) for note in getattr(error, "__notes__", ())):
        return
    try:
        with FolderLock(folder):
            place = _write_error(error, folder, {"where": "outside of the training's steps"})
    except (OSError, InputError, FolderInUseError) as trouble:
        error.add_note(f"no crash folder could be written ({trouble})")
        return
    error.add_note(f"{KEPT}: {place}")


def _write(error: BaseException, step: int, recording: Recording, memory: RunMemory, resume: str) -> Path:
    report = {
        "step": step,
        "first_bad": first_bad(recording.history),
        "refusals": list(recording.history.events("refusal"))[-20:],
        "findings": [finding.as_event() for finding in recording.findings],
        "rows_waiting": recording.waiting.rows,
        "resume": resume,
    }
    place = _write_error(error, recording.folder, report)
    with _whole_or_none(place):
        _write_rows(place / "rows.jsonl", recording.history)
        memory.explain(error, place, step)
    return place


@contextmanager
def _whole_or_none(place: Path) -> Generator[None]:
    """Delete a folder whose files could not all be written."""
    try:
        yield
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _write_error(error: BaseException, folder: Path, more: Mapping[str, Any]) -> Path:
    """Write the traceback, the stacks of all threads, and crash.json."""
    place = output_path(folder, "crash", datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
    place.mkdir(parents=True)
    with _whole_or_none(place):
        _fill(place, error, folder, more)
    return place


def _fill(place: Path, error: BaseException, folder: Path, more: Mapping[str, Any]) -> None:
    with (place / STACKS).open("w") as file:
        faulthandler.dump_traceback(file)
    (place / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    report = {
        "cause": cause_of_error(error).cause,
        "error": f"{type(error).__name__}: {error}",
        "last_checkpoint": last_checkpoint(folder),
        "pid": os.getpid(),
        "stacks": STACKS,
        "versions": versions(),
        **more,
    }
    (place / "crash.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2, default=str))


def _write_rows(path: Path, history: History) -> None:
    with path.open("wb") as file:
        for name in history.names():
            series = history[name].last(ROWS)
            values = [value if np.isfinite(value) else str(value) for value in series.values.tolist()]
            file.write(orjson.dumps({"metric": name, "steps": series.steps.tolist(), "values": values}) + b"\n")


def first_bad(history: History) -> dict[str, Any] | None:
    """The first step in the kept history with a value that is not finite, and the metrics that were not."""
    bad: dict[int, list[str]] = {}
    for name in history.names():
        series = history[name]
        wrong = np.flatnonzero(~np.isfinite(series.values))
        if len(wrong):
            bad.setdefault(int(series.steps[wrong[0]]), []).append(name)
    return {"step": min(bad), "metrics": bad[min(bad)]} if bad else None
