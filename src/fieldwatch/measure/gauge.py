"""How a device's memory is read: torch's counters on CUDA, the system's on a CPU."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from fieldwatch.measure.capacity import process_capacity
from fieldwatch.measure.resident import HighWaterMark, ResidentMemory


class Counts(NamedTuple):
    """One look at a device, in bytes.

    Attributes:
        allocated: in use now.
        peak: the most in use since the last reset.
        reserved: what torch has taken from the device, idle cache included; 0 on a CPU.
        retries: how often the allocator had to empty its cache and ask again, so far; 0 on a CPU.
    """

    allocated: int
    peak: int
    reserved: int = 0
    retries: int = 0


@runtime_checkable
class Gauge(Protocol):
    """What the counters are read from. Neither call waits for the device."""

    def read(self) -> Counts:
        """The counts of this moment."""
        ...

    def reset(self) -> None:
        """Let the peak begin anew from what is allocated now."""
        ...

    def capacity(self) -> int | None:
        """Bytes that this process could have in all; None where that cannot be asked now."""
        ...


class CudaGauge:
    """torch's caching allocator on one device: its own books on the host, no driver call, no synchronisation.

    Before CUDA is first used everything is 0, and stays unasked: a look makes no context.

    Args:
        index: the number of the device.
        stats: the allocator's counters, as ``torch.cuda.memory_stats_as_nested_dict`` gives them.
        reset: begins the peaks anew.
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
        """The counters, straight from the nested dictionary: flattening it, as ``memory_stats`` does, costs more."""
        stats = self._stats(self._index)
        self._in_use = bool(stats)
        if not stats:
            return Counts(0, 0)
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]["current"]
        return Counts(allocated["current"], allocated["peak"], reserved, stats["num_alloc_retries"])

    def reset(self) -> None:
        """Begin the allocator's peaks anew, all of them: torch has no way to choose one."""
        if self._in_use:
            self._reset(self._index)

    def capacity(self) -> int | None:
        """What is free on the device and what torch has already, within the fraction that the process may have."""
        # `mem_get_info` would create a context, which costs hundreds of MB.
        if not torch.cuda.is_initialized():
            return None
        free, total = torch.cuda.mem_get_info(self._index)
        # cudaMallocAsync does not know a fraction per process; asking it raises.
        allowed = total
        if torch.cuda.get_allocator_backend() == "native":
            allowed = int(total * torch.cuda.get_per_process_memory_fraction(self._index))
        return min(free + self.read().reserved, allowed)


class ProcessGauge:
    """The process's resident memory. It has no peak but what is resident when somebody looks."""

    def __init__(self) -> None:
        self._resident = ResidentMemory()

    def read(self) -> Counts:
        """Resident memory now."""
        resident = self._resident.read()
        return Counts(resident, resident)

    def reset(self) -> None:
        """Nothing is kept between looks."""

    def capacity(self) -> int:
        """Free memory and the process's own, within the limits of its control groups."""
        return process_capacity(self._resident.read())


class HighWaterGauge(ProcessGauge):
    """The process's resident memory with its peak, from the system's high-water mark: some 10 us a look.

    Raises:
        OSError: the mark cannot be read or set here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mark = HighWaterMark()

    def read(self) -> Counts:
        """Resident memory now, and the most since the reset."""
        return Counts(self._resident.read(), self._mark.read())

    def reset(self) -> None:
        """Set the mark."""
        self._mark.mark()


def gauge_of(device: torch.device) -> Gauge | None:
    """What a device's memory is read from; None for a CUDA device whose memory is not torch's to count.

    A device that is neither CUDA nor CPU is taken for a CPU: then the process's memory is what there is to see.
    """
    if device.type != "cuda":
        return ProcessGauge()
    # A pluggable allocator keeps its own books; torch's counters stay at 0.
    if torch.cuda.get_allocator_backend() == "pluggable":
        return None
    return CudaGauge(torch.cuda.current_device() if str(device) == "cuda" else device.index)
