"""Monitoring of runs and of the machine (GPUs, processes, memory), without torch and without a CUDA context."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.monitor.black_box import FOLDER as BLACK_BOX
    from fieldwatch.monitor.black_box import STACKS, BlackBox, Ending, Heartbeat, boot_id, read_black_box
    from fieldwatch.monitor.causes import (
        STICKY,
        STOPS,
        Cause,
        Death,
        cause_of_end,
        cause_of_error,
        cause_of_status,
        is_requested_stop,
        signal_name,
    )
    from fieldwatch.monitor.child import Attempt
    from fieldwatch.monitor.input_paths import InputPaths
    from fieldwatch.monitor.machine import MachineReader, read_machine
    from fieldwatch.monitor.machine_view import machine_line, render_machine
    from fieldwatch.monitor.post_mortem import (
        explain_silent_end,
        heading,
        last_checkpoint,
        leave_note,
        read_post_mortems,
        resume_command,
    )
    from fieldwatch.monitor.readings import Cpu, Gpu, GpuProcess, Machine, MigInstance, ProcessFacts, RunFacts
    from fieldwatch.monitor.restarts import PER_HOUR, RestartLimiter
    from fieldwatch.monitor.run_state import BROKEN, ENDED, RunState, StateWord, state_of
    from fieldwatch.monitor.runs import LatestValues
    from fieldwatch.monitor.sampler import MachineSampler
    from fieldwatch.monitor.supervised import (
        ExitReason,
        SupervisorLink,
        read_channel,
        report_exit,
        reports_failure,
        supervisor_link,
    )
    from fieldwatch.monitor.supervisor import GAVE_UP, Supervisor

__all__ = [
    "BLACK_BOX",
    "BROKEN",
    "ENDED",
    "GAVE_UP",
    "PER_HOUR",
    "STACKS",
    "STICKY",
    "STOPS",
    "Attempt",
    "BlackBox",
    "Cause",
    "Cpu",
    "Death",
    "Ending",
    "ExitReason",
    "Gpu",
    "GpuProcess",
    "Heartbeat",
    "InputPaths",
    "LatestValues",
    "Machine",
    "MachineReader",
    "MachineSampler",
    "MigInstance",
    "ProcessFacts",
    "RestartLimiter",
    "RunFacts",
    "RunState",
    "StateWord",
    "Supervisor",
    "SupervisorLink",
    "boot_id",
    "cause_of_end",
    "cause_of_error",
    "cause_of_status",
    "explain_silent_end",
    "heading",
    "is_requested_stop",
    "last_checkpoint",
    "leave_note",
    "machine_line",
    "read_black_box",
    "read_channel",
    "read_machine",
    "read_post_mortems",
    "render_machine",
    "report_exit",
    "reports_failure",
    "resume_command",
    "signal_name",
    "state_of",
    "supervisor_link",
]

__getattr__, __dir__ = lazy_names(__name__)
