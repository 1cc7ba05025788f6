"""One try of one scene: a process of its own, watched until it ended. Runs where the scene is trained."""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from fieldwatch.base import open_for_append
from fieldwatch.many.task import ATTEMPT_LINE, ProcessExit, SceneTask
from fieldwatch.monitor import read_channel

POLL_SECONDS: Final = 0.1
_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_OOM_KILLS: Final = "oom_kill "


def run_task(task: SceneTask) -> ProcessExit:
    """Do an order: start its process, wait for its end, and end it in order when it is told to or takes too long.

    Raises:
        OSError: the process cannot be started, or its console file not be written.
    """
    if task.stop_file.exists():
        return ProcessExit(code=None, stop_reason="stop", cause="told to stop before it began")
    if not _wait_for_folder(task):
        holder = f"another process still writes into {task.folder} after {task.grace:g} s: is it trained twice?"
        return ProcessExit(code=None, seconds=task.grace, cause=holder)
    # Taken before the start: the counter covers the whole machine, so this is a hint and no proof.
    kills_before = _oom_kills()
    with open_for_append(task.console) as console:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        console.write(f"{ATTEMPT_LINE} {task.number}, {began}: {' '.join(task.command)}\n".encode())
        console.flush()
        ended = _watch(task, console)
    if ended.code == -9 and not ended.stop_reason and _oom_kills() > kills_before:
        return ProcessExit(
            code=ended.code, seconds=ended.seconds, pid=ended.pid, cause="the out-of-memory killer struck"
        )
    return ended


def _watch(task: SceneTask, console: IO[bytes]) -> ProcessExit:
    # -I: the launcher must not import from the current folder or from PYTHONPATH.
    line = [sys.executable, "-I", str(_LAUNCHER), str(task.grace), sys.executable, *task.command]
    began = time.monotonic()
    stop_reason = ""
    deadline = float("inf") if task.timeout is None else began + task.timeout
    with subprocess.Popen(  # noqa: S603  the words come from the plan, no shell reads them
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=console,
        env=_environment(task),
        cwd=task.place,
        start_new_session=True,  # ctrl-C in the terminal is for the driver, which stops the scenes in order
    ) as launcher:
        while launcher.poll() is None and not stop_reason:
            if task.stop_file.exists():
                stop_reason = "stop"
            elif time.monotonic() > deadline:
                stop_reason = "timeout"
            else:
                time.sleep(POLL_SECONDS)
        output = launcher.communicate()[0]  # closes the pipe: the launcher ends what still runs
    return _exit_from(output, stop_reason, time.monotonic() - began)


def _exit_from(lines: bytes, stop_reason: str, seconds: float) -> ProcessExit:
    """What the launcher said; it may have been killed before it could."""
    facts: dict[str, Any] = {}
    # A launcher that was killed may leave half a line.
    for line in lines.splitlines(keepends=True):
        facts |= json.loads(line) if line.endswith(b"\n") else {}
    code = facts.get("code")
    pid = facts.get("pid", 0)
    cause = "" if code is not None else "the process that watched it was killed"
    _, reason = read_channel(str(facts.get("said", "")).encode().split(b"\n"))
    return ProcessExit(code=code, stop_reason=stop_reason, seconds=seconds, cause=cause, pid=pid, reason=reason)


def _environment(task: SceneTask) -> Mapping[str, str]:
    threads = str(max(1, int(task.cpus)))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **os.environ, **task.env, "PYTHONUNBUFFERED": "1"}


def _wait_for_folder(task: SceneTask) -> bool:
    """Wait until nobody writes into the run folder: what trained there before may still be saving."""
    deadline = time.monotonic() + task.grace
    # The trainer of a driver that was killed saves first and releases its lock afterwards.
    while _is_locked(task.folder / ".lock"):
        if time.monotonic() > deadline or task.stop_file.exists():
            return False
        time.sleep(POLL_SECONDS)
    return True


def _is_locked(lock: Path) -> bool:
    """Whether a run holds its folder (see FolderLock); asking takes nothing away from it."""
    try:
        # A shared lock fails while a writer holds the exclusive one.
        with lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it is not told."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.removeprefix(_OOM_KILLS)) for line in lines if line.startswith(_OOM_KILLS)), 0)
