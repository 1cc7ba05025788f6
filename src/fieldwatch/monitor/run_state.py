"""How a run stands: the one answer that every command, page and tab gives; no torch, three small files are read.

Two files of the run speak: ``run.json`` and the black box. Where both say that the run goes on, the process decides,
if it can be seen from here.
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
"""How a run stands.

* not started: no process has begun a run in the folder.
* running: its process lives and gives signs of life.
* silent: it says that it runs, but its process cannot be seen from here and has given no sign of life for long.
* hung: its process is there, and does nothing for longer than its own watchdog allows, or is stopped.
* killed: its process is gone and did not say why.
* finished, interrupted, failed, diverged: as the run itself said at its end.
"""
ENDED: Final[tuple[StateWord, ...]] = ("killed", "finished", "interrupted", "failed", "diverged")
"""States after which nothing more will come."""
BROKEN: Final[tuple[StateWord, ...]] = ("killed", "failed", "diverged")
"""States of a run that ended otherwise than it should."""
SILENT_AFTER: Final = 600.0
"""Seconds without a sign of life after which a run whose process cannot be seen is called silent."""
START_SLACK: Final = 5.0
"""Seconds that a process's start may seem to be later than its black box: clocks are adjusted."""
_RECORDED_ENDINGS: Final = ("finished", "interrupted", "failed", "diverged")


@dataclass(frozen=True, kw_only=True)
class RunState:
    """How a run stands.

    Attributes:
        word: in a word; see `StateWord`.
        detail: why, or since when; empty where there is nothing to say.
        remedy: a command that helps; empty where there is nothing to do.
        resume: the command that goes on with the run; empty where it is finished, or not known to have ended.
        pid: the process that trains or trained; None where it is not known.
        host: where; empty where it is not known.
    """

    word: StateWord
    detail: str = ""
    remedy: str = ""
    resume: str = ""
    pid: int | None = None
    host: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.word in ENDED

    @property
    def broken(self) -> bool:
        """Whether it ended otherwise than it should."""
        return self.word in BROKEN

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


def state_of(folder: Path | str) -> RunState:
    """Return how the run in a folder stands now. Nothing is written, and a damaged file is no error.

    Args:
        folder: the run folder; it need not exist.
    """
    folder = Path(folder)
    manifest = _manifest(folder)
    beat = read_black_box(folder)
    last = manifest.segments[-1] if manifest is not None and manifest.segments else dict[str, Any]()
    host = str(last.get("host", ""))
    pid = last.get("pid") if beat is None else beat.pid
    word, detail, remedy = _judge(folder, manifest, beat, last)
    resume = resume_command(folder) if word in ENDED and word != "finished" else ""
    known = pid if isinstance(pid, int) and not isinstance(pid, bool) else None
    return RunState(word=word, detail=detail, remedy=remedy or resume, resume=resume, pid=known, host=host)


_Judged = tuple[StateWord, str, str]
"""Word, detail and remedy."""


def _judge(folder: Path, manifest: Manifest | None, beat: Heartbeat | None, last: Mapping[str, Any]) -> _Judged:
    host = str(last.get("host", ""))
    if beat is None:
        return _without_black_box(folder, manifest, host)
    if beat.ending == "told":
        return "killed", _explained_death(folder), ""
    # run.json is older than the black box while a process takes the folder, and newer while that process ends
    same = _is_same(last, beat)
    if manifest is not None and manifest.state != "running" and same:
        return _recorded_ending(folder, manifest.state, beat)
    if beat.ending in _RECORDED_ENDINGS:
        return _recorded_ending(folder, beat.ending, beat)
    # run.json may still describe an earlier start, on another machine: then the boot has to agree as well.
    here = host in ("", platform.node()) and (same or beat.boot in ("", boot_id()))
    if not here:
        return _remote_state(beat, host)
    return _living_state(beat) if _is_alive(beat) else ("killed", _why_killed(folder, beat), "")


