"""Measure the time of named spans within a step; on CUDA with device events that are read later, without waiting."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from fieldwatch.record import tags

Item = TypeVar("Item")

NSYS_SESSION_VARIABLE = "NSYS_PROFILING_SESSION_ID"
"""Environment variable that Nsight Systems sets in the process it profiles."""


class _End:
    """Sentinel after the last batch; None would not do, since a batch may be any object."""


_END = _End()


@runtime_checkable
class SpanListener(Protocol):
    """An object that is notified of the start and end of every span. Spans are properly nested."""

    def enter(self, name: str) -> None:
        """Handle the start of a span, before its time is measured."""
        ...

    def leave(self, name: str) -> None:
        """Handle the end of the innermost span, after its time was measured; also called on an exception."""
        ...


class Listeners:
    """Combines several listeners into one. They are notified of the end of a span in reverse order."""

    def __init__(self, *listeners: SpanListener) -> None:
        self._listeners = listeners

    def enter(self, name: str) -> None:
        """Notify all listeners in order."""
        for listener in self._listeners:
            listener.enter(name)

    def leave(self, name: str) -> None:
        """Notify all listeners in reverse order."""
        for listener in reversed(self._listeners):
            listener.leave(name)


class SpanLabels:
    """A listener that reports the innermost span.

    Args:
        on_change: called with the name of the innermost span whenever it changes.
        outside: name to report outside all spans.
    """

    def __init__(self, on_change: Callable[[str], None], outside: str = "") -> None:
        self._on_change = on_change
        self._names = [outside]

    def enter(self, name: str) -> None:
        """Report the span as the innermost one."""
        self._names.append(name)
        self._on_change(name)

    def leave(self, name: str) -> None:  # noqa: ARG002  required by SpanListener; spans nest, so it is the last one
        """Report the enclosing span as the innermost one."""
        self._names.pop()
        self._on_change(self._names[-1])


class Clock:
    """Measures the time of named spans within a step, in milliseconds.

    On a CPU, spans are measured with the wall clock. On CUDA, they are measured with pairs of events, which are read a
    few steps later, once they have completed; host time would only show how fast kernels are queued. Measuring never
    synchronizes.

    A loop that names its spans ``data``, ``render`` (or ``forward``), ``loss``, ``backward`` and ``optimizer`` gets the
    standard breakdown. The run itself uses the span ``recording``.

    Args:
        nvtx: whether spans are also NVTX ranges for Nsight Systems; None enables them if Nsight Systems profiles the
            process and torch supports them.

    Attributes:
        listener: additional listener of the spans, such as :class:`~fieldwatch.measure.peaks.Peaks`, or None. A span
            notifies the listener that was set when it began.

    Raises:
        RuntimeError: if NVTX ranges are requested but not supported by this build of torch.
    """

    def __init__(self, *, nvtx: bool | None = None) -> None:
        self.listener: SpanListener | None = None
        self._nvtx: Any = None
        self._milliseconds: dict[str, float] = {}
        self._tags: dict[str, str] = {}
        self._pending_events: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._processor = (time.thread_time(), -1)
        # Through the property, which checks whether this build supports NVTX.
        self.nvtx = NSYS_SESSION_VARIABLE in os.environ and has_nvtx() if nvtx is None else nvtx

    @property
    def nvtx(self) -> bool:
        """Whether spans are also NVTX ranges. May be changed at any time, for spans that begin later."""
        return self._nvtx is not None

    @nvtx.setter
    def nvtx(self, enabled: bool) -> None:
        """Enable or disable NVTX ranges; raises RuntimeError if this build of torch does not support them."""
        if enabled and not has_nvtx():
            raise RuntimeError("this build of torch has no NVTX ranges: install one with CUDA, or disable them")
        self._nvtx = torch.cuda.nvtx if enabled else None

    def span(self, name: str) -> "Span":
        """Return a context manager that measures a block as ``Time/<name>``; equal names add up within a step."""
        return Span(self, name)

    def processor(self, step: int) -> dict[str, float]:
        """Return the processor time of this thread per step since the last call, by metric name.

        Args:
            step: index of the step that ends; the first call counts from the first step that it is given.
        """
        began, first = self._processor
        now = time.thread_time()
        self._processor = (now, step)
        steps = step - first
        # A resumed run, or one that was rolled back, has not made all steps up to this one.
        return {tags.PROCESSOR: (now - began) * 1e3 / steps} if first >= 0 and steps > 0 else {}

    def timed(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` repeatedly, measuring the wait for each batch as ``Time/data``.

        Raises:
            ValueError: if ``source`` is empty.
        """
        while True:
            iterator = iter(source)
            count = 0
            while True:
                # Measure `next` only: the time in the loop body belongs to the training.
                with self.span("data"):
                    batch = next(iterator, _END)
                if isinstance(batch, _End):
                    break
                count += 1
                yield batch
            if count == 0:
                raise ValueError("run.batches(...) got an empty iterable: check the data set and its split")

    def add(self, name: str, milliseconds: float) -> None:
        """Add time that was measured elsewhere."""
        tag = self._tags.get(name)
        if tag is None:
            tag = self._tags[name] = tags.SPAN.tag(name)
        self._milliseconds[tag] = self._milliseconds.get(tag, 0.0) + milliseconds

    def add_events(self, name: str, first: torch.cuda.Event, last: torch.cuda.Event) -> None:
        """Add the device time between two events, once they have completed."""
        self._pending_events.append((name, first, last))

    def take(self) -> dict[str, float]:
        """Return the times measured since the last call, in milliseconds by ``Time/<name>``."""
        # Events of a stream complete in order: stop at the first incomplete one instead of waiting for it.
        while self._pending_events and self._pending_events[0][2].query():
            name, first, last = self._pending_events.popleft()
            self.add(name, first.elapsed_time(last))
        taken = self._milliseconds
        self._milliseconds = {}
        return taken


class Span:
    """A context manager that measures one named block of a step. Created by :meth:`Clock.span`."""

    __slots__ = ("_clock", "_first", "_listener", "_name", "_nvtx", "_started")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        clock = self._clock
        self._nvtx = nvtx = clock._nvtx  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  Clock and Span belong together
        # Remember both, so that the span ends consistently even if they are switched meanwhile.
        self._listener = listener = clock.listener
        if nvtx is not None:
            nvtx.range_push(self._name)
        if listener is not None:
            listener.enter(self._name)
        # Check `is_initialized` first, so that a CPU run does not create a CUDA context.
        self._first = _recorded_event() if torch.cuda.is_initialized() else None
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        # Take the time before calling the listeners, so that their work is not measured.
        if self._first is None:
            self._clock.add(self._name, (time.perf_counter() - self._started) * 1e3)
        else:
            self._clock.add_events(self._name, self._first, _recorded_event())
        if self._listener is not None:
            self._listener.leave(self._name)
        if self._nvtx is not None:
            self._nvtx.range_pop()


def has_nvtx() -> bool:
    """Whether this build of torch supports NVTX ranges."""
    return hasattr(torch._C, "_nvtx")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  as torch.cuda.nvtx does


def _recorded_event() -> torch.cuda.Event:
    """Record a timing event on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
