"""The parts of the torture with small counts, for planted breaks: each takes seconds and notices its mutants."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

Trial = Callable[[Path], list[Any]]
"""Takes a folder, and returns rows."""


def of(module: str, function: str, *arguments: Any, **named: Any) -> Trial:
    """Return a trial that calls a function of a module in this folder, which is imported only then."""

    def trial(folder: Path) -> list[Any]:
        return getattr(import_module(f"torture.{module}"), function)(folder, *arguments, **named)

    return trial


def calls(folder: Path) -> list[Any]:
    """Test kills and errors at some of the system calls of a save."""
    syscalls = import_module("torture.syscalls")
    why = syscalls.can_trace()
    only = ("fsync", "rename", "fallocate", "write")
    return syscalls.run_by_python(folder, why) if why else syscalls.call_rows(folder, ("EIO",), only)


def order(folder: Path) -> list[Any]:
    """Test the order of the system calls of one save."""
    syscalls = import_module("torture.syscalls")
    why = syscalls.can_trace()
    return syscalls.run_by_python(folder, why) if why else [syscalls.order_row(folder)]


def resume_of(make: str, *parts: str, **options: Any) -> Trial:
    """Return a trial of one case of the resume matrix, with these controls.

    Args:
        make: name of the function of ``resume_cases`` that makes the case.
        parts: names of the negative controls.
        options: arguments of the function.
    """

    def trial(folder: Path) -> list[Any]:
        case = getattr(import_module("torture.resume_cases"), make)(folder / "data", **options)
        return import_module("torture.resume").case_rows(case, folder, parts)

    return trial


TRIALS: Mapping[str, Trial] = {
    "order": order,
    "calls": calls,
    "start": of("start_calls", "run_start"),
    "kills": of("kill", "run_kills", 12),
    "power": of("power", "run_power", 3),
    "damage": of("damage", "run_damage", 60, 40, 30),
    "logs": of("logs", "run_logs", 20),
    "disk": of("disk", "run_small_disk"),
    "last byte": of("disk", "run_last_byte", 6.0),
    "writers": of("writers", "run_writers"),
    "signals": of("signals", "run_signals", 6),
    "video signals": of("signals", "run_video_signals", 4),
    "faults": of("faults", "run_faults", ("exception", "SIGKILL", "segfault", "diverged")),
    "hangs": of("faults", "run_faults", ("hang, lock",)),
    "default hang": of("faults", "run_default_hang"),
    "crash loop": of("faults", "run_crash_loop"),
    "injections": of("injections", "run_injections"),
    "injections mid": of("injections", "run_injections", ("mid",)),
    "optimizers": of("optimizers", "run_optimizers", ("Adam", "SGD", "Adagrad")),
    "memory of video": of("memory", "run_memory_faults", only=("video",)),
    "memory of normals": of("memory", "run_memory_faults", only=("normals",)),
    "memory of splats": of("memory", "run_memory_faults", only=("splats",)),
    "resume video": resume_of("video_case", "order: generator", amp=False, streams=False),
    "resume video AMP": resume_of("video_case", amp=True, streams=False),
    "resume video streams": resume_of("video_case", amp=False, streams=True),
    "resume splats": resume_of("splats_case", "order: generator", streams=False),
    "resume splats streams": resume_of("splats_case", streams=True),
    "resume normals": resume_of("normals_case", "rays: generator"),
    "resume disturbed": resume_of("disturbed_case", "recovery: times gone back"),
    "states": of("states", "run_states", 1),
    "stall": of("stall", "run_stall", quick=True),
    "intervals": of("intervals", "run_intervals"),
    "spikes": of("spikes", "run_spikes"),
    "validation": of("validation", "run_validation"),
    "links": of("hostile", "run_links", ("journal.jsonl", "events.jsonl", "checkpoints", "log.txt")),
    "hostile": of("hostile", "run_hostile", ("code", "bombs", "links")),
    "retention": of("retention", "run_retention", 20),
    "histories": of("histories", "run_histories", 8),
    "loaders": of("loaders", "run_loaders", ((0, False), (2, False))),
    "soak by fork": of("soak", "run_soak", 0, 6.0, by_fork=12000, patience=150.0),
    "soak": of("soak", "run_soak", 25.0, 8.0, by_fork=0),
}
