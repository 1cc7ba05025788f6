"""A request to stop, noticed between two steps."""

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, final

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_IMMEDIATE_SECONDS = 2.0


@final
class StopRequest:
    """A context manager under which SIGTERM and SIGINT (ctrl-C) only set a flag, for the loop to save and end in order.

    A second SIGINT within 2 s raises ``KeyboardInterrupt`` at once. Forked workers inherit the handlers: in them
    SIGINT is ignored (the main process decides) and SIGTERM ends them. The previous handlers return on exit.

    Raises:
        RuntimeError: (on entering) outside the main thread, where python allows no handlers.
    """

    def __init__(self) -> None:
        self._requested: signal.Signals | None = None
        self._interrupted = -float("inf")
        self._owner = 0
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> str | None:
        """The name of the first signal that came, e.g. ``"SIGTERM"``; None while none did."""
        return None if self._requested is None else self._requested.name

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 143 for SIGTERM, 130 for SIGINT, 0 while none came."""
        return 0 if self._requested is None else 128 + self._requested

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "StopRequest must be entered in the main thread: python allows signal handlers only there"
            )
        self._owner = os.getpid()
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            _handle_in_worker(number)
            return
        if self._requested is None:
            self._requested = signal.Signals(number)
        if number == signal.SIGINT:
            before, self._interrupted = self._interrupted, time.monotonic()
            if self._interrupted - before < _IMMEDIATE_SECONDS:
                raise KeyboardInterrupt


def _handle_in_worker(number: int) -> None:
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
