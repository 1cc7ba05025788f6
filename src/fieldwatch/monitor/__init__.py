"""Monitor: the machine beside the run: GPUs, processes, memory; needs no torch and makes no CUDA context."""

from fieldwatch.monitor.machine import MachineReader, read_machine
from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, MigInstance, ProcessFacts, RunFacts
from fieldwatch.monitor.sampler import MachineSampler
from fieldwatch.monitor.view import line, picture

__all__ = [
    "Cpu",
    "Gpu",
    "GpuProcess",
    "Machine",
    "MachineReader",
    "MachineSampler",
    "MigInstance",
    "ProcessFacts",
    "RunFacts",
    "line",
    "picture",
    "read_machine",
]
