"""Peak memory of each named span, measured in profiled steps."""

from typing import Literal, TypeAlias

from fieldwatch.measure.allocator import AllocatorCounters, PeakInterval, PeakMeter
from fieldwatch.measure.gauge import HighWaterGauge, ProcessGauge

Method: TypeAlias = Literal["allocator counter", "high-water mark", "span borders"]
"""How the peaks of spans are measured. With ``span borders``, memory is sampled only where spans begin and end, so the
peaks are lower bounds."""


class Peaks:
    """Measures peak memory per span as a listener of the clock: set ``clock.listener``, then call :meth:`take`.

    The peak of a span includes the spans nested in it. If a name occurs several times, the largest peak counts. On
    CUDA, the allocator's counter is read on the host at every span boundary, without synchronization. On a CPU, the
    process's high-water mark is used, if the process may reset it. The per-step counters are not affected.

    Args:
        counters: per-step memory counters of the device; on CUDA their peak meter is shared.

    Attributes:
        method: how peaks are measured on this device.
    """

    def __init__(self, counters: AllocatorCounters) -> None:
        self.method: Method = "allocator counter"
        self._meter = counters.meter
        if counters.device.type != "cuda":
            # The per-step counters of a CPU have no true peak, so use a second meter with the high-water mark.
            self._meter, self.method = _process_meter()
        self._open: list[tuple[str, PeakInterval]] = []
        self._peaks: dict[str, int] = {}

    def enter(self, name: str) -> None:
        """Handle the start of a span."""
        if self._meter is not None:
            self._open.append((name, self._meter.begin()))

    def leave(self, name: str) -> None:
        """Handle the end of the innermost span."""
        if self._meter is not None:
            name, interval = self._open.pop()
            self._peaks[name] = max(self._peaks.get(name, 0), self._meter.end(interval))

    def take(self) -> dict[str, int]:
        """Return the peak in bytes of each span that ended since the last call."""
        taken = self._peaks
        self._peaks = {}
        return taken


def _process_meter() -> tuple[PeakMeter, Method]:
    # Containers may forbid writing to clear_refs, which resets the mark: fall back to sampling at span boundaries.
    try:
        return PeakMeter(HighWaterGauge()), "high-water mark"
    except OSError:
        return PeakMeter(ProcessGauge()), "span borders"
