"""One thread that decodes ahead of a loop; whoever waits for it learns when it is no more."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
CHECK_INTERVAL = 1.0
"""Seconds between two looks at whether the thread still lives."""


class BackgroundThread:
    """Calls functions one after the other, in a thread of its own.

    Args:
        name: of the thread, for whoever reads a stack or an error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=self._register_thread)

    def submit(self, function: Callable[[int], Result], number: int) -> Future[Result]:
        """Call a function when its turn comes."""
        return self._pool.submit(function, number)

    def result(self, future: Future[Result]) -> Result:
        """Wait for a result that was asked for.

        Raises:
            RuntimeError: the thread is no more, as in a process that was forked from the one that had it.
        """
        while True:
            try:
                # A bounded wait, because only this thread can notice that the worker is gone.
                return future.result(timeout=CHECK_INTERVAL)
            except TimeoutError:
                if future.done():  # the function's own
                    raise
            # Threads do not survive a fork: in a child process the future would never complete.
            if self._threads and not any(thread.is_alive() for thread in self._threads):
                raise RuntimeError(
                    f"the thread {self._name} that decodes ahead has died, what it was to decode never comes: open the "
                    "data in the process that uses it, not before a fork"
                )

    def close(self) -> None:
        """Finish what is being done, drop the rest, and end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _register_thread(self) -> None:
        self._threads.append(threading.current_thread())
