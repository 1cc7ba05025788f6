"""What is left behind when a run ends badly: one folder that says when, where and why."""

import faulthandler
import os
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from fieldwatch.monitor import STACKS, cause_of_error, last_checkpoint
from fieldwatch.record import History, WriterFailed, versions
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.recording import Recording

ROWS = 512
"""Values kept per metric."""


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
        place = _write(error, step, recording, memory, resume)
    except (OSError, WriterFailed) as trouble:
        error.add_note(f"what was recorded up to here could not be kept ({trouble}); the black box names the step")
        return
    error.add_note(f"what was recorded up to here: {place}")


def _write(error: BaseException, step: int, recording: Recording, memory: RunMemory, resume: str) -> Path:
    if recording.failure is None:
        recording.finish()
        recording.flush()
    place = recording.folder / "crash" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    place.mkdir(parents=True)
    with (place / STACKS).open("w") as file:
        faulthandler.dump_traceback(file)
    (place / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    report = {
        "cause": cause_of_error(error).cause,
        "error": f"{type(error).__name__}: {error}",
        "step": step,
        "last_checkpoint": last_checkpoint(recording.folder),
        "pid": os.getpid(),
        "stacks": STACKS,
        "first_bad": first_bad(recording.history),
        "refusals": list(recording.history.events("refusal"))[-20:],
        "findings": [finding.as_event() for finding in recording.findings],
        "versions": versions(),
        "resume": resume,
    }
    (place / "crash.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2, default=str))
    _write_rows(place / "rows.jsonl", recording.history)
    memory.explain(error, place, step)
    return place


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
