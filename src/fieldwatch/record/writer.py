"""The writer thread: receives finished blocks from the training thread and passes them to all consumers."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from fieldwatch.record.row import Block

POLL_SECONDS = 0.0005
"""Seconds between two polls of an unfinished device transfer."""


Reader: TypeAlias = Callable[[Sequence[Block]], None]
"""A consumer of the blocks of a transfer, in step order."""


@runtime_checkable
class Transfer(Protocol):
    """An asynchronous copy of rows from the device to the host."""

    def ready(self) -> bool:
        """Whether the copy is complete."""
        ...

    def blocks(self) -> Sequence[Block]:
        """Return the rows as blocks in step order. Call it only when :meth:`ready` returns True."""
        ...


class WriterFailed(RuntimeError):  # noqa: N818  named after the finding
    """Raised in the training thread after a reader failed on the writer thread; the cause is chained."""


@dataclass
class _Barrier:
    """Queue item that signals when everything queued before it has been processed."""

    reached: threading.Event = field(default_factory=threading.Event)


class WriterThread:
    """Passes blocks, in order, to the readers (journal, sinks, history, rules) on a separate thread.

    All blocks of a transfer are passed at once: a loop whose metrics change from step to step has many short ones.

    An exception in a reader stops the writer and is re-raised in the training thread at its next :meth:`submit` or
    :meth:`drain`, so that an error such as a full disk cannot go unnoticed.

    Args:
        readers: consumers, each called with the blocks of every transfer, in this order.
        tend: housekeeping callback, called before every wait for the next item. It returns the number of seconds after
            which to call it again if no item arrives, or None to wait indefinitely.
    """

    def __init__(self, readers: Sequence[Reader], tend: Callable[[], float | None] = lambda: None) -> None:
        self._readers = tuple(readers)
        self._tend = tend
        self._queue: queue.SimpleQueue[Transfer | Callable[[], None] | _Barrier | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        # A daemon thread, so that the interpreter can exit after an error in the main thread.
        self._thread = threading.Thread(target=self._work, name="fieldwatch-writer", daemon=True)
        self._thread.start()

    def submit(self, item: Transfer | Callable[[], None]) -> None:
        """Queue a transfer of rows, or a callable to run in order with them.

        Raises:
            WriterFailed: if a reader failed on an earlier item.
        """
        self._raise_failure()
        self._queue.put(item)

    def drain(self) -> None:
        """Wait until everything queued so far has been processed.

        Raises:
            WriterFailed: if a reader failed.
        """
        barrier = _Barrier()
        self._queue.put(barrier)
        # The thread may die before it reaches the barrier: poll instead of waiting forever.
        while not barrier.reached.wait(timeout=0.5):
            if not self._thread.is_alive():
                break
        self._raise_failure()

    def close(self) -> None:
        """Process the remaining items, then stop the thread. Never raises, so as not to mask another error."""
        # None ends the loop; items queued before it are still processed.
        self._queue.put(None)
        self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """Exception that a reader raised, or None."""
        return self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # Chained, so that the traceback shows the reader's error and its origin.
            raise WriterFailed(
                f"recording stopped: {type(self._failure).__name__}: {self._failure}; "
                "training stops too, since its next steps would go unrecorded. Fix the cause and resume the run"
            ) from self._failure

    def _work(self) -> None:
        try:
            self._process_items()
        except BaseException as error:  # noqa: BLE001  thread border: re-raised in the training thread
            self._failure = error

    def _process_items(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, _Barrier):
                item.reached.set()
            elif callable(item):
                item()
            else:
                self._read(item)

    def _next(self) -> Transfer | Callable[[], None] | _Barrier | None:
        while True:
            try:
                # `tend` runs before every wait, so that pending writes are retried even if no rows arrive.
                return self._queue.get(timeout=self._tend())
            except queue.Empty:
                pass

    def _read(self, transfer: Transfer) -> None:
        # Poll instead of synchronizing on the event: `record` does not import torch, and sleeping is free for the GPU.
        while not transfer.ready():
            time.sleep(POLL_SECONDS)
        blocks = transfer.blocks()
        for reader in self._readers:
            reader(blocks)
