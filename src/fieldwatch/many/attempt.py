"""One attempt to train a scene in a separate, supervised process. This code runs on the machine that trains it."""

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
    """Run the process of a task until it ends; stop it gracefully on request or after its timeout.

    Raises:
        OSError: if the process cannot be started, or its console file cannot be written.
    """
    if task.stop_file.exists():
        return ProcessExit(code=None, stop_reason="stop", cause="stopped before it started")
    if not _wait_for_folder(task):
        holder = f"another process still writes to {task.folder} after {task.grace:g} s: is it trained twice?"
        return ProcessExit(code=None, seconds=task.grace, cause=holder)
    # The counter covers the whole machine, so an increase is a hint, not a proof.
    kills_before = _oom_kills()
    # Append, since all attempts of a scene share one console file.
    with open_for_append(task.console) as console:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        console.write(f"{ATTEMPT_LINE} {task.number}, {began}: {' '.join(task.command)}\n".encode())
        console.flush()
        ended = _watch(task, console)
    # SIGKILL without a stop request is the signature of the out-of-memory killer.
    if ended.code == -9 and not ended.stop_reason and _oom_kills() > kills_before:
        return ProcessExit(
            code=ended.code, seconds=ended.seconds, pid=ended.pid, cause="probably by the out-of-memory killer"
        )
    return ended


def _watch(task: SceneTask, console: IO[bytes]) -> ProcessExit:
    # -I keeps the launcher from importing from the current folder or from PYTHONPATH.
    command = [sys.executable, "-I", str(_LAUNCHER), str(task.grace), sys.executable, *task.command]
    began = time.monotonic()
    stop_reason = ""
    # Polling is simpler than waiting on several events, and 0.1 s is short compared to a training.
    deadline = float("inf") if task.timeout is None else began + task.timeout
    with subprocess.Popen(  # noqa: S603  the arguments come from the plan and are not passed to a shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=console,
        env=_environment(task),
        cwd=task.place,
        start_new_session=True,  # Ctrl-C in the terminal must reach only the driver, which stops scenes gracefully
    ) as launcher:
        while launcher.poll() is None and not stop_reason:
            if task.stop_file.exists():
                stop_reason = "stop"
            elif time.monotonic() > deadline:
                stop_reason = "timeout"
            else:
                time.sleep(POLL_SECONDS)
        output = launcher.communicate()[0]  # closes stdin, which tells the launcher to stop the training
    return _exit_from(output, stop_reason, time.monotonic() - began)


def _exit_from(lines: bytes, stop_reason: str, seconds: float) -> ProcessExit:
    """Parse the launcher's report; it may be missing or incomplete if the launcher was killed."""
    facts: dict[str, Any] = {}
    # A killed launcher may leave an incomplete line.
    for line in lines.splitlines(keepends=True):
        facts |= json.loads(line) if line.endswith(b"\n") else {}
    code = facts.get("code")
    pid = facts.get("pid", 0)
    cause = "" if code is not None else "its launcher process was killed"
    _, reason = read_channel(str(facts.get("said", "")).encode().split(b"\n"))
    return ProcessExit(code=code, stop_reason=stop_reason, seconds=seconds, cause=cause, pid=pid, reason=reason)


def _environment(task: SceneTask) -> Mapping[str, str]:
    # Later entries take precedence: thread counts are only defaults, and the plan's `env` overrides the inherited one.
    threads = str(max(1, int(task.cpus)))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **os.environ, **task.env, "PYTHONUNBUFFERED": "1"}


def _wait_for_folder(task: SceneTask) -> bool:
    """Wait until no process writes to the run folder; return False on timeout or stop request."""
    deadline = time.monotonic() + task.grace
    # If a previous driver was killed, its training process may still be saving a checkpoint under the lock.
    while _is_locked(task.folder / ".lock"):
        if time.monotonic() > deadline or task.stop_file.exists():
            return False
        time.sleep(POLL_SECONDS)
    return True


def _is_locked(lock: Path) -> bool:
    """Whether a run holds the lock of its folder (see FolderLock). The check does not disturb the holder."""
    try:
        # A shared lock fails while a writer holds the exclusive lock.
        with lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def _oom_kills() -> int:
    """Return the number of out-of-memory kills since the kernel started; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.removeprefix(_OOM_KILLS)) for line in lines if line.startswith(_OOM_KILLS)), 0)
