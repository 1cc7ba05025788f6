"""The state of a run, shared by all commands and reports; it needs no torch and reads only three small files.

The state is derived from ``run.json`` and the black box. If both say that the run is in progress, the process is
examined, provided that it is visible from here.
"""

import functools
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, cast

import orjson
import psutil

from fieldwatch.monitor.age import age
from fieldwatch.monitor.black_box import FOLDER, STACKS, Heartbeat, boot_id, read_black_box
from fieldwatch.monitor.causes import cause_without_status
from fieldwatch.monitor.post_mortem import NOTE, last_stacks, read_post_mortems, resume_command
from fieldwatch.record import EVENTS, JOURNAL, Manifest, NotARun, holds_run, read_manifest

StateWord = Literal[
    "not started", "running", "silent", "hung", "killed", "finished", "interrupted", "failed", "diverged"
]  # fmt: skip
"""State of a run.

* not started: no process has started a run in the folder.
* running: the process is alive and sends heartbeats.
* silent: the run is recorded as running, but its process is not visible and has not sent a heartbeat for a long time.
* hung: the process exists, but has sent no heartbeat for longer than its watchdog allows, or is stopped.
* killed: the process is gone and did not record why.
* finished, interrupted, failed, diverged: as recorded by the run at its end.
"""
ENDED: Final[tuple[StateWord, ...]] = ("killed", "finished", "interrupted", "failed", "diverged")
"""States of runs that have ended."""
BROKEN: Final[tuple[StateWord, ...]] = ("killed", "failed", "diverged")
"""States of runs that have ended abnormally."""
SILENT_AFTER: Final = 600.0
"""Seconds without a heartbeat after which a run whose process is not visible counts as silent."""
START_SLACK: Final = 5.0
"""Seconds by which the start of a process may seem later than its black box, because clocks are adjusted."""
_RECORDED_ENDINGS: Final = ("finished", "interrupted", "failed", "diverged")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """State of a run.

    Attributes:
        word: state in one word; see `StateWord`.
        detail: reason, or since when; may be empty.
        remedy: command that helps; empty if there is nothing to do.
        resume: command that resumes the run; empty if it is finished, or not known to have ended.
        pid: process ID of the training; None if unknown.
        host: host of the training; empty if unknown.
    """

    word: StateWord
    detail: str = ""
    remedy: str = ""
    resume: str = ""
    pid: int | None = None
    host: str = ""

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.word in ENDED

    @property
    def broken(self) -> bool:
        """Whether the run has ended abnormally."""
        return self.word in BROKEN

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


