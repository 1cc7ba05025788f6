"""The process's own memory as the system counts it: resident now, and the most since a mark."""

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
"""What ``clear_refs`` takes as: forget the high-water mark, and nothing else (proc(5))."""


class _ProcFile:
    """A file of ``/proc/self`` that stays open, so that a look costs one system call.

    ``/proc/self`` stands for whoever opened it: a forked process opens its own.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._flags = flags
        self._open()

    def descriptor(self) -> int:
        """The descriptor that belongs to this process."""
        # After a fork the descriptor still shows the parent's memory.
        if self._owner != os.getpid():
            self._close()
            self._open()
        return self._descriptor

    def _open(self) -> None:
        self._owner = os.getpid()
        self._descriptor = os.open(self._path, self._flags | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)


class ResidentMemory:
    """Resident memory of this process: a microsecond on Linux, through psutil elsewhere.

    The kernel may count a few pages per processor late. Pages that are shared with other processes are counted in.

    Args:
        folder: where the system shows the process.
    """

    def __init__(self, folder: Path = PROC) -> None:
        try:
            self._statm: _ProcFile | None = _ProcFile(folder / "statm", os.O_RDONLY)
        except OSError:
            self._statm = None

    def read(self) -> int:
        """Bytes."""
        if self._statm is None:
            return psutil.Process().memory_info().rss
        # The second field of statm is the number of resident pages.
        return int(os.pread(self._statm.descriptor(), 128, 0).split(maxsplit=2)[1]) * PAGE


class HighWaterMark:
    """The most that was resident since :meth:`mark`. Linux only, and where the process may set the mark.

    The mark is the process's only one: ``VmHWM`` and ``ru_maxrss`` begin anew for others too.

    Args:
        folder: where the system shows the process.

    Raises:
        OSError: the system has no such mark, or does not let this process set it.
    """

    def __init__(self, folder: Path = PROC) -> None:
        self._status = _ProcFile(folder / "status", os.O_RDONLY)
        self._clear_refs = _ProcFile(folder / "clear_refs", os.O_WRONLY)
        self.read()
        self.mark()

    def mark(self) -> None:
        """Begin anew from what is resident now."""
        os.pwrite(self._clear_refs.descriptor(), _RESET_HIGH_WATER, 0)

    def read(self) -> int:
        """Bytes."""
        found = _HIGH_WATER.search(os.pread(self._status.descriptor(), 8192, 0))
        if found is None:
            raise OSError("the system shows no VmHWM in /proc/self/status: the peak of a span cannot be read here")
        return int(found[1]) * 1024
