"""The always-on memory counters: what is allocated, what was the most, and what there could be, at every step."""

import torch

from fieldwatch.measure.gauge import Counts, Gauge, gauge_of

MB = 2**20


class PeakInterval:
    """A interval of time whose peak is asked for.

    Attributes:
        peak: the most that was allocated at once, in bytes, as far as it has been folded in.
    """

    __slots__ = ("peak",)

    def __init__(self, peak: int) -> None:
        self.peak = peak


class PeakMeter:
    """Shares out a device's one peak counter. Nobody else in the toolkit resets it.

    The counter is read and reset at every border of a interval; what it showed goes to each interval that was open, to
    the step and to the run. So intervals may lie in each other or overlap, and the step's peak stays right.

    A reset changes what others read: while a meter is in use, ``torch.cuda.max_memory_allocated()`` speaks of the time
    since the last border only, and :attr:`run_peak` of the run. Where somebody else resets the counter, what it held
    since our last border is lost, and nothing else: every peak is then at least what was allocated at the borders.

    Args:
        gauge: what is read and reset.

    Attributes:
        run_peak: the most since torch began to count, or since somebody else's reset before the meter was made.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._open: list[PeakInterval] = []
        self._floor = self._step_peak = self.run_peak = 0
        self.fold()
        self._step_peak = 0

    def fold(self) -> Counts:
        """Read the counter, pass its peak on to all that is open, and reset it."""
        counts = self._gauge.read()
        self._gauge.reset()
        # Somebody else may have reset the counter: what was allocated at both borders bounds the peak from below.
        peak = max(counts.peak, counts.allocated, self._floor)
        self._floor = counts.allocated
        for interval in self._open:
            interval.peak = max(interval.peak, peak)
        self._step_peak = max(self._step_peak, peak)
        self.run_peak = max(self.run_peak, peak)
        return counts

    def begin(self) -> PeakInterval:
        """Begin a interval."""
        # The border before the interval closes what came before: an earlier peak must not count for it.
        interval = PeakInterval(self.fold().allocated)
        self._open.append(interval)
        return interval

    def end(self, interval: PeakInterval) -> int:
        """End a interval, and say its peak in bytes."""
        self.fold()
        self._open.remove(interval)
        return interval.peak

    def take(self) -> tuple[Counts, int]:
        """The counts of this moment and the peak since the last call, in bytes."""
        counts = self.fold()
        peak = self._step_peak
        self._step_peak = 0
        return counts, peak


class AllocatorCounters:
    """What every step records about memory, switched on or not: a few microseconds, no wait for the device.

    On CUDA these are torch's own counters. On a CPU, where tensors are the process's memory, it is the resident memory
    of the process; the peak is then the larger of the update and the end of the step.

    Make it right before the first step: what was the most before does not belong to a step.

    Args:
        device: where the model lives.
        gauge: what to read instead of the device.

    Attributes:
        meter: the owner of the peak counter; None where nothing can be counted.
        notice: why nothing is recorded; empty when all is well.
    """

    def __init__(self, device: torch.device, *, gauge: Gauge | None = None) -> None:
        self.device = device
        self._gauge = gauge if gauge is not None else gauge_of(device)
        self._cuda = device.type == "cuda"
        self.meter = PeakMeter(self._gauge) if self._gauge is not None else None
        self.notice = ""
        if self.meter is None:
            self.notice = f"memory on {device} is not counted: the allocator was replaced, and torch cannot ask it"

    def sample(self) -> None:
        """Look at a CPU's memory in the middle of the step, at the update; on CUDA the counter sees to that."""
        if self.meter is not None and not self._cuda:
            self.meter.fold()

    def take(self) -> dict[str, float]:
        """``Memory/...`` of the step that ends here, in MiB (2**20 bytes), and begin the next one."""
        if self.meter is None:
            return {}
        counts, peak = self.meter.take()
        values: dict[str, float] = {"Memory/allocated_MB": counts.allocated / MB, "Memory/peak_MB": peak / MB}
        if self._cuda:
            values["Memory/reserved_MB"] = counts.reserved / MB
            values["Memory/retries"] = counts.retries
        return values

    def capacity(self) -> int | None:
        """Bytes that this process could have in all: its own and what is free beside it. Asks the driver: not per step.

        Returns:
            On CUDA the free memory and torch's own, within ``set_per_process_memory_fraction``; None before CUDA is
            used. On a CPU the available memory and the process's own, within the limits of its control groups.
        """
        return self._gauge.capacity() if self._gauge is not None else None

    @property
    def run_peak(self) -> int:
        """The most that was ever allocated, in bytes: what ``torch.cuda.max_memory_allocated()`` no longer says."""
        return self.meter.run_peak if self.meter is not None else 0
