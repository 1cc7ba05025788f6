"""Reading a machine as a whole: GPUs, who uses them, processor, memory, and the fieldwatch runs."""

import dataclasses
import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self, final

import psutil

from fieldwatch.monitor.gpu import read_gpu
from fieldwatch.monitor.nvml import Nvml
from fieldwatch.monitor.processes import Processes, in_own_namespace
from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, RunFacts
from fieldwatch.monitor.runs import RunFinder

SETTLE: Final = 0.25
"""Seconds between the two looks that a CPU share takes."""


def read_machine(settle: float = SETTLE) -> Machine:
    """Read the machine once.

    Args:
        settle: seconds over which CPU shares are taken.
    """
    with MachineReader() as reader:
        reader.read()
        time.sleep(settle)
        return reader.read()


@final
class MachineReader:
    """Reads the machine again and again; NVML is opened once. Use it with ``with``.

    CPU shares are those between two readings: the first has none for processes.
    """

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._processes = Processes()
        self._runs = RunFinder()
        # The first call only begins the interval that the next one measures.
        psutil.cpu_percent()

    def read(self) -> Machine:
        """Return what is so now."""
        self._processes.forget_ended()
        runs = self._runs.read(self._processes)
        facts = {run.process.pid: run.process for run in runs}
        gpus = [read_gpu(self._nvml, index) for index in range(self._nvml.count())]
        for pid in {process.pid for gpu in gpus for process in gpu.processes} - facts.keys():
            known = self._processes.facts(pid)
            facts |= {} if known is None else {pid: known}
        by_pid = {run.process.pid: run for run in runs}
        gpus = [
            dataclasses.replace(
                gpu,
                processes=tuple(
                    dataclasses.replace(process, facts=facts.get(process.pid), run=by_pid.get(process.pid))
                    for process in gpu.processes
                ),
            )
            for gpu in gpus
        ]
        return Machine(
            time=datetime.now(UTC),
            host=platform.node(),
            driver=self._nvml.driver,
            cuda=self._nvml.cuda,
            gpus=tuple(gpus),
            cpu=read_cpu(),
            runs=runs,
            notes=tuple(_notes(self._nvml.absent, gpus, runs)),
        )

    def close(self) -> None:
        """Give NVML back."""
        self._nvml.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_cpu() -> Cpu:
    """Return processor and main memory; the utilisation is the one since the last call."""
    memory = psutil.virtual_memory()
    return Cpu(
        cores=psutil.cpu_count() or 1,
        utilisation_percent=psutil.cpu_percent(),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
    )


def _notes(absent: str, gpus: Sequence[Gpu], runs: Sequence[RunFacts]) -> Iterator[str]:
    if not gpus:
        why = f"no NVIDIA driver ({absent})" if absent else "the NVIDIA driver knows no GPU"
        yield f"{why}: only processor, memory and runs are shown"
    for gpu in gpus:
        if "gpu" in gpu.missing:
            yield f"GPU {gpu.index} cannot be reached: {gpu.missing['gpu']}"
        elif any("lost" in reason.lower() for reason in gpu.missing.values()):
            yield f"GPU {gpu.index} is lost: the driver no longer answers for it (see dmesg, then reboot)"
    processes = [process for gpu in gpus for process in gpu.processes]
    yield from _about_processes(processes)
    silent = [gpu.index for gpu in gpus if any(key.startswith("processes") for key in gpu.missing)]
    if silent:
        yield f"GPU {', '.join(map(str, silent))}: the driver does not list processes"
    nobody = not any(process.run for process in processes)
    if gpus and nobody and any(run.reserved_bytes for run in runs):
        yield "no listed pid is a run's: match them by the memory that each run reports itself"


def _about_processes(processes: Sequence[GpuProcess]) -> Iterator[str]:
    if any(process.memory_bytes is None for process in processes):
        yield (
            "memory per process is N/A (the driver does not tell it: Windows, WSL and some driver releases): "
            "trust the device's total, and what runs report of themselves"
        )
    hidden = sorted({process.pid for process in processes if process.facts is None})
    if hidden:
        yield f"pid {', '.join(map(str, hidden))} not visible from here: another container or pid namespace"
    elif processes and in_own_namespace():
        yield "this is a container: the driver may number processes otherwise than it does"
