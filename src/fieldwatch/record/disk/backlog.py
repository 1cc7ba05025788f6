"""Backlog of writes that wait in memory, in order, while the disk is full. Training continues meanwhile."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from fieldwatch.base import DiskFullError, disk_full, duration, lacks_space
from fieldwatch.record.disk.reserve import ROWS_BYTES, Reserve

DISK_FULL: Final = "disk_full"
"""Kind of the event at the start of a pause."""
DISK_FREED: Final = "disk_freed"
"""Kind of the event at the end of a pause, with the number of delayed writes."""
DISK_EVENTS: Final = (DISK_FULL, DISK_FREED)
LIMIT: Final = 256 << 20
"""Maximum size of all waiting writes, in bytes. Exceeding it stops the run."""
OPTIONAL_LIMIT: Final = 64 << 20
"""Maximum size of waiting images and histograms, in bytes. Further ones are dropped and counted."""
RETRY_SECONDS: Final = 0.5
"""Seconds between two attempts to write the backlog."""
MARGIN: Final = ROWS_BYTES
"""Bytes that must be free in addition to the reserve before the pause ends."""

Result = TypeVar("Result")


@dataclass(kw_only=True)
class FullDiskPause:
    """A period during which the disk was full.

    Attributes:
        began: start time, on the clock of :class:`WriteBacklog`.
        seconds: duration; 0 while the pause lasts.
        rows: number of journal rows that had to wait in memory.
        writes: number of writes of any kind that had to wait.
        nbytes: total size of these writes, in bytes.
        dropped: number of images, histograms and other optional writes that were dropped.
        over: whether the disk has space again and all waiting writes are done.
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
    """The pending writes of one file, in order.

    Until :meth:`attach` is called, data is written immediately and errors are raised.

    Args:
        write: appends data to the file, all or nothing.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
        self.pending = deque[_Write]()
        self.from_reserve = False
        self._backlog: WriteBacklog | None = None

    def attach(self, backlog: "WriteBacklog", *, from_reserve: bool = False) -> None:
        """Let writes wait in a backlog while the disk is full.

        Args:
            backlog: backlog of the run.
            from_reserve: whether the file may use the disk blocks reserved for rows.
        """
        self._backlog = backlog
        self.from_reserve = from_reserve
        backlog.add(self)

    def append(self, data: bytes, *, rows: int = 0, optional: bool = False) -> None:
        """Write data, or queue it if the disk is full.

        Args:
            data: bytes to append.
            rows: number of journal rows in the data.
            optional: whether the data may be dropped if too many optional writes are waiting.

        Raises:
            DiskFullError: if the backlog is full.
            OSError: if the write fails for a reason other than lack of space.
        """
        if self._backlog is None:
            self.write(data)
        else:
            self._backlog.write(self, data, rows=rows, optional=optional)

    @property
    def nbytes(self) -> int:
        """Number of bytes waiting to be written."""
        return sum(len(write.data) for write in self.pending)


@final
class WriteBacklog:
    """The waiting writes of one run, with one queue per file. Thread-safe.

    While the disk is full (ENOSPC, EDQUOT), the journal and the events first use up the reserve; after that, all writes
    wait in memory. Each queue preserves its order, so nothing is lost or written twice. The pause ends when everything
    is written and the reserve is complete again.

    Args:
        folder: the run folder, for messages.
        reserve: disk blocks to use when the disk is full.
        limit: maximum number of waiting bytes; exceeding it is an error. None for :data:`LIMIT`.
        optional_limit: maximum number of waiting bytes of optional writes; further ones are dropped. None for
            :data:`OPTIONAL_LIMIT`.
        clock: monotonic clock, in seconds.

    Attributes:
        pause: the current pause; None while the disk has space.
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
        # Reentrant, because `flush` and `close` read `rows` while they hold the lock.
        self._lock = threading.RLock()
        self._next_retry = 0.0
        self._closed = False

    @property
    def rows(self) -> int:
        """Number of journal rows currently waiting."""
        with self._lock:
            return sum(write.rows for queue in self._queues for write in queue.pending)

    @property
    def nbytes(self) -> int:
        """Number of bytes currently waiting."""
        return self._nbytes

    def add(self, queue: WriteQueue) -> None:
        """Register a queue. Called by :meth:`WriteQueue.attach`."""
        with self._lock:
            self._queues.append(queue)

    def write(self, queue: WriteQueue, data: bytes, *, rows: int, optional: bool) -> None:
        """Write data to a queue's file, or queue it; see :meth:`WriteQueue.append`.

        Raises:
            DiskFullError: if the backlog is full.
            OSError: if the write fails for a reason other than lack of space.
        """
        with self._lock:
            # Never overtake older data of the same file: readers rely on the order within a file.
            if queue.pending or not self._try_write(queue, data):
                self._keep(queue, _Write(data=data, rows=rows, optional=optional))

    def retry(self) -> None:
        """If a retry is due, try to write the backlog and to refill the reserve. Cheap enough to call for every row."""
        # Read without the lock, since this is called for every row; a stale value only delays a retry.
        if self.pause is not None and self._clock() >= self._next_retry:
            with self._lock:
                self._drain()
                self._next_retry = self._clock() + RETRY_SECONDS

    def flush(self) -> None:
        """Write the whole backlog now.

        Raises:
            DiskFullError: if the disk is still full.
            OSError: if a write fails for another reason.
        """
        # Nothing waits in the common case: skip the lock.
        if not self._nbytes:
            return
        with self._lock:
            self._drain()
            if self._nbytes:
                raise disk_full(self._folder, f"{self.rows} rows and {self._nbytes:,} bytes in all wait for free space")

    def try_optional(self, action: Callable[[], object]) -> bool:
        """Run an optional action that writes to the disk.

        Returns:
            True on success; False if the disk is full. The action then counts as dropped.

        Raises:
            DiskFullError: if the backlog is full.
            OSError: if the action fails for another reason.
        """
        try:
            action()
        except OSError as error:
            # DiskFullError means that the backlog has reached its limit; only a plain lack of space may be ignored.
            if isinstance(error, DiskFullError) or not lacks_space(error):
                raise
            with self._lock:
                self._begin_pause().dropped += 1
            return False
        return True

    def run_required(self, action: Callable[[], Result]) -> Result:
        """Run an action that cannot wait, such as the final writes of a run. If the disk is full, release the reserve.

        Args:
            action: callable that writes to the disk; may be called twice.

        Raises:
            DiskFullError, OSError: if even the reserve does not suffice, or the action fails for another reason.
        """
        # Try without touching the reserve first, unless the disk is known to be full.
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
        """Delete the reserve and write as much of the backlog as possible.

        Returns:
            Number of journal rows and total number of bytes that could not be written and are lost.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._reserve.close()  # frees its blocks for the waiting writes
                self._drain()
            return self.rows, self._nbytes

    def _try_write(self, queue: WriteQueue, data: bytes) -> bool:
        """Write data, using blocks of the reserve if necessary; return False if the disk is full."""
        # Each pass releases another piece of the reserve, until the write succeeds or nothing is left to release.
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
        # Images have a separate, smaller limit, so that they cannot displace rows.
        if write.optional and self._optional_nbytes + nbytes > self._optional_limit:
            pause.dropped += 1
            return
        # The memory of the training must not be exhausted by its record: stop with a clear error instead.
        if self._nbytes + nbytes > self._limit:
            since = self._clock() - pause.began
            raise disk_full(
                self._folder,
                f"the disk has been full for {duration(since)}; at most {self._limit:,} bytes of the record can wait "
                f"in memory, got {self._nbytes + nbytes:,}: free disk space, then resume the run",
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
        """Write as much of the backlog as fits; end the pause if all is written and the reserve is complete again."""
        for queue in self._queues:
            # Keep the head in the queue until it is written, so that an error loses nothing.
            while queue.pending and self._try_write(queue, queue.pending[0].data):
                self._count(queue.pending.popleft(), -1)
        if self.pause is None or self._nbytes:
            return
        # Require a margin beyond the reserve; otherwise a nearly full disk would start a new pause at the next row.
        if self._closed or self._reserve.refill(beyond=MARGIN):
            self.pause.seconds = self._clock() - self.pause.began
            self.pause.over = True
            self.pause = None


def try_optional(waiting: WriteBacklog | None, action: Callable[[], object]) -> bool:
    """Run an optional action via :meth:`WriteBacklog.try_optional`; without a backlog, let its errors propagate."""
    if waiting is not None:
        return waiting.try_optional(action)
    action()
    return True
