"""The machine as metrics of a run, at a cost that cannot grow."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, final

import psutil

from fieldwatch.monitor.gpu import (
    read_limits,
    read_memory,
    read_power,
    read_processes,
    read_temperature,
    slowed_down,
)
from fieldwatch.monitor.nvml import Nvml, NvmlQuery
from fieldwatch.record import tags

MB: Final = 2**20
PAUSE_FACTOR: Final = 2_000
"""A sample that took t seconds is followed by at least this many times t without one: 0.05 % of the time."""


@final
class MachineSampler:
    """Samples the ``Machine/...`` metrics for the process it is made in.

    It has no thread. NVML's calls are short as a rule, but some drivers take tens of milliseconds for power or
    processes, so the pause after a sample is never shorter than 2000 times what the sample took: the mean cost stays
    below 0.05 % of the time, 5 us per step of 10 ms, whatever the driver does.

    Args:
        every_seconds: the shortest pause between samples.
        clock: what tells the time, in seconds.

    Raises:
        ValueError: the pause is not a positive number.
    """

    def __init__(self, every_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        if not every_seconds > 0:
            raise ValueError(f"a machine sample every {every_seconds} s: wanted a positive number of seconds, e.g. 10")
        self.every_seconds = every_seconds
        self._clock = clock
        self._next = clock()
        self._nvml = Nvml()
        self._process = psutil.Process()
        psutil.cpu_percent()
        self._process.cpu_percent()

    def due(self) -> bool:
        """Whether the pause is over; the first sample is due at once."""
        return self._clock() >= self._next

    def sample(self) -> dict[str, float]:
        """Return metric name to value, now; what cannot be read is left out, and asked for again next time."""
        began = self._clock()
        values = self._cpu()
        for index in range(self._nvml.count()):
            values |= {tags.gpu_reading(index, name): value for name, value in self._gpu(index)}
        ended = self._clock()
        # The pause grows with the cost of the sample, so the share of time spent here is bounded.
        self._next = ended + max(self.every_seconds, PAUSE_FACTOR * (ended - began))
        return values

    def close(self) -> None:
        """Give NVML back; more than once is fine."""
        self._nvml.close()

    def _cpu(self) -> dict[str, float]:
        memory = psutil.virtual_memory()
        return {
            "Machine/CPU/utilisation_percent": psutil.cpu_percent(),
            "Machine/CPU/process_percent": self._process.cpu_percent(),
            "Machine/CPU/memory_used_MB": (memory.total - memory.available) / MB,
            "Machine/CPU/memory_total_MB": memory.total / MB,
            "Machine/CPU/process_MB": self._process.memory_info().rss / MB,
        }

    def _gpu(self, index: int) -> Iterator[tuple[str, float]]:
        query = NvmlQuery()
        handle = self._nvml.handle(index, query)
        if handle is None:
            return
        memory = read_memory(handle, query)
        limits = read_limits(handle, query)
        rates = query("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
        readings: dict[str, float | None] = {
            "memory_used_MB": _in_mb(memory["memory_used_bytes"]),
            "memory_total_MB": _in_mb(memory["memory_total_bytes"]),
            "utilisation_percent": None if rates is None else float(rates.gpu),
            "power_W": read_power(handle, query),
            "temperature_C": read_temperature(handle, query),
            "throttled": None if limits is None else float(slowed_down(limits)),
            "others_MB": self._others(handle, query),
        }
        yield from ((name, value) for name, value in readings.items() if value is not None)

    def _others(self, handle: Any, query: NvmlQuery) -> float | None:
        """Memory of the other processes; None where the driver does not tell it, or counts pids of another place."""
        processes = read_processes(handle, query)
        if any(name.startswith("processes") for name in query.missing):
            return None
        own = self._process.pid
        listed = any(process.pid == own for process in processes)
        # Pids that do not exist here show that the driver counts in another namespace.
        if not listed and not all(psutil.pid_exists(process.pid) for process in processes):
            return None
        others = [process.memory_bytes for process in processes if process.pid != own]
        known = [memory for memory in others if memory is not None]
        return sum(known) / MB if len(known) == len(others) else None


def _in_mb(count: int | None) -> float | None:
    return None if count is None else count / MB
