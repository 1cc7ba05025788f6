"""Monitor: the machine beside the run: GPUs, processes, memory; needs no torch and makes no CUDA context."""

from fieldwatch.monitor.black_box import FOLDER as BLACK_BOX
from fieldwatch.monitor.black_box import STACKS, BlackBox, Ending, Heartbeat, boot_id, read_black_box
from fieldwatch.monitor.causes import (
    STICKY,
    STOPS,
    Cause,
    Death,
    asks_for_an_end,
    cause_of_end,
    cause_of_error,
    cause_of_status,
    signal_name,
)
from fieldwatch.monitor.child import Start
from fieldwatch.monitor.input_paths import NamedPaths
from fieldwatch.monitor.machine import MachineReader, read_machine
from fieldwatch.monitor.machine_view import line, picture
from fieldwatch.monitor.post_mortem import (
    explain_silent_end,
    heading,
    last_checkpoint,
    leave_note,
    read_post_mortems,
    resume_command,
)
from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, MigInstance, ProcessFacts, RunFacts
from fieldwatch.monitor.restarts import Restarts
from fieldwatch.monitor.run_state import BROKEN, ENDED, RunState, StateWord, state_of
from fieldwatch.monitor.runs import LatestValues
from fieldwatch.monitor.sampler import MachineSampler
from fieldwatch.monitor.supervised import LastWords, Supervised, read_channel, say_end, says_why_it_fails, supervised
from fieldwatch.monitor.supervisor import GAVE_UP, PER_HOUR, Supervisor

__all__ = [
    "BLACK_BOX",
    "BROKEN",
    "ENDED",
    "GAVE_UP",
    "PER_HOUR",
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
    "LastWords",
    "LatestValues",
    "Machine",
    "MachineReader",
    "MachineSampler",
    "MigInstance",
    "NamedPaths",
    "ProcessFacts",
    "Restarts",
    "RunFacts",
    "RunState",
    "Start",
    "StateWord",
    "Supervised",
    "Supervisor",
    "asks_for_an_end",
    "boot_id",
    "cause_of_end",
    "cause_of_error",
    "cause_of_status",
    "explain_silent_end",
    "heading",
    "last_checkpoint",
    "leave_note",
    "line",
    "picture",
    "read_black_box",
    "read_channel",
    "read_machine",
    "read_post_mortems",
    "resume_command",
    "say_end",
    "says_why_it_fails",
    "signal_name",
    "state_of",
    "supervised",
]
