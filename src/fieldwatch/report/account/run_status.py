"""The facts about a run as a whole: how it stands, how far it came, how to go on with it."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fieldwatch.monitor import Heartbeat, RunState, read_black_box, read_post_mortems, state_of
from fieldwatch.record import EVENTS, JOURNAL, History, Manifest
from fieldwatch.report.account.json_values import as_list, as_mapping, as_objects, is_count


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run is.

    Attributes:
        state: how it stands, as every other part of fieldwatch says it.
        last: the last recorded step; None before the first.
        planned: steps that the run means to take; None where it did not say.
        updated: last change of the record, seconds since 1970.
        beat: the last sign of life, where there is a black box.
        crashes: what was written about deaths, oldest first.
    """

    state: RunState
    last: int | None
    planned: int | None
    updated: float
    beat: Heartbeat | None
    crashes: Sequence[Mapping[str, Any]]

    @property
    def crash(self) -> Mapping[str, Any] | None:
        """The death that the run has not gone on from; None where it ended in order or goes on."""
        if not self.state.broken or not self.crashes:
            return None
        last = self.crashes[-1]
        return last if self.beat is None or last.get("pid", self.beat.pid) == self.beat.pid else None


def run_status(folder: Path, history: History, events: Sequence[Mapping[str, Any]]) -> RunStatus:
    """Look at a run folder, once."""
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
    """Return the account's ``run``."""
    pipeline = as_mapping(manifest.about).get("pipeline")
    segments = as_objects(manifest.segments)
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
        "segments": [_segment(number, one) for number, one in enumerate(segments, 1)],
        "resume": status.state.resume,
    }


def readable(path: Path | str) -> str:
    """Return a path as text that can be written as JSON: bytes that are no UTF-8 become a mark."""
    return os.fsencode(path).decode(errors="replace")


def command_of(segment: Mapping[str, Any]) -> str:
    """Return the command line that started a segment."""
    command = segment.get("command", "")
    return shlex.join(map(str, as_list(command))) or (command if isinstance(command, str) else "")


def _segment(number: int, told: Mapping[str, Any]) -> dict[str, Any]:
    resume = told.get("step", 0)
    return {
        "number": number,
        "resume": resume if is_count(resume) else 0,
        "started": str(told.get("started", "")),
        "command": command_of(told),
        "host": str(told.get("host", "")),
        "pid": told.get("pid", 0),
    }


def _updated(folder: Path) -> float:
    times = [path.stat().st_mtime for path in (folder / JOURNAL, folder / EVENTS, folder / "run.json") if path.exists()]
    return max(times, default=0.0)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
