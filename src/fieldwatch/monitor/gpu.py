"""Reads the state of one GPU through NVML, value by value."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, Literal

from fieldwatch.monitor.nvml import (
    CORE_TEMPERATURE,
    MEMORY_CLOCK,
    MEMORY_WITH_RESERVED,
    SM_CLOCK,
    UNCORRECTED,
    Nvml,
    NvmlQuery,
)
from fieldwatch.monitor.readings import Gpu, GpuProcess, MigInstance

SLOWED_BY: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""NVML's bits for clocks that are throttled because of power or heat (nvml.h, nvmlClocksEventReasons)."""
HELD_BY: Final = {0x02: "clock setting", 0x10: "sync boost", 0x100: "display clock", 0x200: "board limit"}
"""NVML's bits for clocks that are limited for other reasons; 0x01 (idle) is not a limit."""
NO_INSTANCE: Final = 0xFFFFFFFF


def read_gpu(nvml: Nvml, index: int) -> Gpu:
    """Read all values of one GPU; a value that cannot be read is None, with the reason in ``missing``."""
    query = NvmlQuery()
    handle = nvml.handle(index, query)
    if handle is None:
        return Gpu(index=index, missing=query.missing)
    rates = query("utilisation_percent", "nvmlDeviceGetUtilizationRates", handle)
    limits = read_limits(handle, query)
    mig = query("mig", "nvmlDeviceGetMigMode", handle)
    return Gpu(
        index=index,
        name=query("name", "nvmlDeviceGetName", handle),
        uuid=query("uuid", "nvmlDeviceGetUUID", handle),
        **read_memory(handle, query),
        utilisation_percent=None if rates is None else float(rates.gpu),
        memory_utilisation_percent=None if rates is None else float(rates.memory),
        power_watts=read_power(handle, query),
        power_limit_watts=_watts(query("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", handle)),
        temperature_celsius=read_temperature(handle, query),
        clock_mhz=query("clock_mhz", "nvmlDeviceGetClockInfo", handle, SM_CLOCK),
        memory_clock_mhz=query("memory_clock_mhz", "nvmlDeviceGetClockInfo", handle, MEMORY_CLOCK),
        limited_by=limits,
        throttled=None if limits is None else slowed_down(limits),
        ecc_errors=_ecc_errors(handle, query),
        mig=None if mig is None else bool(mig[0]),
        instances=_instances(handle) if mig is not None and mig[0] else (),
        processes=read_processes(handle, query),
        missing=query.missing,
    )


def read_memory(handle: Any, query: NvmlQuery) -> dict[str, int | None]:
    """Return used, total and reserved memory in bytes; reserved is None if the driver lacks the newer call."""
    info = query("memory", "nvmlDeviceGetMemoryInfo", handle, MEMORY_WITH_RESERVED)
    # Drivers before 510 have only the older call, which counts reserved memory as used.
    if info is None:
        info = query("memory", "nvmlDeviceGetMemoryInfo", handle)
    names = {"used": "memory_used_bytes", "total": "memory_total_bytes", "reserved": "memory_reserved_bytes"}
    return {name: getattr(info, key, None) for key, name in names.items()}


def read_power(handle: Any, query: NvmlQuery) -> float | None:
    """Return the power draw in W."""
    return _watts(query("power_watts", "nvmlDeviceGetPowerUsage", handle))


def read_temperature(handle: Any, query: NvmlQuery) -> float | None:
    """Return the core temperature in degrees Celsius."""
    celsius = query("temperature_celsius", "nvmlDeviceGetTemperature", handle, CORE_TEMPERATURE)
    # The older call is announced to be removed in CUDA 14.
    if celsius is None:
        celsius = query("temperature_celsius", "nvmlDeviceGetTemperatureV", handle, CORE_TEMPERATURE)
    return None if celsius is None else float(celsius)


def read_limits(handle: Any, query: NvmlQuery) -> tuple[str, ...] | None:
    """Return the reasons why the clocks are currently limited; None if unknown."""
    bits = query("limited_by", "nvmlDeviceGetCurrentClocksEventReasons", handle)
    # Drivers before 535 have the call under its old name only.
    if bits is None:
        bits = query("limited_by", "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    if bits is None:
        return None
    return tuple(reason for bit, reason in (SLOWED_BY | HELD_BY).items() if bits & bit)


def slowed_down(limits: tuple[str, ...]) -> bool:
    """Return whether power or heat is among the reasons."""
    return not set(SLOWED_BY.values()).isdisjoint(limits)


def read_processes(handle: Any, query: NvmlQuery) -> tuple[GpuProcess, ...]:
    """Return the processes on a device, ordered by pid; a process that uses compute and graphics is listed once."""
    # The driver has two lists; a process with CUDA and a window is in both.
    compute = _listed("compute", query("processes (compute)", "nvmlDeviceGetComputeRunningProcesses", handle))
    graphics = _listed("graphics", query("processes (graphics)", "nvmlDeviceGetGraphicsRunningProcesses", handle))
    # Both lists contain the total memory of the process, so it must not be added up.
    for key in compute.keys() & graphics.keys():
        memory = compute[key].memory_bytes
        memory = graphics[key].memory_bytes if memory is None else memory
        graphics[key] = dataclasses.replace(graphics[key], kind="compute+graphics", memory_bytes=memory)
    listed = compute | graphics
    return tuple(listed[key] for key in sorted(listed))


def _listed(kind: Literal["compute", "graphics"], processes: Iterable[Any] | None) -> dict[tuple[int, int], GpuProcess]:
    by_key: dict[tuple[int, int], GpuProcess] = {}
    for process in processes or ():
        instance = getattr(process, "gpuInstanceId", NO_INSTANCE)
        by_key[process.pid, instance] = GpuProcess(
            pid=process.pid,
            kind=kind,
            # None on WSL and Windows.
            memory_bytes=process.usedGpuMemory,
            instance=None if instance == NO_INSTANCE else instance,
        )
    return by_key


def _instances(handle: Any) -> tuple[MigInstance, ...]:
    # Indices may be unused: their handle is None.
    handles = (
        NvmlQuery()("instance", "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        for number in range(NvmlQuery()("instances", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
    )
    return tuple(_instance(handle) for handle in handles if handle is not None)


def _instance(handle: Any) -> MigInstance:
    query = NvmlQuery()
    memory = read_memory(handle, query)
    return MigInstance(
        gpu_instance=query("gpu_instance", "nvmlDeviceGetGpuInstanceId", handle),
        compute_instance=query("compute_instance", "nvmlDeviceGetComputeInstanceId", handle),
        name=query("name", "nvmlDeviceGetName", handle),
        uuid=query("uuid", "nvmlDeviceGetUUID", handle),
        memory_used_bytes=memory["memory_used_bytes"],
        memory_total_bytes=memory["memory_total_bytes"],
    )


def _ecc_errors(handle: Any, query: NvmlQuery) -> int | None:
    return query("ecc_errors", "nvmlDeviceGetTotalEccErrors", handle, *UNCORRECTED)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
