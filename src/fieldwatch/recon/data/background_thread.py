"""A worker thread that decodes data ahead of use and reports its own death to waiting callers."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
CHECK_INTERVAL = 1.0
"""Interval in seconds between two checks that the thread is alive."""


class BackgroundThread:
    """Calls functions one after another in a separate thread.

    Args:
        name: thread name, shown in stack traces and errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[threading.Thread] = []
        # The initializer runs in the worker and records it, which the executor does not expose.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=self._register_thread)

    def submit(self, function: Callable[[int], Result], number: int) -> Future[Result]:
        """Queue a function call."""
        return self._pool.submit(function, number)

    def result(self, future: Future[Result]) -> Result:
        """Wait for the result of a queued call.

        Raises:
            RuntimeError: if the thread no longer exists, for example in a forked child process.
        """
        while True:
            try:
                # The wait is bounded, because nobody completes the future if the worker is gone.
                return future.result(timeout=CHECK_INTERVAL)
            except TimeoutError:
                if future.done():  # raised by the function itself, not by the wait
                    raise
            # Threads do not survive a fork, so in a child process the future would never complete.
            if self._threads and not any(thread.is_alive() for thread in self._threads):
                raise RuntimeError(
                    f"the decoding thread {self._name} has died: open the data in the process that uses it, not "
                    "before a fork"
                )

    def close(self) -> None:
        """Finish the current call, cancel the queued ones and end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _register_thread(self) -> None:
        self._threads.append(threading.current_thread())
