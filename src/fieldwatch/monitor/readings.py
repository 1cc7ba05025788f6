"""What is known about a machine at one moment; None is said where the system does not say."""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

Status = Literal["HEALTHY", "HIGH", "CRITICAL"]
HIGH = 80.0
CRITICAL = 95.0
"""Percent of a device's memory above which it is called so (the original monitors' limits)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """What the system says about one process.

    Attributes:
        pid: its number, as seen from here.
        name: program name.
        command: command line, words separated by blanks.
        user: who runs it.
        cpu_percent: CPU time between the last two looks over wall time, 100 per core; None at the first look.
        resident_bytes: main memory it holds (RSS).
    """

    pid: int
    name: str | None
    command: str | None
    user: str | None
    cpu_percent: float | None
    resident_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A fieldwatch run that a process is writing.

    Attributes:
        folder: the run folder.
        process: the process that trains.
        step: last step in its journal (0-based); None before the first.
        allocated_bytes: what its tensors held at that step (the run's own figure; the whole process on a CPU).
        reserved_bytes: what its CUDA allocator had taken from the device; None on a CPU.
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
        pid: as the driver says; where the driver sees another pid namespace, not a number of this one.
        kind: whether it computes, draws, or both.
        memory_bytes: what it holds on the device; None where the driver does not say (N/A).
        instance: MIG GPU instance; None without MIG.
        facts: the process itself; None where no such pid is visible from here.
        run: the fieldwatch run that it trains, if it is one.
    """

    pid: int
    kind: Literal["compute", "graphics", "compute+graphics"]
    memory_bytes: int | None
    instance: int | None
    facts: ProcessFacts | None = None
    run: RunFacts | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MigInstance:
    """A part of a GPU in MIG mode.

    Attributes:
        gpu_instance: number of the GPU instance.
        compute_instance: number of the compute instance inside it.
        name: its profile's name.
        uuid: what CUDA_VISIBLE_DEVICES takes.
        memory_used_bytes: in use.
        memory_total_bytes: what the instance has.
    """

    gpu_instance: int | None
    compute_instance: int | None
    name: str | None
    uuid: str | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU. Every value may be None; ``missing`` says why.

    Attributes:
        index: NVML's number (bus order, as nvidia-smi; CUDA may count differently).
        name: product name.
        uuid: the device's own identity.
        memory_used_bytes: in use by anybody.
        memory_total_bytes: all there is.
        memory_reserved_bytes: kept by driver and firmware, not part of the used; None on old drivers.
        utilisation_percent: share of the last sampling period in which a kernel ran.
        memory_utilisation_percent: share of that period in which memory was read or written.
        power_watts: drawn now.
        power_limit_watts: enforced limit.
        temperature_celsius: of the core.
        clock_mhz: of the multiprocessors.
        memory_clock_mhz: of the memory.
        limited_by: what holds the clocks down now, idleness left out.
        throttled: slowed down by power or heat.
        ecc_errors: uncorrected memory errors since the driver was loaded.
        mig: whether MIG mode is on.
        instances: the MIG instances.
        processes: who uses it.
        missing: names of values that could not be read, with NVML's reason.
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
        """Used share of the memory."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return 100 * self.memory_used_bytes / self.memory_total_bytes

    @property
    def status(self) -> Status | None:
        """How full the memory is, in a word."""
        percent = self.memory_percent
        if percent is None:
            return None
        return "CRITICAL" if percent > CRITICAL else "HIGH" if percent > HIGH else "HEALTHY"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cpu:
    """Processor and main memory.

    Attributes:
        cores: logical cores.
        utilisation_percent: of all cores together, 0 to 100, since the last look.
        memory_used_bytes: not available to programs without swapping.
        memory_total_bytes: all there is.
    """

    cores: int
    utilisation_percent: float
    memory_used_bytes: int
    memory_total_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine at one moment.

    Attributes:
        time: when.
        host: its name.
        driver: version of the NVIDIA driver; None without one.
        cuda: the newest CUDA version that driver can run.
        gpus: every GPU.
        cpu: processor and main memory.
        runs: the fieldwatch runs that are being trained here.
        notes: what a reader must know about the numbers, in plain sentences.
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
        """Return everything as plain values, with each GPU's memory percentage and status."""
        answer = dataclasses.asdict(self)
        for reading, gpu in zip(answer["gpus"], self.gpus, strict=True):
            reading |= {"memory_percent": gpu.memory_percent, "status": gpu.status}
        return answer
