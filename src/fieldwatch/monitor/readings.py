"""Readings of the machine's state at one moment; values that are not available are None."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

Status = Literal["HEALTHY", "HIGH", "CRITICAL"]
HIGH = 80.0
CRITICAL = 95.0
"""Percentages of used memory above which the status is HIGH or CRITICAL."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """Information about one process.

    Attributes:
        pid: process ID in the namespace of the reader.
        name: name of the program.
        command: command line, arguments separated by spaces.
        user: name of the user.
        cpu_percent: CPU time over wall time between the last two readings, 100 per core; None in the first reading.
        resident_bytes: resident memory (RSS) in bytes.
    """

    pid: int
    name: str | None
    command: str | None
    user: str | None
    cpu_percent: float | None
    resident_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A fieldwatch run that is being trained by a process.

    Attributes:
        folder: run folder.
        process: training process.
        step: last step (0-based) in the journal; None before the first.
        allocated_bytes: memory of the tensors at that step, as reported by the run; on a CPU, of the whole process.
        reserved_bytes: memory reserved by the CUDA allocator; None on a CPU.
    """

    folder: Path
    process: ProcessFacts
    step: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that uses a GPU.

    Attributes:
        pid: process ID reported by the driver, which may belong to another pid namespace.
        kind: whether it uses compute, graphics, or both.
        memory_bytes: device memory of the process; None if the driver does not report it (N/A).
        instance: MIG GPU instance; None without MIG.
        facts: information about the process; None if the pid is not visible.
        run: fieldwatch run that the process trains, if any.
    """

    pid: int
    kind: Literal["compute", "graphics", "compute+graphics"]
    memory_bytes: int | None
    instance: int | None
    facts: ProcessFacts | None = None
    run: RunFacts | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigInstance:
    """One MIG instance of a GPU.

    Attributes:
        gpu_instance: number of the GPU instance.
        compute_instance: number of the compute instance within the GPU instance.
        name: name of the MIG profile.
        uuid: UUID for CUDA_VISIBLE_DEVICES.
        memory_used_bytes: used memory.
        memory_total_bytes: memory of the instance.
    """

    gpu_instance: int | None
    compute_instance: int | None
    name: str | None
    uuid: str | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """State of one GPU. Every value may be None; ``missing`` contains the reason.

    Attributes:
        index: index in NVML (bus order, as in nvidia-smi; CUDA may use another order).
        name: product name.
        uuid: UUID of the device.
        memory_used_bytes: memory used by all processes.
        memory_total_bytes: total memory.
        memory_reserved_bytes: memory reserved by driver and firmware, not included in the used memory; None on old
            drivers.
        utilisation_percent: percentage of the last sampling period in which a kernel ran.
        memory_utilisation_percent: percentage of that period in which memory was read or written.
        power_watts: current power draw.
        power_limit_watts: enforced power limit.
        temperature_celsius: core temperature.
        clock_mhz: clock of the multiprocessors.
        memory_clock_mhz: clock of the memory.
        limited_by: reasons why the clocks are currently limited, except for idleness.
        throttled: whether the clocks are limited because of power or heat.
        ecc_errors: uncorrected memory errors since the driver was loaded.
        mig: whether MIG mode is enabled.
        instances: MIG instances.
        processes: processes that use the GPU.
        missing: NVML's reason for each value that could not be read, by name.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilisation_percent: float | None = None
    memory_utilisation_percent: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    limited_by: tuple[str, ...] | None = None
    throttled: bool | None = None
    ecc_errors: int | None = None
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    @property
    def memory_percent(self) -> float | None:
        """Used memory in percent of the total."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return 100 * self.memory_used_bytes / self.memory_total_bytes

    @property
    def status(self) -> Status | None:
        """Status of the memory usage."""
        percent = self.memory_percent
        if percent is None:
            return None
        return "CRITICAL" if percent > CRITICAL else "HIGH" if percent > HIGH else "HEALTHY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cpu:
    """State of CPU and main memory.

    Attributes:
        cores: number of logical cores.
        utilisation_percent: utilization of all cores together since the last reading, 0 to 100.
        memory_used_bytes: memory that is not available to programs without swapping.
        memory_total_bytes: total memory.
    """

    cores: int
    utilisation_percent: float
    memory_used_bytes: int
    memory_total_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """State of the machine at one moment.

    Attributes:
        time: time of the reading.
        host: host name.
        driver: version of the NVIDIA driver; None without a driver.
        cuda: newest CUDA version that the driver supports.
        gpus: all GPUs.
        cpu: CPU and main memory.
        runs: fieldwatch runs that are being trained on this machine.
        notes: remarks on the limits of the readings, as sentences.
    """

    time: datetime
    host: str
    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    cpu: Cpu
    runs: tuple[RunFacts, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all readings as plain values, including each GPU's memory percentage and status."""
        answer = dataclasses.asdict(self)
        # asdict omits properties, so they are added here.
        for reading, gpu in zip(answer["gpus"], self.gpus, strict=True):
            reading |= {"memory_percent": gpu.memory_percent, "status": gpu.status}
        return answer
