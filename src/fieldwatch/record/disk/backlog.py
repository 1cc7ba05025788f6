"""What a full disk refuses waits here, in order, until there is room; the training goes on meanwhile."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from fieldwatch.base import DiskFullError, disk_full, lacks_space
from fieldwatch.record.disk.reserve import ROWS_BYTES, Reserve

DISK_FULL: Final = "disk_full"
"""The event at the start of a pause."""
DISK_FREED: Final = "disk_freed"
"""The event at its end, with what waited."""
DISK_EVENTS: Final = (DISK_FULL, DISK_FREED)
LIMIT: Final = 256 << 20
"""Bytes that may wait in memory, of all files together. More ends the run."""
OPTIONAL_LIMIT: Final = 64 << 20
"""Bytes of pictures and histograms among them. More of these are dropped, and counted."""
RETRY_SECONDS: Final = 0.5
"""Time between two tries to write what waits."""
MARGIN: Final = ROWS_BYTES
"""Bytes that have to be free beside the reserve before the disk counts as free again."""

Result = TypeVar("Result")


@dataclass(kw_only=True)
class FullDiskPause:
    """A period during which the disk was full.

    Attributes:
        began: when, on the clock of :class:`WriteBacklog`.
        seconds: how long it took; 0 until it is over.
        rows: rows of the journal that had to wait in memory.
        writes: writes of any kind that had to.
        nbytes: their bytes.
        dropped: pictures, histograms and other optional things that were given up.
        over: whether there is room again, and everything that waited is written.
    """

    began: float
    seconds: float = 0.0
    rows: int = 0
    writes: int = 0
    nbytes: int = 0
    dropped: int = 0
    over: bool = False


@dataclass(frozen=True, kw_only=True)
class _Write:
    data: bytes
    rows: int
    optional: bool


@final
class WriteQueue:
    """The pending writes of one file, in order; without :meth:`attach` it writes at once, and errors come through.

    Args:
        write: appends to the file, all or nothing.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
        self.pending = deque[_Write]()
        self.from_reserve = False
        self._backlog: WriteBacklog | None = None

    def attach(self, backlog: "WriteBacklog", *, from_reserve: bool = False) -> None:
        """Let what a full disk refuses wait.

        Args:
            backlog: where.
            from_reserve: whether the file may use the blocks that were reserved for rows.
        """
        self._backlog = backlog
        self.from_reserve = from_reserve
        backlog.add(self)

    def append(self, data: bytes, *, rows: int = 0, optional: bool = False) -> None:
        """Write, or wait.

        Args:
            data: what to append.
            rows: how many rows of the journal that is.
            optional: it may be dropped when too much waits.

        Raises:
            DiskFullError: too much waits already.
            OSError: the system refused for another reason than lack of space.
        """
        if self._backlog is None:
            self.write(data)
        else:
            self._backlog.write(self, data, rows=rows, optional=optional)

    @property
    def nbytes(self) -> int:
        """Bytes that wait to be appended."""
        return sum(len(write.data) for write in self.pending)


