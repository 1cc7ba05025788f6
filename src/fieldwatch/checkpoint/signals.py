"""Stop requests by signals: handled between two steps, with the arrival time recorded even during long C++ calls."""

import contextlib
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, final

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that ask a run to save and end; the exit code is 128 plus the signal number: 143, 130, 138, 129."""
PATIENCE = 5.0
"""Seconds after a signal for which work in progress may continue: half of the usual grace period of 10 s."""
# A second SIGINT within this time interrupts at once.
_IMMEDIATE_SECONDS = 2.0
# Interval at which an overdue wait of the main thread is interrupted again.
_POKE_SECONDS = 0.2


@final
class StopRequest:
    """A context manager in which SIGTERM, SIGINT (ctrl-C), SIGUSR1 and SIGHUP only set a flag, for an orderly end.

    A second SIGINT within 2 s raises ``KeyboardInterrupt`` at once. If SIGHUP is ignored (``nohup``), it remains
    ignored. Forked workers inherit the handlers: in them, SIGTERM ends the worker and the other signals do nothing,
    because the main process decides. The previous handlers are restored on exit.

    Python runs a handler only between two bytecodes, so a long call into C++ delays it. To record the arrival time, a
    thread reads the signal number from a socket that the interpreter's C handler writes to; it can run while the call
    does not hold the interpreter lock. If ``signal.set_wakeup_fd`` is already in use, as by asyncio, it is not
    replaced, and the recorded time is that of the handler.

    Args:
        patience: seconds after a signal until work in progress should be abandoned, see :meth:`overdue`.

    Attributes:
        received: whether a signal has arrived; an attribute, so that any thread can read it.
        number: number of the first signal; 0 if there was none.
        patience: seconds until work should be abandoned; may be changed at any time.

    Raises:
        RuntimeError: (on entering) outside the main thread, because Python allows signal handlers only there.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.received = False
        self.patience = patience
        self.number = 0
        self._arrived: float | None = None
        self._interrupted = -float("inf")
        self._owner = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._give_up: Callable[[], NoReturn] | None = None
        self._listener = _SignalListener(self._note, self._poke_main_thread)

    @property
    def requested(self) -> str | None:
        """Name of the first signal that arrived, such as ``"SIGTERM"``; None if there was none."""
        return signal.Signals(self.number).name if self.number else None

    @property
    def exit_code(self) -> int:
        """Exit code for the process: 143 SIGTERM, 130 SIGINT, 138 SIGUSR1, 129 SIGHUP, 0 without a signal."""
        return 128 + self.number if self.number else 0

    @property
    def arrived(self) -> float | None:
        """Time of the first signal, as `time.monotonic()`; None if there was none."""
        return self._arrived if self.received else None

    @property
    def waited(self) -> float:
        """Seconds since the first signal; 0 if there was none."""
        return 0.0 if self.arrived is None else time.monotonic() - self.arrived

    @property
    def overdue(self) -> bool:
        """Whether a signal arrived more than ``patience`` seconds ago."""
        return self.received and self.waited >= self.patience

    def abandonable(self, give_up: Callable[[], NoReturn]) -> "AbandonableWait":
        """Return a context in which a blocking wait is interrupted once the stop request is overdue.

        Args:
            give_up: function that is called during the wait, on the main thread; it must raise.
        """
        return AbandonableWait(self._allow, give_up)

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "StopRequest must be entered in the main thread: Python allows signal handlers only there"
            )
        self._owner = os.getpid()
        for number in STOPPING:
            # Started with nohup: the process must outlive its terminal.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._handle)
        self._listener.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Forked workers inherit the handler, but only the main process may react.
        if os.getpid() != self._owner:
            _handle_in_worker(number)
            return
        self._note()
        if not self.number:
            self.number = number
            self.received = True
        if number == signal.SIGINT:
            before = self._interrupted
            self._interrupted = time.monotonic()
            if self._interrupted - before < _IMMEDIATE_SECONDS:
                raise KeyboardInterrupt
        if self._give_up is not None and self.overdue:
            # Cleared before the call, because it raises and must not be called again while the stack unwinds.
            give_up = self._give_up
            self._give_up = None
            give_up()

    def _note(self) -> None:
        """Record the arrival time of the first signal."""
        # Called by the thread and by the handler; the first call wins.
        if self._arrived is None:
            self._arrived = time.monotonic()

    def _poke_main_thread(self) -> None:
        """Interrupt an abandonable wait of the main thread; called from the listener's thread."""
        if self._give_up is not None and self.overdue:
            # A signal interrupts the system call of the main thread; its handler then calls `give_up`.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _allow(self, give_up: Callable[[], NoReturn] | None) -> None:
        self._give_up = give_up


