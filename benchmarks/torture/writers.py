"""Two processes on one run folder, and a lock whose owner died while its workers live on."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from accidents import TESTS
from rows import Row, judged

from fieldwatch.checkpoint import FolderInUseError, OneWriter

LIMIT = 1.0
"""Seconds within which a second writer is refused, and a dead one's folder taken over."""


def refused(folder: Path) -> tuple[float, str]:
    """Ask for a folder that is held: seconds until the refusal, and what it says; empty where it was given."""
    began = time.monotonic()
    try:
        with OneWriter(folder):
            return time.monotonic() - began, ""
    except FolderInUseError as error:
        return time.monotonic() - began, str(error)


def take_over(folder: Path, patience: float = 10.0) -> float:
    """Seconds until the folder could be taken; ``patience`` where it could not."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        with contextlib.suppress(FolderInUseError), OneWriter(folder):
            return time.monotonic() - began
        time.sleep(0.01)
    return patience


def run_writers(folder: Path) -> list[Row]:
    """The rows of P15."""
    command = [sys.executable, str(TESTS / "provoked.py"), str(folder), "hold"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        owner = json.loads(holder.stdout.readline() if holder.stdout else "{}")
        try:
            seconds, message = refused(folder / "hold")
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(owner["worker"], 0)  # raises if the worker is gone: then nothing is shown
            taken = take_over(folder / "hold")
        finally:
            holder.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner["worker"], signal.SIGKILL)
    named = f"process {owner['pid']} on host {socket.gethostname()}" in message
    return [
        judged(
            "P15",
            "a second process on a folder that is held",
            f"refused in < {LIMIT:g} s, host and pid named",
            f"refused in {seconds:.3f} s, {'host and pid named' if named else 'not named'}",
            good=bool(message) and seconds < LIMIT and named,
            why="" if message else "it was given the folder",
        ),
        judged(
            "P15",
            "taking over after kill -9 of the owner, whose forked worker lives on",
            f"< {LIMIT:g} s",
            f"{taken:.3f} s",
            good=taken < LIMIT,
        ),
    ]
