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
from fieldwatch.many.order import TRY_LINE, Ended, Order
from fieldwatch.monitor import read_channel

LOOK_EVERY: Final = 0.1
_KEEPER: Final = Path(__file__).with_name("keeper.py")
_OOM_KILLS: Final = "oom_kill "


def attempt(order: Order) -> Ended:
    """Do an order: start its process, wait for its end, and end it in order when it is told to or takes too long.

    Raises:
        OSError: the process cannot be started, or its console file not be written.
    """
    if order.stop_file.exists():
        return Ended(code=None, asked="stop", cause="told to stop before it began")
    if not _free(order):
        holder = f"another process still writes into {order.folder} after {order.grace:g} s: is it trained twice?"
        return Ended(code=None, seconds=order.grace, cause=holder)
    kills_before = _oom_kills()
    with open_for_append(order.console) as console:
        began = datetime.now(UTC).isoformat(timespec="seconds")
        console.write(f"{TRY_LINE} {order.number}, {began}: {' '.join(order.command)}\n".encode())
        console.flush()
        ended = _watch(order, console)
    if ended.code == -9 and not ended.asked and _oom_kills() > kills_before:
        return Ended(code=ended.code, seconds=ended.seconds, pid=ended.pid, cause="the out-of-memory killer struck")
    return ended


def _watch(order: Order, console: IO[bytes]) -> Ended:
    line = [sys.executable, "-I", str(_KEEPER), str(order.grace), sys.executable, *order.command]
    began = time.monotonic()
    asked = ""
    deadline = float("inf") if order.timeout is None else began + order.timeout
    with subprocess.Popen(  # noqa: S603  the words come from the plan, no shell reads them
        line,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=console,
        env=_environment(order),
        cwd=order.place,
        start_new_session=True,  # ctrl-C in the terminal is for the driver, which stops the scenes in order
    ) as keeper:
        while keeper.poll() is None and not asked:
            if order.stop_file.exists():
                asked = "stop"
            elif time.monotonic() > deadline:
                asked = "timeout"
            else:
                time.sleep(LOOK_EVERY)
        told = keeper.communicate()[0]  # closes the pipe: the keeper ends what still runs
    return _told(told, asked, time.monotonic() - began)


def _told(lines: bytes, asked: str, seconds: float) -> Ended:
    """What the keeper said; it may have been killed before it could."""
    facts: dict[str, Any] = {}
    for line in lines.splitlines(keepends=True):
        facts |= json.loads(line) if line.endswith(b"\n") else {}
    code = facts.get("code")
    pid = facts.get("pid", 0)
    cause = "" if code is not None else "the process that watched it was killed"
    _, words = read_channel(str(facts.get("said", "")).encode().split(b"\n"))
    return Ended(code=code, asked=asked, seconds=seconds, cause=cause, pid=pid, words=words)


def _environment(order: Order) -> Mapping[str, str]:
    threads = str(max(1, int(order.cpus)))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **os.environ, **order.env, "PYTHONUNBUFFERED": "1"}


def _free(order: Order) -> bool:
    """Wait until nobody writes into the run folder: what trained there before may still be saving."""
    deadline = time.monotonic() + order.grace
    while _held(order.folder / ".lock"):
        if time.monotonic() > deadline or order.stop_file.exists():
            return False
        time.sleep(LOOK_EVERY)
    return True


def _held(lock: Path) -> bool:
    """Whether a run holds its folder (see FolderLock); asking takes nothing away from it."""
    try:
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
