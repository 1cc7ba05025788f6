"""How a run stands: what it says of itself, and whether the process that should be working on it still lives."""

import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from fieldwatch.monitor import Heartbeat, read_black_box, read_post_mortems
from fieldwatch.record import EVENTS, JOURNAL, History, Manifest
from fieldwatch.report.account.json_values import as_list, as_mapping, as_objects, is_count

SILENT = 900.0
"""Seconds without a sign of life after which a run of another machine counts as dead."""
DEAD = ("failed", "diverged", "killed")
"""States of a run that did not end in order."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_ENDED_WELL = ("finished", "interrupted", "diverged", "failed")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run is.

    Attributes:
        state: of the manifest; ``killed`` where it says running and the process is gone.
        last: the last recorded step; None before the first.
        planned: steps that the run means to take; None where it did not say.
        updated: last change of the record, seconds since 1970.
        beat: the last sign of life, where there is a black box.
        crashes: what was written about deaths, oldest first.
    """

    state: str
    last: int | None
    planned: int | None
    updated: float
    beat: Heartbeat | None
    crashes: Sequence[Mapping[str, Any]]

    @property
    def crash(self) -> Mapping[str, Any] | None:
        """The death that the run has not gone on from; None where it ended in order or goes on."""
        if self.state not in DEAD or not self.crashes:
            return None
        last = self.crashes[-1]
        return last if self.beat is None or last.get("pid", self.beat.pid) == self.beat.pid else None


def standing_of(folder: Path, manifest: Manifest, history: History, events: Sequence[Mapping[str, Any]]) -> Standing:
    """Look at a run folder, once."""
    beat = read_black_box(folder)
    plans = [event for event in events if event.get("kind") == "plan"]
    planned = plans[-1].get("steps") if plans else None
    return Standing(
        state=_state(manifest, beat),
        last=history.step if history.step >= 0 else None,
        planned=planned if is_count(planned) else None,
        updated=_updated(folder),
        beat=beat,
        crashes=read_post_mortems(folder),
    )


def run_facts(folder: Path, manifest: Manifest, history: History, standing: Standing) -> dict[str, Any]:
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
        "state": standing.state,
        "first_step": max(history.first, 0),
        "last_step": standing.last,
        "steps_planned": standing.planned,
        "rows": rows,
        "seconds": round(last, 3),
        "started": str(segments[0].get("started", "")) if segments else "",
        "updated": _iso(standing.updated),
        "segments": [_segment(number, one) for number, one in enumerate(segments, 1)],
        "resume": resume_command(folder, standing),
    }


def resume_command(folder: Path, standing: Standing) -> str:
    """Return the command that goes on with a run; empty for one that is done or still works."""
    if standing.state in ("finished", "running"):
        return ""
    return f"fieldwatch resume {shlex.quote(readable(folder.resolve()))}"


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


def _state(manifest: Manifest, beat: Heartbeat | None) -> str:
    """Believe the manifest, unless it says running and nobody runs."""
    if manifest.state != "running" or beat is None:
        return manifest.state
    if beat.ending in _ENDED_WELL:
        return beat.ending
    last = (as_objects(manifest.segments) or [{}])[-1]
    return "running" if beat.ending == "running" and _lives(beat, str(last.get("host", ""))) else "killed"


def _lives(beat: Heartbeat, host: str) -> bool:
    if host and host != platform.node():
        return time.time() - beat.time < max(SILENT, beat.timeout if beat.timeout < float("inf") else SILENT)
    if beat.boot and _boot() not in ("", beat.boot):
        return False
    try:
        process = psutil.Process(beat.pid)
        return process.create_time() <= beat.started + 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _updated(folder: Path) -> float:
    times = [path.stat().st_mtime for path in (folder / JOURNAL, folder / EVENTS, folder / "run.json") if path.exists()]
    return max(times, default=0.0)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