def state_of(folder: Path | str) -> RunState:
    """Return the current state of the run in a folder. Nothing is written, and damaged files do not raise.

    Args:
        folder: run folder, which need not exist.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    beat = read_black_box(folder)
    last = manifest.segments[-1] if manifest is not None and manifest.segments else dict[str, Any]()
    host = str(last.get("host", ""))
    pid = last.get("pid") if beat is None else beat.pid
    word, detail, remedy = _judge(folder, manifest, beat, last)
    resume = resume_command(folder) if word in ENDED and word != "finished" else ""
    # run.json may be damaged; bool is a subclass of int.
    known = pid if isinstance(pid, int) and not isinstance(pid, bool) else None
    return RunState(word=word, detail=detail, remedy=remedy or resume, resume=resume, pid=known, host=host)


_Judged = tuple[StateWord, str, str]
"""State, detail and remedy of a `RunState`."""


def _judge(folder: Path, manifest: Manifest | None, beat: Heartbeat | None, last: Mapping[str, Any]) -> _Judged:
    host = str(last.get("host", ""))
    if beat is None:
        return _without_black_box(folder, manifest, host)
    # A post-mortem in crash/ describes the death.
    if beat.ending == "told":
        return "killed", _explained_death(folder), ""
    # run.json is older than the black box while a process takes the folder, and newer while that process ends.
    same = _is_same(last, beat)
    if manifest is not None and manifest.state != "running" and same:
        return _recorded_ending(folder, manifest.state, beat)
    if beat.ending in _RECORDED_ENDINGS:
        return _recorded_ending(folder, beat.ending, beat)
    # run.json may still describe an earlier start on another machine; then the boot ID must agree as well.
    here = host in ("", platform.node()) and (same or beat.boot in ("", boot_id()))
    if not here:
        return _remote_state(beat, host)
    return _living_state(beat) if _is_alive(beat) else ("killed", _why_killed(folder, beat), "")


def _is_same(last: Mapping[str, Any], beat: Heartbeat) -> bool:
    """Return whether the last start in run.json is that of the process in the black box."""
    # The start time is compared too, because in containers all starts may have the same pid.
    try:
        # run.json stores whole seconds, the black box stores fractions.
        later = datetime.fromisoformat(str(last.get("started", ""))).timestamp() >= math.floor(beat.started)
    except (ValueError, OverflowError):
        later = True
    return last.get("pid") == beat.pid and later


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder) if holds_run(folder) else None
    # A damaged run.json leaves the black box as the only source.
    except (NotARun, OSError):
        return None


def _without_black_box(folder: Path, manifest: Manifest | None, host: str) -> _Judged:
    if manifest is None:
        unreadable = "run.json cannot be read, and there is no black box"
        return ("silent", unreadable, "") if holds_run(folder) else ("not started", "no run here yet", "")
    if manifest.state != "running":
        return _recorded_ending(folder, manifest.state, None)
    quiet = time.time() - _last_written(folder)
    if quiet > SILENT_AFTER:
        where = f" on {host}" if host else ""
        return (
            "silent",
            f"nothing was written for {age(quiet)}; without a black box, the state of its process{where} is unknown",
            "",
        )
    return "running", "", ""


def _recorded_ending(folder: Path, ending: str, beat: Heartbeat | None) -> _Judged:
    word = cast("StateWord", ending)
    return word, "" if word == "finished" else _exit_note(folder, beat), ""


def _remote_state(beat: Heartbeat, host: str) -> _Judged:
    # The monotonic clock of another machine cannot be compared: use wall time.
    quiet = time.time() - beat.time
    if quiet > max(SILENT_AFTER, beat.timeout if math.isfinite(beat.timeout) else 0.0):
        where = f"on {host}" if host else "on another machine"
        detail = f"no heartbeat for {age(quiet)}; its process is {where} and is not visible from here"
        return "silent", detail, ""
    return "running", "", ""


def _living_state(beat: Heartbeat) -> _Judged:
    quiet = time.monotonic() - beat.beat
    where = loop_position(beat)
    # A stopped process cannot be told apart from a hung one by its heartbeat.
    if _status(beat.pid) == psutil.STATUS_STOPPED:
        return "hung", f"its process is stopped ({where})", f"kill -CONT {beat.pid}  (continues it)"
    if math.isfinite(beat.timeout) and quiet > beat.timeout:
        limit = f"its watchdog allows {age(beat.timeout)}"
        remedy = f"kill -USR2 {beat.pid}  (writes its stack traces to {FOLDER}/{STACKS})"
        return "hung", f"no heartbeat for {age(quiet)}, {where}; {limit}", remedy
    return "running", "", ""


def loop_position(beat: Heartbeat) -> str:
    """Return the position of a process in its loop, according to its black box."""
    return f"in {beat.phase} of step {beat.step:,}" if beat.step >= 0 else "before the first step"


def _is_alive(beat: Heartbeat) -> bool:
    """Return whether the process of the black box exists, and is not another process with the same ID."""
    # After a reboot, all process IDs belong to other processes.
    if not _may_be_pid(beat.pid) or (beat.boot and boot_id() not in ("", beat.boot)):
        return False
    try:
        process = psutil.Process(beat.pid)
        # A process with this ID that was created later is another one.
        return process.create_time() <= beat.started + START_SLACK and process.status() != psutil.STATUS_ZOMBIE
    # The process exists, but may not be read.
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError):
        return False


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status() if _may_be_pid(pid) else ""
    except (psutil.Error, OSError):
        return ""


def _may_be_pid(number: int) -> bool:
    """Return whether a number from a file can be a process ID, which is a 32-bit integer."""
    return 0 < number < 1 << 31


@functools.lru_cache(maxsize=64)
def _why_killed(folder: Path, beat: Heartbeat) -> str:
    """Return the cause of death according to the stack traces and the kernel; cached, because it cannot change."""
    death = cause_without_status(beat, last_stacks(folder, beat.pid))
    where = f" It was in step {beat.step:,} ({beat.phase})." if beat.step >= 0 else ""
    # The detail of "killed" already starts with that word.
    return f"{death.detail if death.cause == 'killed' else death}.{where}"


def _explained_death(folder: Path) -> str:
    deaths = read_post_mortems(folder)
    last = deaths[-1] if deaths else {}
    error = last.get("error", "its post-mortem cannot be read")
    return f"{last.get('cause', 'killed')}: {error} ({last.get('place', 'crash/')})"


def _exit_note(folder: Path, beat: Heartbeat | None) -> str:
    try:
        note = orjson.loads((folder / FOLDER / NOTE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        note = None
    if isinstance(note, dict):
        facts = cast("dict[str, Any]", note)
        return str(facts.get("error") or facts.get("cause") or "")
    return beat.cause if beat is not None else ""


def _last_written(folder: Path) -> float:
    """Return the time at which the record was last written, in seconds since 1970; 0 if unknown."""
    times: list[float] = []
    for name in (JOURNAL, EVENTS, "run.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