def _is_same(last: Mapping[str, Any], beat: Heartbeat) -> bool:
    """Whether the last start in run.json is that of the black box's process; in containers all have the same pid."""
    try:
        # run.json stores whole seconds, the black box fractions.
        later = datetime.fromisoformat(str(last.get("started", ""))).timestamp() >= math.floor(beat.started)
    except (ValueError, OverflowError):
        later = True
    return last.get("pid") == beat.pid and later


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder) if holds_run(folder) else None
    except (NotARun, OSError):
        return None


def _without_black_box(folder: Path, manifest: Manifest | None, host: str) -> _Judged:
    if manifest is None:
        unread = "run.json cannot be read, and there is no black box"
        return ("silent", unread, "") if holds_run(folder) else ("not started", "no run here yet", "")
    if manifest.state != "running":
        return _recorded_ending(folder, manifest.state, None)
    quiet = time.time() - _last_written(folder)
    if quiet > SILENT_AFTER:
        where = f" on {host}" if host else ""
        return "silent", f"nothing was written for {age(quiet)}; without a black box its process{where} is unknown", ""
    return "running", "", ""


def _recorded_ending(folder: Path, ending: str, beat: Heartbeat | None) -> _Judged:
    word = cast("StateWord", ending)
    return word, "" if word == "finished" else _exit_note(folder, beat), ""


def _remote_state(beat: Heartbeat, host: str) -> _Judged:
    quiet = time.time() - beat.time
    if quiet > max(SILENT_AFTER, beat.timeout if math.isfinite(beat.timeout) else 0.0):
        where = f"on {host}" if host else "on another machine"
        detail = f"no sign of life for {age(quiet)}; its process is {where} and cannot be seen from here"
        return "silent", detail, ""
    return "running", "", ""


def _living_state(beat: Heartbeat) -> _Judged:
    quiet = time.monotonic() - beat.beat
    where = loop_position(beat)
    if _status(beat.pid) == psutil.STATUS_STOPPED:
        return "hung", f"its process is stopped ({where})", f"kill -CONT {beat.pid}  (lets it go on)"
    if math.isfinite(beat.timeout) and quiet > beat.timeout:
        limit = f"its watchdog allows {age(beat.timeout)}"
        remedy = f"kill -USR2 {beat.pid}  (it writes its stacks to {FOLDER}/{STACKS})"
        return "hung", f"no sign of life for {age(quiet)}, {where}; {limit}", remedy
    return "running", "", ""


def loop_position(beat: Heartbeat) -> str:
    """Where in its loop a process is, by its black box."""
    return f"in {beat.phase} of step {beat.step:,}" if beat.step >= 0 else "before the first step"


def _is_alive(beat: Heartbeat) -> bool:
    """Whether the process that writes the black box is there: the same one, not another under its number."""
    if not _may_be_pid(beat.pid) or (beat.boot and boot_id() not in ("", beat.boot)):
        return False
    try:
        process = psutil.Process(beat.pid)
        # A younger process with this number is another one.
        return process.create_time() <= beat.started + START_SLACK and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:  # it is there, and may not be looked into
        return True
    except (psutil.Error, OSError):
        return False


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status() if _may_be_pid(pid) else ""
    except (psutil.Error, OSError):
        return ""


def _may_be_pid(number: int) -> bool:
    """Whether a number from a file can be a process's at all; the system's own type for it has 32 bits."""
    return 0 < number < 1 << 31


@functools.lru_cache(maxsize=64)
def _why_killed(folder: Path, beat: Heartbeat) -> str:
    """What the stacks and the kernel say; remembered, since a dead process says no more."""
    death = cause_without_status(beat, last_stacks(folder, beat.pid))
    where = f" It was in step {beat.step:,} ({beat.phase})." if beat.step >= 0 else ""
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
    """When the record was last written to, seconds since 1970; 0 where that is not known."""
    times: list[float] = []
    for name in (JOURNAL, EVENTS, "run.json"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
