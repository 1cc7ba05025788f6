"""Where a step's time goes: named spans, measured with device events on CUDA (read later, never waited for)."""

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


class _End:
    """What follows the last batch; a batch itself may be anything, None too."""


_END = _End()


class Clock:
    """Collects the milliseconds of named spans within a step.

    On the CPU a span is measured by the wall clock. On CUDA it is measured by a pair of events, read once they have
    passed (a few steps later), so that measuring adds no wait; the host side would only see how fast work is queued.
    """

    def __init__(self) -> None:
        self._milliseconds: dict[str, float] = {}
        self._waiting: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def span(self, name: str) -> Generator[None]:
        """Measure the block as ``Time/<name>``; spans of one name add up within a step."""
        if torch.cuda.is_initialized():
            with self._device_span(name):
                yield
            return
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, (time.perf_counter() - started) * 1e3)

    def timed(self, source: Iterable[Item]) -> Iterator[Item]:
        """Iterate over ``source`` again and again, measuring each wait as ``Time/data``.

        Raises:
            ValueError: there is nothing to iterate over.
        """
        while True:
            iterator, count = iter(source), 0
            while True:
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
        self._milliseconds[f"Time/{name}"] = self._milliseconds.get(f"Time/{name}", 0.0) + milliseconds

    def take(self) -> dict[str, float]:
        """What has been measured since the last call, in milliseconds by ``Time/<name>``."""
        self._collect()
        taken, self._milliseconds = self._milliseconds, {}
        return taken

    @contextmanager
    def _device_span(self, name: str) -> Generator[None]:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        try:
            yield
        finally:
            last.record()
            self._waiting.append((name, first, last))

    def _collect(self) -> None:
        while self._waiting and self._waiting[0][2].query():
            name, first, last = self._waiting.pop(0)
            self.add(name, first.elapsed_time(last))
