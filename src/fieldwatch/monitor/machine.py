"""Reads the state of the machine: GPUs and their processes, CPU, memory, and fieldwatch runs."""

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
"""Seconds between the two readings from which the CPU utilization is computed."""


def read_machine(settle: float = SETTLE) -> Machine:
    """Read the machine once.

    Args:
        settle: seconds over which the CPU utilization is measured.
    """
    with MachineReader() as reader:
        reader.read()
        time.sleep(settle)
        return reader.read()


@final
class MachineReader:
    """A context manager that reads the machine repeatedly and opens NVML only once.

    CPU utilization is measured between two readings: in the first one, it is None for processes.
    """

    def __init__(self) -> None:
        self._nvml = Nvml()
        self._processes = Processes()
        self._runs = RunFinder()
        # The first call only starts the interval that the next one measures.
        psutil.cpu_percent()

    def read(self) -> Machine:
        """Return the current state of the machine."""
        self._processes.forget_ended()
        runs = self._runs.read(self._processes)
        facts = {run.process.pid: run.process for run in runs}
        gpus = [read_gpu(self._nvml, index) for index in range(self._nvml.count())]
        # Each process is read only once: psutil measures CPU time between calls.
        for pid in {process.pid for gpu in gpus for process in gpu.processes} - facts.keys():
            # None for processes in other containers.
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
        """Close NVML."""
        self._nvml.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_cpu() -> Cpu:
    """Return the state of CPU and main memory; the utilization is measured since the last call."""
    memory = psutil.virtual_memory()
    return Cpu(
        cores=psutil.cpu_count() or 1,
        utilisation_percent=psutil.cpu_percent(),
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
    )


def _notes(absent: str, gpus: Sequence[Gpu], runs: Sequence[RunFacts]) -> Iterator[str]:
    if not gpus:
        why = f"no NVIDIA driver ({absent})" if absent else "the NVIDIA driver found no GPU"
        yield f"{why}: only CPU, memory and runs are shown"
    for gpu in gpus:
        if "gpu" in gpu.missing:
            yield f"GPU {gpu.index} cannot be reached: {gpu.missing['gpu']}"
        # NVML reports a GPU that has fallen off the bus as "GPU is lost" for every value.
        elif any("lost" in reason.lower() for reason in gpu.missing.values()):
            yield f"GPU {gpu.index} is lost: it no longer responds to the driver (see dmesg, then reboot)"
    processes = [process for gpu in gpus for process in gpu.processes]
    yield from _about_processes(processes)
    silent = [gpu.index for gpu in gpus if any(key.startswith("processes") for key in gpu.missing)]
    if silent:
        yield f"GPU {', '.join(map(str, silent))}: the driver does not list processes"
    unmatched = not any(process.run for process in processes)
    if gpus and unmatched and any(run.reserved_bytes for run in runs):
        yield "no listed pid belongs to a run: match them by the memory that each run reports"


def _about_processes(processes: Sequence[GpuProcess]) -> Iterator[str]:
    if any(process.memory_bytes is None for process in processes):
        yield (
            "memory per process is N/A (not reported by the driver on Windows, WSL and in some driver releases): "
            "use the device's total and the memory that runs report"
        )
    hidden = sorted({process.pid for process in processes if process.facts is None})
    if hidden:
        yield f"pid {', '.join(map(str, hidden))} not visible from here: another container or pid namespace"
    elif processes and in_own_namespace():
        yield "this is a container: the driver may list processes under other pids"
