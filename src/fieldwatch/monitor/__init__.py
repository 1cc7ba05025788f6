"""Monitor: the machine beside the run: GPUs, processes, memory; needs no torch and makes no CUDA context."""

from fieldwatch.monitor.black_box import FOLDER as BLACK_BOX
from fieldwatch.monitor.black_box import STACKS, BlackBox, Ending, Heartbeat, read_black_box
from fieldwatch.monitor.causes import STICKY, STOPS, Cause, Death, cause_of_end, cause_of_error, signal_name
from fieldwatch.monitor.machine import MachineReader, read_machine
from fieldwatch.monitor.post_mortem import explain_silent_end, heading, last_checkpoint, leave_note, read_post_mortems
from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, MigInstance, ProcessFacts, RunFacts
from fieldwatch.monitor.runs import LatestValues
from fieldwatch.monitor.sampler import MachineSampler
from fieldwatch.monitor.supervised import Supervised, supervised
from fieldwatch.monitor.supervisor import GAVE_UP, Start, Supervisor
from fieldwatch.monitor.view import line, picture

__all__ = [
    "BLACK_BOX",
    "GAVE_UP",
    "STACKS",
    "STICKY",
    "STOPS",
    "BlackBox",
    "Cause",
    "Cpu",
    "Death",
    "Ending",
    "Gpu",
    "GpuProcess",
    "Heartbeat",
    "LatestValues",
    "Machine",
    "MachineReader",
    "MachineSampler",
    "MigInstance",
    "ProcessFacts",
    "RunFacts",
    "Start",
    "Supervised",
    "Supervisor",
    "cause_of_end",
    "cause_of_error",
    "explain_silent_end",
    "heading",
    "last_checkpoint",
    "leave_note",
    "line",
    "picture",
    "read_black_box",
    "read_machine",
    "read_post_mortems",
    "signal_name",
    "supervised",
]
