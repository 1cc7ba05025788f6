"""Memory gauges: torch's counters on CUDA, the operating system's on a CPU."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from fieldwatch.measure.capacity import process_capacity
from fieldwatch.measure.resident import HighWaterMark, ResidentMemory


class Counts(NamedTuple):
    """One reading of a device's memory, in bytes.

    Attributes:
        allocated: memory in use now.
        peak: peak of the memory in use since the last reset.
        reserved: memory reserved by torch, including its idle cache; 0 on a CPU.
        retries: cumulative number of allocations that were retried after the cache was emptied; 0 on a CPU.
    """

    allocated: int
    peak: int
    reserved: int = 0
    retries: int = 0


@runtime_checkable
class Gauge(Protocol):
    """A source of memory counters. No method synchronizes the device."""

    def read(self) -> Counts:
        """Return the current counts."""
        ...

    def reset(self) -> None:
        """Reset the peak to the memory allocated now."""
        ...

    def capacity(self) -> int | None:
        """Return the memory available to this process in bytes, or None if it cannot be determined now."""
        ...


class CudaGauge:
    """Counters of torch's caching allocator on one device, read on the host without a driver call or synchronization.

    Before CUDA is initialized all counts are 0; reading them does not create a context.

    Args:
        index: index of the device.
        stats: returns the counters of a device, like ``torch.cuda.memory_stats_as_nested_dict``.
        reset: resets the peak counters of a device.
    """

    def __init__(
        self,
        index: int,
        *,
        stats: Callable[[int], Mapping[str, Any]] = torch.cuda.memory_stats_as_nested_dict,
        reset: Callable[[int], Any] = torch.cuda.reset_peak_memory_stats,
    ) -> None:
        self._index = index
        self._stats = stats
        self._reset = reset
        self._in_use = False

    def read(self) -> Counts:
        """Return the current counts."""
        # Use the nested dictionary directly: flattening it, as `memory_stats` does, is more expensive.
        stats = self._stats(self._index)
        self._in_use = bool(stats)
        if not stats:
            return Counts(0, 0)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]["current"]
        return Counts(allocated["current"], allocated["peak"], reserved, stats["num_alloc_retries"])

    def reset(self) -> None:
        """Reset all peak counters of the allocator; torch cannot reset a single one."""
        # Before CUDA is initialized, there is nothing to reset.
        if self._in_use:
            self._reset(self._index)

    def capacity(self) -> int | None:
        """Return free plus reserved memory in bytes, limited by the memory fraction of the process."""
        # `mem_get_info` would create a context, which costs hundreds of MB.
        if not torch.cuda.is_initialized():
            return None
        # Reserved memory is reusable by torch, so it counts as available although the driver reports it as used.
        free, total = torch.cuda.mem_get_info(self._index)
        # cudaMallocAsync has no memory fraction per process; querying it raises an error.
        allowed = total
        if torch.cuda.get_allocator_backend() == "native":
            allowed = int(total * torch.cuda.get_per_process_memory_fraction(self._index))
        return min(free + self.read().reserved, allowed)


class ProcessGauge:
    """Resident memory of the process. The peak is the current value, since there is no counter in between."""

    def __init__(self) -> None:
        self._resident = ResidentMemory()

    def read(self) -> Counts:
        """Return the current resident memory."""
        resident = self._resident.read()
        return Counts(resident, resident)

    def reset(self) -> None:
        """Do nothing: no peak is kept between readings."""

    def capacity(self) -> int:
        """Return free plus resident memory in bytes, within the limits of the process's control groups."""
        return process_capacity(self._resident.read())


class HighWaterGauge(ProcessGauge):
    """Resident memory of the process, with its peak from the system's high-water mark; about 10 us per reading.

    Raises:
        OSError: if the mark cannot be read or reset on this system.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mark = HighWaterMark()

    def read(self) -> Counts:
        """Return the current resident memory, and its peak since the last reset."""
        return Counts(self._resident.read(), self._mark.read())

    def reset(self) -> None:
        """Reset the high-water mark."""
        self._mark.mark()


def gauge_of(device: torch.device) -> Gauge | None:
    """Return the memory gauge of a device, or None for CUDA with a pluggable allocator, which torch cannot query.

    Devices other than CUDA are treated like a CPU: only the memory of the process can be observed.
    """
    if device.type != "cuda":
        return ProcessGauge()
    # With a pluggable allocator, torch's counters stay at 0.
    if torch.cuda.get_allocator_backend() == "pluggable":
        return None
    return CudaGauge(torch.cuda.current_device() if str(device) == "cuda" else device.index)
