"""What the system says about processes, by psutil; what may not be asked is None."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import psutil

from fieldwatch.monitor.readings import ProcessFacts

Value = TypeVar("Value")
FIRST_NAMESPACE: Final = "pid:[4026531836]"
"""The machine's own pid namespace (PROC_PID_INIT_INO in linux/proc_ns.h); a container has another."""


class Processes:
    """Looks at processes again and again: a CPU share needs two looks at the very same process."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return what is known about a process; None where there is none of that number."""
        process = self._process(pid)
        if process is None:
            return None
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
        """Let go of processes that ended."""
        self._known = {pid: process for pid, process in self._known.items() if process.is_running()}

    def _process(self, pid: int) -> psutil.Process | None:
        known = self._known.get(pid)
        if known is not None and known.is_running():  # the same process, not another under its number
            return known
        self._known.pop(pid, None)
        try:
            return psutil.Process(pid)
        except (psutil.Error, ValueError):
            return None

    def _cpu_percent(self, process: psutil.Process) -> float | None:
        percent = ask_psutil(process.cpu_percent)
        # psutil measures from call to call, so the first value of a process means nothing.
        first = process.pid not in self._known
        self._known[process.pid] = process
        return None if first else percent


def ask_psutil(question: Callable[[], Value]) -> Value | None:
    """Ask psutil for one thing: None where the process ended or must not be looked into."""
    try:
        return question()
    except (psutil.Error, OSError):
        return None


def in_own_namespace() -> bool:
    """Whether pids here are numbered apart from the machine's, as in a container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) != FIRST_NAMESPACE
    except OSError:  # no Linux
        return False


def open_folders(process: psutil.Process, file_name: str) -> set[Path]:
    """Return the folders in which a process holds a file of that name open; none where that must not be asked."""
    return {
        Path(file.path).parent for file in ask_psutil(process.open_files) or () if Path(file.path).name == file_name
    }
