"""A request to stop: noticed between two steps and at stop points, its time noted even while python cannot run."""

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
"""Signals that ask a run to save and end; the exit code is 128 and the number: 143, 130, 138, 129."""
PATIENCE = 5.0
"""Seconds from the arrival of a signal for which work under way may go on: half of a grace of 10 s."""
_IMMEDIATE_SECONDS = 2.0
_POKE_SECONDS = 0.2


@final
class StopRequest:
    """A context manager under which SIGTERM, SIGINT (ctrl-C), SIGUSR1 and SIGHUP only set a flag, to end in order.

    A second SIGINT within 2 s raises ``KeyboardInterrupt`` at once. A SIGHUP that is ignored stays so (``nohup``).
    Forked workers inherit the handlers: in them SIGTERM ends the worker and the others do nothing (the main process
    decides). The previous handlers return on exit.

    Python runs a handler only between two bytecodes: one long call into C++ holds it up. A thread reads the signal's
    number from a socket that the interpreter's own handler writes to, and notes when it came; it runs while such a call
    holds no interpreter lock. Where something else uses that way (``signal.set_wakeup_fd``, as asyncio does) it is left
    alone, and the time is that of the handler.

    Args:
        patience: seconds from the arrival after which work under way should be given up, see :meth:`overdue`.

    Attributes:
        received: whether a signal came; an attribute, so that any thread may read it.
        patience: may be changed at any time.

    Raises:
        RuntimeError: (on entering) outside the main thread, where python allows no handlers.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.received = False
        self.patience = patience
        self._requested: signal.Signals | None = None
        self._arrived: float | None = None
        self._interrupted = -float("inf")
        self._owner = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._give_up: Callable[[], NoReturn] | None = None
        self._listener = _SignalListener(self._note, self._poke_main_thread)

    @property
    def requested(self) -> str | None:
        """The name of the first signal that came, e.g. ``"SIGTERM"``; None while none did."""
        return None if self._requested is None else self._requested.name

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 143 SIGTERM, 130 SIGINT, 138 SIGUSR1, 129 SIGHUP, 0 while none came."""
        return 0 if self._requested is None else 128 + self._requested

    @property
    def arrived(self) -> float | None:
        """When the first signal came, as `time.monotonic()`; None while none did."""
        return self._arrived if self.received else None

    @property
    def waited(self) -> float:
        """Seconds since the first signal came; 0 while none did."""
        return 0.0 if self.arrived is None else time.monotonic() - self.arrived

    @property
    def overdue(self) -> bool:
        """Whether a signal came, and the patience is over."""
        return self.received and self.waited >= self.patience

    def abandonable(self, give_up: Callable[[], NoReturn]) -> "AbandonableWait":
        """Let a wait inside this block be given up when the patience is over, although no line of ours runs in it.

        Args:
            give_up: called in the middle of the wait, in the main thread; has to raise.
        """
        return AbandonableWait(self._allow, give_up)

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "StopRequest must be entered in the main thread: python allows signal handlers only there"
            )
        self._owner = os.getpid()
        for number in STOPPING:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started with nohup: it is to outlive its terminal
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
        # Forked workers inherit the handler, and must not speak for the main process.
        if os.getpid() != self._owner:
            _handle_in_worker(number)
            return
        self._note()
        if self._requested is None:
            self._requested = signal.Signals(number)
            self.received = True
        if number == signal.SIGINT:
            before = self._interrupted
            self._interrupted = time.monotonic()
            if self._interrupted - before < _IMMEDIATE_SECONDS:
                raise KeyboardInterrupt
        if self._give_up is not None and self.overdue:
            # Cleared before it is called: it raises, and must not be called again while that unwinds.
            give_up = self._give_up
            self._give_up = None
            give_up()

    def _note(self) -> None:
        """Note the time of arrival, of the first signal only: by the thread or by the handler, whoever is first."""
        if self._arrived is None:
            self._arrived = time.monotonic()

    def _poke_main_thread(self) -> None:
        """From the thread: get the main thread out of a wait that may be given up; SIGTERM is noted already."""
        if self._give_up is not None and self.overdue:
            # A signal interrupts a system call of the main thread; its handler then finds the patience over.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _allow(self, give_up: Callable[[], NoReturn] | None) -> None:
        self._give_up = give_up


class AbandonableWait:
    """A block in which a wait may be given up. :meth:`StopRequest.abandonable` makes it."""

    __slots__ = ("_allow", "_give_up")

    def __init__(self, allow: Callable[[Callable[[], NoReturn] | None], None], give_up: Callable[[], NoReturn]) -> None:
        self._allow = allow
        self._give_up = give_up

    def __enter__(self) -> None:
        self._allow(self._give_up)

    def __exit__(self, *_: object) -> None:
        self._allow(None)


class _SignalListener:
    """A thread that is told of signals by the interpreter itself; idle until one comes.

    Args:
        arrived: called at the first one that asks to stop.
        poke: called again and again from then on.
    """

    def __init__(self, arrived: Callable[[], None], poke: Callable[[], None]) -> None:
        self._arrived = arrived
        self._poke_main_thread = poke
        self._closing = threading.Event()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin; not where another one listens."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        # Another listener is there, such as an event loop: put it back and do without.
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
        """Be told of signals again."""
        if self._sockets is not None:
            signal.set_wakeup_fd(self._sockets[1].fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        """End."""
        if self._sockets is None or self._thread is None:
            return
        signal.set_wakeup_fd(-1)
        _LISTENERS.discard(self)
        self._closing.set()
        with contextlib.suppress(BlockingIOError):  # full of signals: then it is awake
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
        while not self._closing.wait(_POKE_SECONDS):
            self._poke_main_thread()


_LISTENERS: "weakref.WeakSet[_SignalListener]" = weakref.WeakSet()


def _pause_listening() -> None:
    """Before a fork: a worker that gets a signal at once must not speak for the main process."""
    if _LISTENERS and threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


def _listen_again() -> None:
    """After it, in the main process."""
    if threading.current_thread() is threading.main_thread():
        for listener in _LISTENERS:
            listener.listen()


def _listen_no_more() -> None:
    """In a forked worker: its signals are not the main process's."""
    if _LISTENERS:
        _LISTENERS.clear()
        signal.set_wakeup_fd(-1)


os.register_at_fork(before=_pause_listening, after_in_parent=_listen_again, after_in_child=_listen_no_more)


def _handle_in_worker(number: int) -> None:
    if number == signal.SIGTERM:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
