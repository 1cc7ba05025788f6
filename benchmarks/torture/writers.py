"""Two processes on one run folder, and a lock whose owner died while its workers live on."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accidents import TESTS
from forked import answer, forked
from rows import Row, judged

from fieldwatch.checkpoint import FolderInUseError, FolderLock

LIMIT = 1.0
"""Seconds within which a second writer must be refused, or the folder of a dead one taken over."""


def refused(folder: Path) -> tuple[float, str]:
    """Try to lock a folder that is in use; return the seconds until the refusal, and its message (empty if granted)."""
    began = time.monotonic()
    try:
        with FolderLock(folder):
            return time.monotonic() - began, ""
    except FolderInUseError as error:
        return time.monotonic() - began, str(error)


def take_over(folder: Path, patience: float = 10.0) -> float:
    """Return the seconds until the folder could be locked; ``patience`` if it could not."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        with contextlib.suppress(FolderInUseError), FolderLock(folder):
            return time.monotonic() - began
        time.sleep(0.01)
    return patience


def opens_and_closes(folder: Path) -> None:
    """Open and close the lock file, as a backup or a search does."""
    (folder / ".lock").read_bytes()
    with (folder / ".lock").open("r+b"):
        pass


def deletes(folder: Path) -> None:
    """Delete the lock file."""
    (folder / ".lock").unlink()


def replaces(folder: Path) -> None:
    """Replace the lock file, as synchronization programs do."""
    (folder / "other").write_bytes(b"")
    (folder / "other").replace(folder / ".lock")


def copies(folder: Path) -> None:
    """Copy the whole folder."""
    shutil.copytree(folder, folder.with_name(f"{folder.name}-copy"))


def forks(folder: Path) -> None:
    """Let a worker inherit everything, close it, and end."""
    worker = os.fork()
    if worker == 0:
        os.closerange(3, 256)
        os._exit(0)
    os.waitpid(worker, 0)
    opens_and_closes(folder)


CARELESS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "closed": ("the owner opened and closed the lock's file", opens_and_closes),
    "deleted": ("the lock's file was deleted", deletes),
    "replaced": ("the lock's file was replaced", replaces),
    "copied": ("the owner copied the run folder with shutil.copytree", copies),
    "forked": ("a worker of the owner closed all descriptors and ended", forks),
}


def still_held(folder: Path, careless: Callable[[Path], None]) -> tuple[str, int]:
    """Lock a folder in a child that mishandles the lock; return a second process's error and the child's exit code."""

    def hold(say: Callable[[bytes], Any]) -> None:
        with FolderLock(folder):
            careless(folder)
            say(b"!")
            signal.pause()

    owner = forked(hold)
    try:
        ready = owner.listen(1)
        told = answer(lambda: refused(folder)) if ready else {"raised": "the owner failed"}
    finally:
        code = owner.end(signal.SIGKILL)
    return (f"raised {told['raised']}" if isinstance(told, dict) else told[1]), code


def careless_rows(folder: Path) -> list[Row]:
    """Test careless actions on the lock file: the folder must stay with its owner."""
    rows = list[Row]()
    for name, (what, careless) in CARELESS.items():
        said, _ = still_held(folder / name, careless)
        good = "is being written by process" in said
        found = "refused" if good else said or "the folder was given away"
        rows.append(judged("P15", f"a second process after {what}", "refused", found, good=good))
    return rows


def given_back(folder: Path) -> Row:
    """Test that leaving releases the folder, even if the lock file is gone meanwhile."""

    def work() -> bool:
        for careless in (opens_and_closes, deletes, replaces):
            with FolderLock(folder):
                careless(folder)
        with FolderLock(folder):
            return True

    found = answer(work)
    good = found is True
    what = "the same process takes the folder again, after each of these"
    return judged("P15", what, "given", "given" if good else str(found), good=good)


def run_writers(folder: Path) -> list[Row]:
    """Return the rows of P15."""
    return [*owner_rows(folder), *careless_rows(folder), given_back(folder / "again")]


def owner_rows(folder: Path) -> list[Row]:
    """Test a folder that is in use, and one whose owner was killed."""
    command = [sys.executable, str(TESTS / "provoked.py"), str(folder), "hold"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        owner = json.loads(holder.stdout.readline() if holder.stdout else "{}")
        try:
            seconds, message = refused(folder / "hold")
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(owner["worker"], 0)  # raises if the worker is gone, since the test would then show nothing
            taken = take_over(folder / "hold")
        finally:
            holder.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner["worker"], signal.SIGKILL)
    named = f"process {owner['pid']} on host {socket.gethostname()}" in message
    return [
        judged(
            "P15",
            "a second process on a folder in use",
            f"refused in < {LIMIT:g} s, host and pid named",
            f"refused in {seconds:.3f} s, {'host and pid named' if named else 'not named'}",
            good=bool(message) and seconds < LIMIT and named,
            why="" if message else "it was given the folder",
        ),
        judged(
            "P15",
            "taking over after kill -9 of an owner whose forked worker lives on",
            f"< {LIMIT:g} s",
            f"{taken:.3f} s",
            good=taken < LIMIT,
        ),
    ]
