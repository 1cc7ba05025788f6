"""The writer thread: takes finished blocks from the training thread and hands them to everything that reads them."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from fieldwatch.record.row import Block, Sink

POLL_SECONDS = 0.0005
"""How often an unfinished device transfer is asked whether it has arrived."""


@runtime_checkable
class Transfer(Protocol):
    """Rows on their way from the device: ready when the copy has arrived."""

    def ready(self) -> bool:
        """Whether the bytes are on the host."""
        ...

    def blocks(self) -> Sequence[Block]:
        """The rows, as blocks in step order; only to be asked once ``ready``."""
        ...


class WriterFailed(RuntimeError):  # noqa: N818  it says what happened, as in the loop's `except WriterFailed`
    """A reader of the record raised on the writer thread; the cause is chained."""


@dataclass
class _Barrier:
    reached: threading.Event = field(default_factory=threading.Event)


class WriterThread:
    """Feeds blocks, in order, to the readers (journal, sinks, history, rules) on a thread of its own.

    A reader that raises stops the writer; the training thread meets the exception at its next ``submit`` or ``drain``,
    so a full disk is neither swallowed nor reported from nowhere.

    Args:
        readers: called with every block, in this order.
        tend: called before every wait for the next item; returns after how many seconds without an item it wants to
            be called again, None for never.
    """

    def __init__(self, readers: Sequence[Sink], tend: Callable[[], float | None] = lambda: None) -> None:
        self._readers = tuple(readers)
        self._tend = tend
        self._queue: queue.SimpleQueue[Transfer | Callable[[], None] | _Barrier | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="fieldwatch-writer", daemon=True)
        self._thread.start()

    def submit(self, item: Transfer | Callable[[], None]) -> None:
        """Queue a transfer of rows, or a call that must happen in order with them.

        Raises:
            WriterFailed: a reader raised on an earlier item.
        """
        self._raise_failure()
        self._queue.put(item)

    def drain(self) -> None:
        """Wait until everything queued so far has been read.

        Raises:
            WriterFailed: a reader raised.
        """
        barrier = _Barrier()
        self._queue.put(barrier)
        # The thread may die without reaching the barrier: poll, instead of waiting forever.
        while not barrier.reached.wait(timeout=0.5):
            if not self._thread.is_alive():
                break
        self._raise_failure()

    def close(self) -> None:
        """Read what is queued, then end the thread; never raises: another error may be on its way."""
        self._queue.put(None)
        self._thread.join()

    @property
    def failure(self) -> BaseException | None:
        """What a reader raised, if one did."""
        return self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise WriterFailed(
                f"recording stopped: {type(self._failure).__name__}: {self._failure}; "
                "training stops too, because an unrecorded run cannot be trusted. Mend the cause and resume the run"
            ) from self._failure

    def _work(self) -> None:
        try:
            self._read_for_ever()
        except BaseException as error:  # noqa: BLE001  thread border: kept, and raised in the training thread
            self._failure = error

    def _read_for_ever(self) -> None:
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
                # `tend` runs before every wait, so pending work is retried also while no rows come.
                return self._queue.get(timeout=self._tend())
            except queue.Empty:
                pass

    def _read(self, transfer: Transfer) -> None:
        # Polled, not waited for: this room knows no torch, and a short sleep costs the device nothing.
        while not transfer.ready():
            time.sleep(POLL_SECONDS)
        for block in transfer.blocks():
            for reader in self._readers:
                reader(block)
