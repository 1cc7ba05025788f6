"""Information about processes from psutil; values that may not be read are None."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import psutil

from fieldwatch.monitor.readings import ProcessFacts

Value = TypeVar("Value")
FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The initial pid namespace of the machine (PROC_PID_INIT_INO in linux/proc_ns.h); containers have others."""


class Processes:
    """Reads processes repeatedly; CPU utilization is measured between two readings of the same process."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return information about a process; None if there is no process with this ID."""
        process = self._process(pid)
        if process is None:
            return None
        # oneshot reads each file of /proc once for all values.
        with process.oneshot():
            memory = ask_psutil(process.memory_info)
            command = ask_psutil(process.cmdline)
            return ProcessFacts(
                pid=pid,
                name=ask_psutil(process.name),
                command=None if command is None else " ".join(command),
                user=ask_psutil(process.username),
                cpu_percent=self._cpu_percent(process),
                resident_bytes=None if memory is None else memory.rss,
            )

    def forget_ended(self) -> None:
        """Forget processes that have ended."""
        self._known = {pid: process for pid, process in self._known.items() if process.is_running()}

    def _process(self, pid: int) -> psutil.Process | None:
        known = self._known.get(pid)
        # is_running also compares the start time, because process IDs are reused.
        if known is not None and known.is_running():
            return known
        self._known.pop(pid, None)
        try:
            return psutil.Process(pid)
        except (psutil.Error, ValueError):
            return None

    def _cpu_percent(self, process: psutil.Process) -> float | None:
        percent = ask_psutil(process.cpu_percent)
        # psutil measures between calls, so the first value of a process is meaningless.
        first = process.pid not in self._known
        self._known[process.pid] = process
        return None if first else percent


def ask_psutil(question: Callable[[], Value]) -> Value | None:
    """Return one value from psutil; None if the process has ended or may not be read."""
    try:
        return question()
    except (psutil.Error, OSError):
        return None


def in_own_namespace() -> bool:
    """Return whether this process has a separate pid namespace, as in a container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) != FIRST_NAMESPACE
    # Not Linux.
    except OSError:
        return False


def open_folders(process: psutil.Process, file_name: str) -> set[Path]:
    """Return the folders in which a process has a file with the given name open; empty if it may not be read."""
    return {
        Path(file.path).parent for file in ask_psutil(process.open_files) or () if Path(file.path).name == file_name
    }
