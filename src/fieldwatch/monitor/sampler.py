"""Sampling of the machine's state as metrics of a run, with a bounded cost."""

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
"""Minimum ratio of the pause after a sample to the duration of the sample: at most 0.05 % of the time is spent."""


@final
class MachineSampler:
    """Samples the ``Machine/...`` metrics for the calling process, without a thread.

    NVML calls are usually fast, but some drivers take tens of milliseconds for power or processes. The pause after a
    sample is therefore at least 2000 times the duration of the sample, so that the mean cost is below 0.05 % of the
    time (5 us per step of 10 ms) with any driver.

    Args:
        every_seconds: minimum pause between samples, in seconds.
        clock: monotonic clock, in seconds.

    Raises:
        ValueError: if the pause is not a positive number.
    """

    def __init__(self, every_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        if not every_seconds > 0:
            raise ValueError(
                f"a machine sample every {every_seconds} s: expected a positive number of seconds, e.g. 10"
            )
        self.every_seconds = every_seconds
        self._clock = clock
        self._next = clock()
        self._nvml = Nvml()
        self._process = psutil.Process()
        # The first calls only start the intervals that the first sample measures.
        psutil.cpu_percent()
        self._process.cpu_percent()

    def due(self) -> bool:
        """Return whether a sample is due; the first one is due immediately."""
        return self._clock() >= self._next

    def sample(self) -> dict[str, float]:
        """Return the current values by metric name; values that cannot be read are omitted and retried next time."""
        began = self._clock()
        values = self._cpu()
        for index in range(self._nvml.count()):
            values |= {tags.gpu_reading(index, name): value for name, value in self._gpu(index)}
        ended = self._clock()
        # The pause grows with the duration of the sample, so the fraction of time spent here is bounded.
        self._next = ended + max(self.every_seconds, PAUSE_FACTOR * (ended - began))
        return values

    def close(self) -> None:
        """Close NVML; may be called repeatedly."""
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
        # A new query per sample, because `missing` must describe this sample only.
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
        """Return the memory of other processes on a GPU in MiB; None if the driver does not report it."""
        processes = read_processes(handle, query)
        if any(name.startswith("processes") for name in query.missing):
            return None
        pid = self._process.pid
        listed = any(process.pid == pid for process in processes)
        # Pids that do not exist here mean that the driver uses another namespace; this process may be one of them.
        if not listed and not all(psutil.pid_exists(process.pid) for process in processes):
            return None
        others = [process.memory_bytes for process in processes if process.pid != pid]
        known = [memory for memory in others if memory is not None]
        return sum(known) / MB if len(known) == len(others) else None


def _in_mb(count: int | None) -> float | None:
    return None if count is None else count / MB
