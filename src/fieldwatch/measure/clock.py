"""Where a step's time goes: named spans, measured with device events on CUDA (read later, never waited for)."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from fieldwatch.record import tags

Item = TypeVar("Item")

NSYS_SESSION_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""What Nsight Systems sets in the environment of the process it watches."""


class _End:
    """What follows the last batch; a batch itself may be anything, None too."""


_END = _End()


@runtime_checkable
class SpanListener(Protocol):
    """Follows every span, in order: spans nest."""

    def enter(self, name: str) -> None:
        """A span begins; its time is not running yet."""
        ...

    def leave(self, name: str) -> None:
        """The span that was entered last ends, by an exception too; its time has been taken."""
        ...


class Listeners:
    """Several listeners in the place of one; they leave in the reverse order."""

    def __init__(self, *listeners: SpanListener) -> None:
        self._listeners = listeners

    def enter(self, name: str) -> None:
        """Tell all, the first one first."""
        for listener in self._listeners:
            listener.enter(name)

    def leave(self, name: str) -> None:
        """Tell all, the last one first."""
        for listener in reversed(self._listeners):
            listener.leave(name)


class SpanLabels:
    """A listener that reports which span is the innermost one.

    Args:
        on_change: called with the name whenever it changes.
        outside: the name of what lies outside every span.
    """

    def __init__(self, on_change: Callable[[str], None], outside: str = "") -> None:
        self._on_change = on_change
        self._names = [outside]

    def enter(self, name: str) -> None:
        """The span is the innermost one now."""
        self._names.append(name)
        self._on_change(name)

    def leave(self, name: str) -> None:  # noqa: ARG002  a listener is told the name; spans nest, so it is the last one
        """The span around it is the innermost one again."""
        self._names.pop()
        self._on_change(self._names[-1])


class Clock:
    """Collects the milliseconds of named spans within a step.

    On the CPU a span is measured by the wall clock. On CUDA it is measured by a pair of events, read once they have
    passed (a few steps later), so that measuring adds no wait; the host side would only see how fast work is queued.

    A loop that names its spans ``data``, ``render`` (or ``forward``), ``loss``, ``backward`` and ``optimizer`` gets the
    usual breakdown; ``recording`` is the run's own.

    Args:
        nvtx: whether spans are ranges for Nsight Systems too; None: where it watches the process, and torch can.

    Attributes:
        listener: what else follows the spans, such as :class:`~fieldwatch.measure.peaks.Peaks`; None for nobody.
            A span tells the listener that was there when it began.

    Raises:
        RuntimeError: ranges were asked for, and this build of torch has none.
    """

    def __init__(self, *, nvtx: bool | None = None) -> None:
        self.listener: SpanListener | None = None
        self._nvtx: Any = None
        self._milliseconds: dict[str, float] = {}
        self._pending_events: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self.nvtx = NSYS_SESSION_VARIABLE in os.environ and has_nvtx() if nvtx is None else nvtx

    @property
    def nvtx(self) -> bool:
        """Whether spans are NVTX ranges too; may be switched at any time, and counts for spans that begin later."""
        return self._nvtx is not None

    @nvtx.setter
    def nvtx(self, wanted: bool) -> None:
        """Switch them; RuntimeError where this build of torch has none."""
        if wanted and not has_nvtx():
            raise RuntimeError("NVTX ranges are not in this build of torch: install one with CUDA, or leave them off")
        self._nvtx = torch.cuda.nvtx if wanted else None

    def span(self, name: str) -> "Span":
        """Measure the block as ``Time/<name>``; spans of one name add up within a step."""
        return Span(self, name)

    def timed(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` again and again, measuring each wait as ``Time/data``.

        Raises:
            ValueError: there is nothing to iterate over.
        """
        while True:
            iterator = iter(source)
            count = 0
            while True:
                # Only `next` is measured: the time in the loop body belongs to the training.
                with self.span("data"):
                    batch = next(iterator, _END)
                if isinstance(batch, _End):
                    break
                count += 1
                yield batch
            if count == 0:
                raise ValueError("run.batches(...) was given nothing to iterate over: check the data set and its split")

    def add(self, name: str, milliseconds: float) -> None:
        """Count time that was measured elsewhere."""
        tag = tags.SPAN.tag(name)
        self._milliseconds[tag] = self._milliseconds.get(tag, 0.0) + milliseconds

    def add_events(self, name: str, first: torch.cuda.Event, last: torch.cuda.Event) -> None:
        """Count the device time between two events, once they have passed."""
        self._pending_events.append((name, first, last))

    def take(self) -> dict[str, float]:
        """What has been measured since the last call, in milliseconds by ``Time/<name>``."""
        # Events complete in order on their stream: stop at the first that has not passed, and never wait.
        while self._pending_events and self._pending_events[0][2].query():
            name, first, last = self._pending_events.popleft()
            self.add(name, first.elapsed_time(last))
        taken = self._milliseconds
        self._milliseconds = {}
        return taken


class Span:
    """One named block of a step, for one ``with`` statement. :meth:`Clock.span` makes it."""

    __slots__ = ("_clock", "_first", "_listener", "_name", "_nvtx", "_started")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        clock = self._clock
        self._nvtx = nvtx = clock._nvtx  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  one thing in two classes
        self._listener = listener = clock.listener
        if nvtx is not None:
            nvtx.range_push(self._name)
        if listener is not None:
            listener.enter(self._name)
        # `is_initialized` keeps a CPU run from creating a CUDA context.
        self._first = _recorded_event() if torch.cuda.is_initialized() else None
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._first is None:
            self._clock.add(self._name, (time.perf_counter() - self._started) * 1e3)
        else:
            self._clock.add_events(self._name, self._first, _recorded_event())
        if self._listener is not None:
            self._listener.leave(self._name)
        if self._nvtx is not None:
            self._nvtx.range_pop()


def has_nvtx() -> bool:
    """Whether this build of torch can mark ranges for Nsight Systems."""
    return hasattr(torch._C, "_nvtx")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch.cuda.nvtx asks it too


def _recorded_event() -> torch.cuda.Event:
    """An event on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
