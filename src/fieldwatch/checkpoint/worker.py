"""A thread that writes checkpoints behind the training's back, one piece of work at a time."""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from fieldwatch.checkpoint.incident import CheckpointError

NICENESS = 10
_POLL_SECONDS = 0.2


class BackgroundWorker:
    """One thread of low priority, started by its first work; it never has more than one piece of work.

    Whatever a piece of work raises is kept and raised on the training's thread: nothing is lost with the thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str = "fieldwatch-saver") -> None:
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether work is in flight."""
        return not self._idle.is_set()

    def begin(self, work: Callable[[], None]) -> None:
        """Start a piece of work.

        Raises:
            RuntimeError: one is in flight: wait for it first.
            CheckpointError: an earlier one ended in a surprise.
        """
        self.raise_failure()
        if self.busy:
            raise RuntimeError(f"{self._name} was given work while it has some: wait() for that first")
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._idle.clear()
        self._queue.put(work)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is in flight, at most so long; returns whether nothing is."""
        if seconds is not None:
            return self._idle.wait(seconds)
        while not self._idle.wait(_POLL_SECONDS):
            pass  # in pieces, so that a signal's handler runs in between
        return True

    def raise_failure(self) -> None:
        """Raise what the last work raised, if it did.

        Raises:
            CheckpointError: from that.
        """
        failure = self._failure
        self._failure = None
        if failure is not None:
            raise CheckpointError(
                f"the thread {self._name} met {type(failure).__name__}: {failure}, which no disk explains; what it "
                "had in hand was not saved, earlier checkpoints are untouched: report this with its traceback"
            ) from failure

    def close(self, seconds: float | None = None) -> bool:
        """Let the work in flight end, at most so long, then end the thread; returns whether it ended. Never raises."""
        ended = self.wait(seconds)
        if self._thread is not None:
            self._queue.put(None)
            if ended:
                self._thread.join()
        return ended

    def _work(self) -> None:
        with suppress(OSError):  # a system where a thread has no priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (work := self._queue.get()) is not None:
            self._do(work)
            del work  # it holds the snapshot

    def _do(self, work: Callable[[], None]) -> None:
        self._failure = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001  thread border: kept, and raised on the training's thread
            self._failure = error
        finally:
            self._idle.set()
