"""What goes to whoever tries a scene, and what comes back."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from fieldwatch.monitor import ExitReason

ATTEMPT_LINE: Final = "--- try"
"""How the line begins that stands above what each try printed."""


@dataclass(frozen=True, kw_only=True)
class SceneTask:
    """One try of one scene; it travels to another process, or machine with the same file system.

    Attributes:
        scene: its name.
        number: of the try, from 1.
        command: words for `python`, e.g. ``-m fieldwatch train NAME``.
        folder: the run folder.
        console: file that takes what the process prints.
        stop_file: when it exists, the process saves and ends.
        place: the folder in which the process starts.
        env: its environment variables, besides those of whoever tries it.
        cpus: processors it takes.
        gpus: GPUs it takes.
        memory_bytes: memory it takes; 0 does not say.
        timeout: seconds it may take; None for any time.
        grace: seconds it has for saving when it is told to end.
    """

    scene: str
    number: int
    command: tuple[str, ...]
    folder: Path
    console: Path
    stop_file: Path
    place: Path
    env: Mapping[str, str]
    cpus: float
    gpus: float
    memory_bytes: int
    timeout: float | None
    grace: float


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """How a try ended.

    Attributes:
        code: the process's exit code, negative for a signal; None where nobody lived to see it.
        stop_reason: why it was told to end: ``stop``, ``timeout``, or ``""`` for not at all.
        seconds: how long it took.
        cause: what is known besides; empty for nothing.
        pid: of the training process; 0 where it is not known.
        reason: why the process itself said that it ends; None where it said nothing.
    """

    code: int | None
    stop_reason: str = ""
    seconds: float = 0.0
    cause: str = ""
    pid: int = 0
    reason: ExitReason | None = None


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What there is to train with.

    Attributes:
        cpus: processors.
        gpus: GPUs.
        memory_bytes: memory.
        grows: whether more may come (a cluster that scales by itself).
    """

    cpus: float
    gpus: float
    memory_bytes: int
    grows: bool = False

    def fits(self, task: SceneTask) -> bool:
        """Whether the order could be done if nothing else ran."""
        return task.cpus <= self.cpus and task.gpus <= self.gpus and task.memory_bytes <= self.memory_bytes

    def without(self, task: SceneTask) -> "Capacity":
        """What is left while the order is done."""
        return self._changed(task, -1)

    def with_room_of(self, task: SceneTask) -> "Capacity":
        """What is left when the order is done."""
        return self._changed(task, 1)

    def _changed(self, task: SceneTask, sign: int) -> "Capacity":
        return Capacity(
            cpus=self.cpus + sign * task.cpus,
            gpus=self.gpus + sign * task.gpus,
            memory_bytes=self.memory_bytes + sign * task.memory_bytes,
            grows=self.grows,
        )


@runtime_checkable
class Executor(Protocol):
    """Whoever tries scenes."""

    def capacity(self) -> Capacity:
        """What there is."""
        ...

    def submit(self, task: SceneTask) -> None:
        """Take an order; it is done as soon as there is room for it."""
        ...

    def wait(self, seconds: float) -> Sequence[tuple[SceneTask, ProcessExit]]:
        """What has ended; returns early if anything has."""
        ...

    def close(self) -> None:
        """Let go of everything; what still runs saves and ends."""
        ...


def capacity_here(cpus: int | None, gpus: int, memory_bytes: int) -> Capacity:
    """This machine; processors are those that this process may use, or as many as are asked for."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Capacity(cpus=cpus or usable, gpus=gpus, memory_bytes=memory_bytes)
