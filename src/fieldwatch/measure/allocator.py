"""Memory counters that run at every step: allocated memory, peak memory and capacity."""

import torch

from fieldwatch.measure.gauge import Counts, Gauge, gauge_of

MB = 2**20


class PeakInterval:
    """A time interval for which the peak memory is measured.

    Attributes:
        peak: peak of the allocated memory up to the last call of :meth:`PeakMeter.fold`, in bytes.
    """

    __slots__ = ("peak",)

    def __init__(self, peak: int) -> None:
        self.peak = peak


class PeakMeter:
    """Multiplexes the single peak counter of a device among nested or overlapping intervals.

    The counter is read and reset at every interval boundary. The peak since the previous boundary is credited to all
    open intervals, to the step and to the run. Nothing else in the toolkit resets the counter.

    The resets are visible to other code: while a meter is in use, ``torch.cuda.max_memory_allocated()`` covers only the
    time since the last boundary; use :attr:`run_peak` for the whole run. If other code resets the counter, only its
    value since our last boundary is lost: every peak is then at least the memory allocated at the boundaries.

    Args:
        gauge: memory gauge to read and reset.

    Attributes:
        run_peak: peak in bytes since torch began to count, or since a reset by other code before the meter was created.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._open: list[PeakInterval] = []
        self._floor = self._step_peak = self.run_peak = 0
        # Memory allocated before the meter existed belongs to the run, not to the first step.
        self.fold()
        self._step_peak = 0

    def fold(self) -> Counts:
        """Read the counter, credit its peak to all open intervals, and reset it."""
        counts = self._gauge.read()
        self._gauge.reset()
        # Other code may have reset the counter: the memory allocated at both boundaries is a lower bound of the peak.
        peak = max(counts.peak, counts.allocated, self._floor)
        # Memory that is still allocated now is a lower bound of the next interval's peak.
        self._floor = counts.allocated
        for interval in self._open:
            interval.peak = max(interval.peak, peak)
        self._step_peak = max(self._step_peak, peak)
        self.run_peak = max(self.run_peak, peak)
        return counts

    def begin(self) -> PeakInterval:
        """Begin an interval."""
        # Fold first, so that an earlier peak is not credited to the new interval.
        interval = PeakInterval(self.fold().allocated)
        self._open.append(interval)
        return interval

    def end(self, interval: PeakInterval) -> int:
        """End an interval and return its peak in bytes."""
        self.fold()
        self._open.remove(interval)
        return interval.peak

    def take(self) -> tuple[Counts, int]:
        """Return the current counts, and the peak since the last call in bytes."""
        counts = self.fold()
        peak = self._step_peak
        self._step_peak = 0
        return counts, peak


class AllocatorCounters:
    """The memory counters that every step records, at a cost of a few microseconds and without synchronization.

    On CUDA they come from torch's caching allocator. On a CPU they are the resident memory of the process, and the peak
    is the larger of the readings at the update and at the end of the step.

    Create the object right before the first step, so that earlier peaks are not credited to a step.

    Args:
        device: device of the model.
        gauge: memory gauge to use instead of the device's.

    Attributes:
        meter: meter of the peak counter; None if memory cannot be counted.
        notice: reason why nothing is recorded; empty otherwise.
    """

    def __init__(self, device: torch.device, *, gauge: Gauge | None = None) -> None:
        self.device = device
        self._gauge = gauge if gauge is not None else gauge_of(device)
        self._cuda = device.type == "cuda"
        self.meter = PeakMeter(self._gauge) if self._gauge is not None else None
        self.notice = ""
        if self.meter is None:
            self.notice = f"memory on {device} is not recorded: torch cannot query the custom allocator in use"

    def sample(self) -> None:
        """Sample the resident memory at the update; do nothing on CUDA, where the counter tracks the peak by itself."""
        if self.meter is not None and not self._cuda:
            self.meter.fold()

    def take(self) -> dict[str, float]:
        """Return the ``Memory/...`` values of the step that ends here, in MiB (2**20 bytes), and begin the next."""
        if self.meter is None:
            return {}
        counts, peak = self.meter.take()
        values: dict[str, float] = {"Memory/allocated_MB": counts.allocated / MB, "Memory/peak_MB": peak / MB}
        # A CPU has neither a caching allocator nor retries: leave these tags out instead of recording zeros.
        if self._cuda:
            values["Memory/reserved_MB"] = counts.reserved / MB
            values["Memory/retries"] = counts.retries
        return values

    def capacity(self) -> int | None:
        """Return the memory available to this process in bytes: what it uses plus what is free.

        This queries the driver, so do not call it at every step.

        Returns:
            On CUDA, the free memory plus torch's reserved memory, limited by ``set_per_process_memory_fraction``; None
            before CUDA is initialized. On a CPU, the available memory plus the resident memory of the process, within
            the limits of its control groups.
        """
        return self._gauge.capacity() if self._gauge is not None else None

    @property
    def run_peak(self) -> int:
        """Peak of the run in bytes; ``torch.cuda.max_memory_allocated()`` no longer covers the whole run."""
        return self.meter.run_peak if self.meter is not None else 0
