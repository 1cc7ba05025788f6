"""Crash folder of a failed run: traceback, stacks, last rows and cause."""

import faulthandler
import os
import shutil
import traceback
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fieldwatch.base import DiskFullError, InputError, lacks_space, output_path
from fieldwatch.checkpoint import FolderInUseError, FolderLock
from fieldwatch.health import replay_command
from fieldwatch.monitor import STACKS, cause_of_error, last_checkpoint
from fieldwatch.record import History, WriterFailed, holds_run, tags, versions
from fieldwatch.run.full_disk import print_error
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.run_record import RunRecord

ROWS_PER_METRIC = 512
"""Number of latest values per metric in the crash folder."""

LOOK_CLOSER = "look closer"
"""Prefix of the note on an exception that names the command which replays the step."""
CRASH_NOTE = "crash folder"
"""Prefix of the note on an exception that names its crash folder."""


def leave_crash(error: BaseException, step: int, record: RunRecord, memory: RunMemory, resume: str) -> None:
    """Write ``crash/<time>/``, and add a note with its path to the error. A full disk does not replace the error.

    The folder contains the traceback, the stacks of all threads, the last rows of every metric, the first bad step,
    refusals, findings and versions; ``crash.json`` contains the cause in one word, the last checkpoint and how to
    resume.

    Args:
        error: exception that ended the run.
        step: step in which it was raised.
        record: record of the run; if it still works, it is drained and its rules are evaluated first.
        memory: memory measurement of the run, which diagnoses an out-of-memory error. Its reserve has been released.
        resume: sentence that explains how to resume.
    """
    try:
        # A record whose thread has stopped cannot be drained: waiting for it would raise its error here.
        if record.failure is None:
            # Rows that the record cannot write any more are in the crash folder.
            with suppress(DiskFullError):
                record.finish()
                record.flush()
        # On a full disk, this releases the reserved blocks and tries again.
        crash_folder = record.waiting.run_required(lambda: _write(error, step, record, memory, resume))
    except (OSError, InputError, WriterFailed) as failure:
        note = f"{CRASH_NOTE} could not be written ({failure}); the black box contains the step"
        error.add_note(note)
        if lacks_space(failure):
            print_error(f"fieldwatch: no crash folder, since the disk is full: {error}; {note}; {resume}")
        return
    error.add_note(f"{CRASH_NOTE}: {crash_folder}")
    look = replay_command(record.folder, _step_to_replay(record.history, step))
    if look:
        error.add_note(f"{LOOK_CLOSER}: {look}")
    if lacks_space(error):
        error.add_note(f"The disk is full: free space. {resume}")


def leave_crash_outside(error: BaseException, folder: Path) -> None:
    """Write ``crash/<time>/`` for an error before the run was entered, or after it ended.

    Nothing is written if the folder contains no run, if the run has already written a crash folder for this error, or
    while another process has locked the folder.

    Args:
        error: exception that ended the training; gets a note with the path.
        folder: run folder.
    """
    # The note shows that the run has already written a crash folder for this error.
    if not holds_run(folder) or any(note.startswith(CRASH_NOTE) for note in getattr(error, "__notes__", ())):
        return
    try:
        # Another process may have resumed the run meanwhile.
        with FolderLock(folder):
            crash_folder = _write_error(error, folder, {"where": "outside of the training steps"})
    except (OSError, InputError, FolderInUseError) as failure:
        error.add_note(f"no crash folder could be written ({failure})")
        return
    error.add_note(f"{CRASH_NOTE}: {crash_folder}")


def _write(error: BaseException, step: int, record: RunRecord, memory: RunMemory, resume: str) -> Path:
    bad = first_bad(record.history)
    report = {
        "step": step,
        "look_closer": replay_command(record.folder, _step_to_replay(record.history, step)),
        "first_bad": bad,
        "refusals": list(record.history.events("refusal"))[-20:],
        "findings": [finding.as_event() for finding in record.findings],
        "rows_waiting": record.waiting.rows,
        "resume": resume,
    }
    crash_folder = _write_error(error, record.folder, report)
    with _remove_if_incomplete(crash_folder):
        _write_rows(crash_folder / "rows.jsonl", record.history)
        memory.explain(error, crash_folder, step)
    return crash_folder


@contextmanager
def _remove_if_incomplete(crash_folder: Path) -> Generator[None]:
    """Delete the folder if not all of its files could be written."""
    try:
        yield
    except OSError:
        shutil.rmtree(crash_folder, ignore_errors=True)
        raise


def _write_error(error: BaseException, folder: Path, more: Mapping[str, Any]) -> Path:
    """Write the traceback, the stacks of all threads, and crash.json."""
    crash_folder = output_path(folder, "crash", datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ"))
    crash_folder.mkdir(parents=True)
    with _remove_if_incomplete(crash_folder):
        _write_files(crash_folder, error, folder, more)
    return crash_folder


def _write_files(crash_folder: Path, error: BaseException, folder: Path, more: Mapping[str, Any]) -> None:
    with (crash_folder / STACKS).open("w") as file:
        faulthandler.dump_traceback(file)
    (crash_folder / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    report = {
        "cause": cause_of_error(error).cause,
        "error": f"{type(error).__name__}: {error}",
        "last_checkpoint": last_checkpoint(folder),
        "pid": os.getpid(),
        "stacks": STACKS,
        "versions": versions(),
        **more,
    }
    # Facts of events may have types that JSON lacks.
    (crash_folder / "crash.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2, default=str))


def _write_rows(path: Path, history: History) -> None:
    with path.open("wb") as file:
        for name in history.names():
            series = history[name].last(ROWS_PER_METRIC)
            # JSON has no NaN and no infinity.
            values = [value if np.isfinite(value) else str(value) for value in series.values.tolist()]
            file.write(orjson.dumps({"metric": name, "steps": series.steps.tolist(), "values": values}) + b"\n")


def _step_to_replay(history: History, last: int) -> int:
    """Return the first step with a loss or a gradient that is not finite, or else the last step.

    A step whose update overflows has finite ones: the operation that a replay looks for is in the step after it.
    """
    losses_and_norms = [
        name for name in history.names() if tags.kind(name) == tags.LOSS or tags.GRADIENT_NORM.part(name) is not None
    ]
    bad = first_bad(history, losses_and_norms)
    return last if bad is None else bad["step"]


def first_bad(history: History, names: Iterable[str] | None = None) -> dict[str, Any] | None:
    """Return the first step in the history with a non-finite value, and the names of its metrics.

    Args:
        history: record of the run.
        names: metrics to look at; None for all.
    """
    first_by_step: dict[int, list[str]] = {}
    for name in history.names() if names is None else names:
        series = history[name]
        non_finite = np.flatnonzero(~np.isfinite(series.values))
        if len(non_finite):
            first_by_step.setdefault(int(series.steps[non_finite[0]]), []).append(name)
    return {"step": min(first_by_step), "metrics": first_by_step[min(first_by_step)]} if first_by_step else None
