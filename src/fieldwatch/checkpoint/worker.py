"""A background thread that writes checkpoints, one at a time."""

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from fieldwatch.checkpoint.incident import CheckpointError

NICENESS = 10
# Waiting in intervals lets signal handlers run on the main thread.
_POLL_SECONDS = 0.2


class BackgroundWorker:
    """A low-priority thread that runs one task at a time; it starts with its first task.

    An exception in a task is kept and raised on the training thread, so that no error is lost.

    Args:
        name: name of the thread.
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
        """Whether a task is in progress."""
        return not self._idle.is_set()

    def begin(self, work: Callable[[], None]) -> None:
        """Start a task.

        Raises:
            RuntimeError: if a task is in progress.
            CheckpointError: if an earlier task failed unexpectedly.
        """
        # An error of the previous task must not be lost.
        self.raise_failure()
        if self.busy:
            raise RuntimeError(f"{self._name} is busy with another task: call wait() first")
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._idle.clear()
        self._queue.put(work)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no task is in progress, at most ``seconds``; return whether none is."""
        if seconds is not None:
            return self._idle.wait(seconds)
        while not self._idle.wait(_POLL_SECONDS):
            pass
        return True

    def raise_failure(self) -> None:
        """Raise the exception of the last task, if any.

        Raises:
            CheckpointError: from the exception of the task.
        """
        failure = self._failure
        if failure is not None:
            self._failure = None
            raise CheckpointError(
                f"unexpected {type(failure).__name__} in the thread {self._name}: {failure}; this checkpoint was not "
                "written, earlier checkpoints are untouched: please report this error with its traceback"
            ) from failure

    def close(self, seconds: float | None = None) -> bool:
        """Wait at most ``seconds`` for the task in progress, then end the thread; return whether the task ended."""
        ended = self.wait(seconds)
        if self._thread is not None:
            self._queue.put(None)
            if ended:
                self._thread.join()
        return ended

    def _work(self) -> None:
        # Not all systems have a separate priority per thread.
        with suppress(OSError):
            # On Linux, PRIO_PROCESS with a thread ID changes only that thread.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (work := self._queue.get()) is not None:
            self._do(work)
            # The task holds the snapshot: release its memory before waiting for the next one.
            del work

    def _do(self, work: Callable[[], None]) -> None:
        self._failure = None
        try:
            work()
        except BaseException as error:  # noqa: BLE001  thread border: kept, and raised on the training thread
            self._failure = error
        finally:
            self._idle.set()
