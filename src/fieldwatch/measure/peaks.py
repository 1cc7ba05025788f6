"""The most that was allocated at once within each named span, on steps that are profiled."""

from typing import Literal, TypeAlias

from fieldwatch.measure.allocator import AllocatorCounters, PeakInterval, PeakMeter
from fieldwatch.measure.gauge import HighWaterGauge, ProcessGauge

Method: TypeAlias = Literal["allocator counter", "high-water mark", "span borders"]
"""How the peak of a span is known. ``span borders``: memory was looked at only where spans begin and end, so that a
peak is a lower bound."""


class Peaks:
    """Peaks by span, as a listener of the clock: ``clock.listener = peaks`` for the step, then :meth:`take`.

    A span's peak holds those of the spans inside it. Spans of one name share the larger one. On CUDA the allocator's
    counter is read on the host at every border, without a wait. On a CPU it is the system's high-water mark of the
    process, if the process may set it; the step's own figures stay what they are on the other steps.

    Args:
        counters: the always-on counters of the device; on CUDA they share their peak counter.

    Attributes:
        method: how a peak is known here.
    """

    def __init__(self, counters: AllocatorCounters) -> None:
        self.method: Method = "allocator counter"
        self._meter = counters.meter
        if counters.device.type != "cuda":
            # The counters of a CPU have no peak of their own: a second meter reads the high-water mark.
            self._meter, self.method = _process_meter()
        self._open: list[tuple[str, PeakInterval]] = []
        self._peaks: dict[str, int] = {}

    def enter(self, name: str) -> None:
        """A span begins."""
        if self._meter is not None:
            self._open.append((name, self._meter.begin()))

    def leave(self, name: str) -> None:
        """The span that was entered last ends."""
        if self._meter is not None:
            name, interval = self._open.pop()
            self._peaks[name] = max(self._peaks.get(name, 0), self._meter.end(interval))

    def take(self) -> dict[str, int]:
        """Bytes by span since the last call; a span that is still open will be there next time."""
        taken = self._peaks
        self._peaks = {}
        return taken


def _process_meter() -> tuple[PeakMeter, Method]:
    try:
        return PeakMeter(HighWaterGauge()), "high-water mark"
    except OSError:
        return PeakMeter(ProcessGauge()), "span borders"