@final
class WriteBacklog:
    """The waiting writes of one run, a queue per file. Any thread may write.

    While the disk has no room (ENOSPC, EDQUOT), the journal and the events first use up the reserve; then all writes
    wait in memory. Each queue keeps its order: nothing is lost or written twice. The disk counts as free again when
    everything is written and the reserve is whole.

    Args:
        folder: the run folder, for messages.
        reserve: blocks to be used when the disk is full.
        limit: bytes that may wait; more is an error. None for :data:`LIMIT`.
        optional_limit: bytes of optional things that may wait; more are dropped. None for :data:`OPTIONAL_LIMIT`.
        clock: seconds that only ever go forward.

    Attributes:
        pause: the present period without room; None while there is room.
    """

    def __init__(
        self,
        folder: Path,
        reserve: Reserve,
        *,
        limit: int | None = None,
        optional_limit: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pause: FullDiskPause | None = None
        self._folder = folder
        self._reserve = reserve
        self._clock = clock
        self._limit = LIMIT if limit is None else limit
        self._optional_limit = OPTIONAL_LIMIT if optional_limit is None else optional_limit
        self._queues: list[WriteQueue] = []
        self._nbytes = 0
        self._optional_nbytes = 0
        self._lock = threading.RLock()
        self._next_retry = 0.0
        self._closed = False

    @property
    def rows(self) -> int:
        """Rows of the journal that wait at this moment."""
        with self._lock:
            return sum(write.rows for queue in self._queues for write in queue.pending)

    @property
    def nbytes(self) -> int:
        """Bytes that wait at this moment."""
        return self._nbytes

    def add(self, queue: WriteQueue) -> None:
        """Take a queue in; done by :meth:`WriteQueue.join`."""
        with self._lock:
            self._queues.append(queue)

    def write(self, queue: WriteQueue, data: bytes, *, rows: int, optional: bool) -> None:
        """Write to a queue's file, or keep it; see :meth:`WriteQueue.append`.

        Raises:
            DiskFullError: too much waits already.
            OSError: the system refused for another reason than lack of space.
        """
        with self._lock:
            # Never past older data of the same file: order within a file is what readers rely on.
            if queue.pending or not self._try_write(queue, data):
                self._keep(queue, _Write(data=data, rows=rows, optional=optional))

    def retry(self) -> None:
        """Try again to write what waits, if it is time to, and to take the reserve back; costs nothing otherwise."""
        # Read without the lock: called for every row, and a stale answer only delays a retry.
        if self.pause is not None and self._clock() >= self._next_retry:
            with self._lock:
                self._drain()
                self._next_retry = self._clock() + RETRY_SECONDS

    def flush(self) -> None:
        """Write everything that waits, now.

        Raises:
            DiskFullError: there is no room.
            OSError: the system refused for another reason.
        """
        if not self._nbytes:
            return
        with self._lock:
            self._drain()
            if self._nbytes:
                raise disk_full(self._folder, f"{self.rows} rows and {self._nbytes:,} bytes in all wait for free space")

    def try_optional(self, action: Callable[[], object]) -> bool:
        """Do something that needs space and can be left out; False, and counted as dropped, where there is none.

        Raises:
            DiskFullError: too much waits already.
            OSError: the system refused for another reason.
        """
        try:
            action()
        except OSError as error:
            # DiskFullError means that the backlog is at its limit; only a plain lack of space may be passed over.
            if isinstance(error, DiskFullError) or not lacks_space(error):
                raise
            with self._lock:
                self._begin_pause().dropped += 1
            return False
        return True

    def run_required(self, action: Callable[[], Result]) -> Result:
        """Do something that cannot wait, such as the final writes of a run: on a full disk in the rest of the reserve.

        Args:
            action: may be called twice.

        Raises:
            DiskFullError, OSError: there is no room even then, or the system refused for another reason.
        """
        if self.pause is None:
            try:
                return action()
            except OSError as error:
                if not lacks_space(error):
                    raise
        with self._lock:
            self._begin_pause()
            self._reserve.release()
        return action()

    def close(self) -> tuple[int, int]:
        """Write what can be written, and delete the reserve.

        Returns:
            How many rows of the journal, and how many bytes in all, are lost with this process.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._reserve.close()  # its blocks are room for what waits
                self._drain()
            return self.rows, self._nbytes

    def _try_write(self, queue: WriteQueue, data: bytes) -> bool:
        """Write, in the reserve's blocks if need be; False where there is no room."""
        while True:
            try:
                queue.write(data)
            except OSError as error:
                if not lacks_space(error):
                    raise
                self._begin_pause()
            else:
                return True
            if not (queue.from_reserve and self._reserve.give_up(len(data))):
                return False

    def _begin_pause(self) -> FullDiskPause:
        if self.pause is None:
            self.pause = FullDiskPause(began=self._clock())
            self._next_retry = self._clock() + RETRY_SECONDS
        return self.pause

    def _keep(self, queue: WriteQueue, write: _Write) -> None:
        pause = self._begin_pause()
        nbytes = len(write.data)
        # Pictures must not push out rows: they have a smaller limit of their own.
        if write.optional and self._optional_nbytes + nbytes > self._optional_limit:
            pause.dropped += 1
            return
        if self._nbytes + nbytes > self._limit:
            since = self._clock() - pause.began
            raise disk_full(
                self._folder,
                f"the disk has been full for {since:.0f} s; expected at most {self._limit:,} bytes of the record to "
                f"wait in memory, got {self._nbytes + nbytes:,}: free space, then resume the run",
            )
        queue.pending.append(write)
        self._count(write, 1)
        pause.rows += write.rows
        pause.writes += 1
        pause.nbytes += nbytes

    def _count(self, write: _Write, sign: int) -> None:
        self._nbytes += sign * len(write.data)
        self._optional_nbytes += sign * len(write.data) * write.optional

    def _drain(self) -> None:
        """Write what waits, as far as there is room; the pause is over when all is written and the reserve is whole."""
        for queue in self._queues:
            # The head stays queued until it is written: an error in between loses nothing.
            while queue.pending and self._try_write(queue, queue.pending[0].data):
                self._count(queue.pending.popleft(), -1)
        if self.pause is None or self._nbytes:
            return
        # A margin beyond the reserve, or a disk with little room would be full again at the next row.
        if self._closed or self._reserve.refill(beyond=MARGIN):
            self.pause.seconds = self._clock() - self.pause.began
            self.pause.over = True
            self.pause = None


def try_optional(waiting: WriteBacklog | None, action: Callable[[], object]) -> bool:
    """Do what :meth:`WriteBacklog.try_optional` does, where there is one; else do it, and let errors come through."""
    if waiting is not None:
        return waiting.try_optional(action)
    action()
    return True