class AbandonableWait:
    """A context in which a blocking wait may be abandoned. Created by :meth:`StopRequest.abandonable`."""

    __slots__ = ("_allow", "_give_up")

    def __init__(self, allow: Callable[[Callable[[], NoReturn] | None], None], give_up: Callable[[], NoReturn]) -> None:
        self._allow = allow
        self._give_up = give_up

    def __enter__(self) -> None:
        self._allow(self._give_up)

    def __exit__(self, *_: object) -> None:
        self._allow(None)


class _SignalListener:
    """A thread that the interpreter notifies of signals; idle until one arrives.

    Args:
        arrived: called at the first stop signal.
        poke: called repeatedly from then on.
    """

    def __init__(self, arrived: Callable[[], None], poke: Callable[[], None]) -> None:
        self._arrived = arrived
        self._poke_main_thread = poke
        self._closing = threading.Event()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start listening, unless another listener is registered."""
        reader, writer = socket.socketpair()
        # The interpreter's C handler must never block.
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # Another listener is registered, such as an event loop: restore it.
        if before != -1:
            signal.set_wakeup_fd(before)
            reader.close()
            writer.close()
            return
        _LISTENERS.add(self)
        self._sockets = reader, writer
        self._closing.clear()
        self._thread = threading.Thread(target=self._work, args=(reader,), name="fieldwatch-signals", daemon=True)
        self._thread.start()

    def listen(self) -> None:
        """Register for signals again."""
        if self._sockets is not None:
            signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        """Stop listening and join the thread."""
        if self._sockets is None or self._thread is None:
            return
        signal.set_wakeup_fd(-1)
        _LISTENERS.discard(self)
        self._closing.set()
        # If the socket is full of signals, the thread is awake anyway.
        with contextlib.suppress(BlockingIOError):
            self._sockets[1].send(b"\0")
        self._thread.join()
        for socket_end in self._sockets:
            socket_end.close()
        self._sockets = self._thread = None

    def _work(self, reader: socket.socket) -> None:
        # The interpreter's C handler writes each signal's number as one byte.
        while not set(reader.recv(4096)).intersection(STOPPING):
            if self._closing.is_set():
                return
        self._arrived()
        reader.setblocking(False)
        while not self._closing.wait(_POKE_SECONDS):
            # Read on: the interpreter may complain of each signal, such as the end of a child, that finds no room.
            with contextlib.suppress(BlockingIOError):
                reader.recv(4096)
            self._poke_main_thread()


_LISTENERS: "weakref.WeakSet[_SignalListener]" = weakref.WeakSet()


def _pause_listening() -> None:
    """Pause listening before a fork, so that a signal to the new worker does not reach the main process."""
    # set_wakeup_fd may only be called in the main thread.
    if _LISTENERS and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


def _listen_again() -> None:
    """Resume listening after a fork, in the main process."""
    if threading.current_thread() is threading.main_thread():
        for listener in _LISTENERS:
            listener.listen()


def _listen_no_more() -> None:
    """Stop listening in a forked worker, whose signals do not concern the main process."""
    if _LISTENERS:
        _LISTENERS.clear()
        signal.set_wakeup_fd(-1)


os.register_at_fork(before=_pause_listening, after_in_parent=_listen_again, after_in_child=_listen_no_more)


def _handle_in_worker(number: int) -> None:
    # Other signals, such as ctrl-C, reach the whole process group: the main process decides.
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
