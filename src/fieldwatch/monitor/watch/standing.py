"""How a run stands: what run.json, the black box, the process and the age of its last row say together."""

import math
import platform
import time
from pathlib import Path
from typing import Any, Final, cast, final

import orjson
import psutil

from fieldwatch.monitor.black_box import FOLDER, STACKS, Heartbeat, boot_id, read_black_box
from fieldwatch.monitor.causes import cause_without_status
from fieldwatch.monitor.post_mortem import NOTE, last_stacks, read_post_mortems, resume_command
from fieldwatch.monitor.watch.view import ENDED, Standing, State
from fieldwatch.monitor.watch.words import age
from fieldwatch.record import Manifest

QUIET: Final = 60.0
"""Seconds without a row after which a run is called silent, where its steps are not slow."""
USUAL_STEPS: Final = 20.0
"""So many usual steps may pass without a row."""
_Rows = tuple[float | None, float | None]
"""Seconds since the last row, and what a step usually takes."""
_Told = tuple[Standing, str, str]
"""Word, detail and remedy of a state."""
_NOT_HERE: Final = 600.0
_SLACK: Final = 5.0


@final
class StandingReader:
    """Tells how a run stands, time after time; what ended it is looked up once.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._killed: tuple[tuple[int, float], str] | None = None

    def read(self, manifest: Manifest, *, row_age: float | None, step_seconds: float | None) -> State:
        """Return how it stands now.

        Args:
            manifest: its run.json.
            row_age: seconds since its last row; None before the first.
            step_seconds: what a step usually takes; None where it is not known.
        """
        beat = read_black_box(self._folder)
        last = manifest.segments[-1] if manifest.segments else dict[str, Any]()
        host, pid = str(last.get("host", "")), last.get("pid") if beat is None else beat.pid
        if beat is not None and beat.ending == "told":
            told: _Told = "killed", self._told(), ""
        elif beat is not None and manifest.state == "running" and beat.ending == "running":
            told = self._open(beat, host, (row_age, step_seconds))
        elif manifest.state == "running" and beat is None:
            told = _by_rows((row_age, step_seconds), f"on {host}" if host else "")
        else:
            ending = beat.ending if beat is not None and manifest.state == "running" else manifest.state
            told = cast("Standing", ending), "" if ending == "finished" else self._last_words(beat), ""
        word, detail, remedy = told
        if word in ENDED and word != "finished":
            remedy = resume_command(self._folder)
        return State(word=word, detail=detail, remedy=remedy, pid=pid if isinstance(pid, int) else None, host=host)

    def _open(self, beat: Heartbeat, host: str, rows: _Rows) -> _Told:
        """Judge a run that did not say that it ended."""
        if host and host != platform.node():
            return _from_afar(beat, host)
        return _alive(beat, rows) if _lives(beat) else ("killed", self._why_killed(beat), "")

    def _why_killed(self, beat: Heartbeat) -> str:
        identity = beat.pid, beat.started
        if self._killed is None or self._killed[0] != identity:
            death = cause_without_status(beat, last_stacks(self._folder, beat.pid))
            where = f" It was in step {beat.step:,} ({beat.phase})." if beat.step >= 0 else ""
            self._killed = identity, f"{death.detail if death.cause == 'killed' else death}.{where}"
        return self._killed[1]

    def _told(self) -> str:
        deaths = read_post_mortems(self._folder)
        last = deaths[-1] if deaths else {}
        said = last.get("error", "its post-mortem cannot be read")
        return f"{last.get('cause', 'killed')}: {said} ({last.get('place', 'crash/')})"

    def _last_words(self, beat: Heartbeat | None) -> str:
        try:
            note = orjson.loads((self._folder / FOLDER / NOTE).read_bytes())
        except (OSError, orjson.JSONDecodeError):
            note = None
        if isinstance(note, dict):
            told = cast("dict[str, Any]", note)
            return str(told.get("error") or told.get("cause") or "")
        return beat.cause if beat is not None else ""


def _alive(beat: Heartbeat, rows: _Rows) -> _Told:
    quiet = max(0.0, time.monotonic() - beat.beat)
    where = f"in {beat.phase} of step {beat.step:,}" if beat.step >= 0 else "before the first step"
    if _status(beat.pid) == psutil.STATUS_STOPPED:
        return "silent", f"its process is stopped ({where}): kill -CONT {beat.pid} lets it go on", ""
    if math.isfinite(beat.timeout) and quiet > beat.timeout:
        limit = f"its watchdog allows {age(beat.timeout)}"
        look = f"kill -USR2 {beat.pid}  (it writes its stacks to {FOLDER}/{STACKS})"
        return "hung", f"no sign of life for {age(quiet)}, {where}; {limit}", look
    return _by_rows(rows, where)


def _by_rows(rows: _Rows, where: str) -> _Told:
    row_age, step_seconds = rows
    allowed = max(QUIET, USUAL_STEPS * (step_seconds or 0.0))
    if row_age is not None and row_age > allowed:
        return "silent", f"no row for {age(row_age)}" + (f", {where}" if where else ""), ""
    return "running", "", ""


def _from_afar(beat: Heartbeat, host: str) -> _Told:
    quiet = max(0.0, time.time() - beat.time)
    if quiet > max(_NOT_HERE, beat.timeout if math.isfinite(beat.timeout) else 0.0):
        said = f"no sign of life for {age(quiet)}; its process is on {host} and cannot be seen from here"
        return "silent", said, ""
    return "running", "", ""


def _lives(beat: Heartbeat) -> bool:
    """Whether the process that writes the black box is there: the same one, not another under its number."""
    if beat.boot and boot_id() and beat.boot != boot_id():
        return False
    try:
        process = psutil.Process(beat.pid)
        return process.create_time() <= beat.started + _SLACK and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError, ValueError):  # it is there, and may not be looked into
        return True


def _status(pid: int) -> str:
    try:
        return psutil.Process(pid).status()
    except (psutil.Error, OSError, ValueError):
        return ""
