"""Memory of this process as counted by the operating system: resident memory and its high-water mark."""

import os
import re
import weakref
from pathlib import Path

import psutil

PAGE = os.sysconf("SC_PAGE_SIZE")
PROC = Path("/proc/self")
# The line ``VmHWM:     123456 kB`` of /proc/self/status.
_HIGH_WATER = re.compile(rb"^VmHWM:\s*(\d+) kB", re.MULTILINE)
_RESET_HIGH_WATER = b"5"
"""Value that, written to ``clear_refs``, resets only the high-water mark; see proc(5)."""


class _ProcFile:
    """A file in ``/proc/self`` that is kept open, so that a reading costs one system call.

    ``/proc/self`` refers to the process that opened it, so a forked process opens the file again.

    Raises:
        OSError: if the file cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._flags = flags
        self._open()

    def descriptor(self) -> int:
        """Return a descriptor that refers to the current process."""
        # After a fork the old descriptor still refers to the parent process.
        if self._owner != os.getpid():
            self._close()
            self._open()
        return self._descriptor

    def _open(self) -> None:
        self._owner = os.getpid()
        self._descriptor = os.open(self._path, self._flags | os.O_CLOEXEC)
        # Closes the descriptor when the object is garbage-collected, or at once when called.
        self._close = weakref.finalize(self, os.close, self._descriptor)


class ResidentMemory:
    """Resident memory of this process: takes a microsecond on Linux, and uses psutil elsewhere.

    The kernel may update the count with a delay of a few pages per processor. Pages shared with other processes are
    included.

    Args:
        folder: folder of the process in the proc file system.
    """

    def __init__(self, folder: Path = PROC) -> None:
        try:
            self._statm: _ProcFile | None = _ProcFile(folder / "statm", os.O_RDONLY)
        except OSError:
            self._statm = None

    def read(self) -> int:
        """Return the resident memory in bytes."""
        if self._statm is None:
            # No proc file system, for example on macOS.
            return psutil.Process().memory_info().rss
        # The second field of statm is the number of resident pages.
        return int(os.pread(self._statm.descriptor(), 128, 0).split(maxsplit=2)[1]) * PAGE


class HighWaterMark:
    """Peak of the resident memory since :meth:`mark`. Requires Linux and permission to reset the mark.

    A process has only one mark: resetting it also resets ``VmHWM`` and ``ru_maxrss`` for other code.

    Args:
        folder: folder of the process in the proc file system.

    Raises:
        OSError: if the system has no high-water mark, or this process may not reset it.
    """

    def __init__(self, folder: Path = PROC) -> None:
        self._status = _ProcFile(folder / "status", os.O_RDONLY)
        self._clear_refs = _ProcFile(folder / "clear_refs", os.O_WRONLY)
        # Fail early if the mark cannot be read or reset.
        self.read()
        self.mark()

    def mark(self) -> None:
        """Reset the mark to the current resident memory."""
        os.pwrite(self._clear_refs.descriptor(), _RESET_HIGH_WATER, 0)

    def read(self) -> int:
        """Return the high-water mark in bytes."""
        match = _HIGH_WATER.search(os.pread(self._status.descriptor(), 8192, 0))
        if match is None:
            raise OSError("/proc/self/status has no VmHWM: peak memory cannot be measured on this system")
        return int(match[1]) * 1024
