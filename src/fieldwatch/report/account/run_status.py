"""Facts about a run as a whole: its state, its progress, and the command that resumes it."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fieldwatch.base.json_values import as_list, as_mapping, as_objects, is_count
from fieldwatch.monitor import Heartbeat, RunState, read_black_box, read_post_mortems, state_of
from fieldwatch.record import EVENTS, JOURNAL, History, Manifest


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State and progress of a run.

    Attributes:
        state: state of the run, as in all other views.
        last: last recorded step; None before the first.
        planned: planned number of steps; None if unknown.
        updated: time of the last change of the record, in seconds since 1970.
        beat: last heartbeat; None if the run wrote none.
        crashes: post-mortems, oldest first.
    """

    state: RunState
    last: int | None
    planned: int | None
    updated: float
    beat: Heartbeat | None
    crashes: Sequence[Mapping[str, Any]]

    @property
    def crash(self) -> Mapping[str, Any] | None:
        """The crash that ended the run; None if it ended normally or was resumed."""
        if not self.state.broken or not self.crashes:
            return None
        last = self.crashes[-1]
        # Of another process, it belongs to an earlier start; the last one died without a report.
        return last if self.beat is None or last.get("pid", self.beat.pid) == self.beat.pid else None


def run_status(folder: Path, history: History, events: Sequence[Mapping[str, Any]]) -> RunStatus:
    """Read the status of a run folder."""
    # Every start declares its plan, and --steps may have changed: the last one counts.
    plans = [event for event in events if event.get("kind") == "plan"]
    planned = plans[-1].get("steps") if plans else None
    return RunStatus(
        state=state_of(folder),
        last=history.step if history.step >= 0 else None,
        planned=planned if is_count(planned) else None,
        updated=_updated(folder),
        beat=read_black_box(folder),
        crashes=read_post_mortems(folder),
    )


def run_facts(folder: Path, manifest: Manifest, history: History, status: RunStatus) -> dict[str, Any]:
    """Return the entry ``run`` of the account."""
    pipeline = as_mapping(manifest.about).get("pipeline")
    segments = as_objects(manifest.segments)
    # The duration is that of a metric of every step: evaluations end earlier.
    names = [name for name in ("Time/step", "Loss/total") if name in history] or list(history.names())[:1]
    rows = max((len(history[name]) for name in history.names()), default=0)
    last = max((float(history[name].seconds[-1]) for name in names if len(history[name])), default=0.0)
    return {
        "name": readable(folder.resolve().name),
        "folder": readable(folder.resolve()),
        "pipeline": pipeline if isinstance(pipeline, str) else None,
        "state": status.state.word,
        "first_step": max(history.first, 0),
        "last_step": status.last,
        "steps_planned": status.planned,
        "rows": rows,
        "seconds": round(last, 3),
        "started": str(segments[0].get("started", "")) if segments else "",
        "updated": _iso(status.updated),
        "segments": [_segment(number, segment) for number, segment in enumerate(segments, 1)],
        "resume": status.state.resume,
    }


def readable(path: Path | str) -> str:
    """Return a path as text that JSON can hold: bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path).decode(errors="replace")


def command_of(segment: Mapping[str, Any]) -> str:
    """Return the command line that started a segment."""
    # A list in our records; user code may have written one text.
    command = segment.get("command", "")
    return shlex.join(map(str, as_list(command))) or (command if isinstance(command, str) else "")


def _segment(number: int, segment: Mapping[str, Any]) -> dict[str, Any]:
    resume = segment.get("step", 0)
    return {
        "number": number,
        "resume": resume if is_count(resume) else 0,
        "started": str(segment.get("started", "")),
        "command": command_of(segment),
        "host": str(segment.get("host", "")),
        "pid": segment.get("pid", 0),
    }


def _updated(folder: Path) -> float:
    # Not the heartbeat, which also changes while nothing is recorded.
    times = [path.stat().st_mtime for path in (folder / JOURNAL, folder / EVENTS, folder / "run.json") if path.exists()]
    return max(times, default=0.0)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
