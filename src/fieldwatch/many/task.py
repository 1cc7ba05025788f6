"""Interface between the driver and executors: tasks, results and resources."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from fieldwatch.monitor import ExitReason

ATTEMPT_LINE: Final = "--- try"
"""Prefix of the line that precedes the output of each attempt in the console file."""


@dataclass(frozen=True, kw_only=True)
class SceneTask:
    """One attempt to train a scene. It may be sent to another process, or to a machine with the same file system.

    Attributes:
        scene: name of the scene.
        number: 1-based number of the attempt.
        command: arguments of `python`, such as ``-m fieldwatch train NAME``.
        folder: run folder.
        console: file that receives the output of the process.
        stop_file: file whose existence tells the process to save and end.
        place: working directory of the process.
        env: additional environment variables of the process.
        cpus: number of processors.
        gpus: number of GPUs.
        memory_bytes: required memory in bytes; 0 if unspecified.
        timeout: time limit in seconds; None for no limit.
        grace: time that the process has to save when it is stopped, in seconds.
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
    """The result of an attempt.

    Attributes:
        code: exit code of the process, negative for a signal; None if unknown.
        stop_reason: reason why the process was stopped: ``stop``, ``timeout``, or ``""`` if it was not.
        seconds: duration in seconds.
        cause: additional information on the cause; may be empty.
        pid: process ID of the training; 0 if unknown.
        reason: exit reason reported by the process itself; None if it reported none.
    """

    code: int | None
    stop_reason: str = ""
    seconds: float = 0.0
    cause: str = ""
    pid: int = 0
    reason: ExitReason | None = None


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Available resources.

    Attributes:
        cpus: number of processors.
        gpus: number of GPUs.
        memory_bytes: memory in bytes.
        grows: whether resources may be added later (an autoscaling cluster).
    """

    cpus: float
    gpus: float
    memory_bytes: int
    grows: bool = False

    def fits(self, task: SceneTask) -> bool:
        """Whether these resources suffice for the task."""
        return task.cpus <= self.cpus and task.gpus <= self.gpus and task.memory_bytes <= self.memory_bytes

    def without(self, task: SceneTask) -> "Capacity":
        """Return the resources that remain while the task runs."""
        return self._changed(task, -1)

    def with_room_of(self, task: SceneTask) -> "Capacity":
        """Return the resources after the task has released its own."""
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
    """Runs tasks."""

    def capacity(self) -> Capacity:
        """Return the total resources."""
        ...

    def submit(self, task: SceneTask) -> None:
        """Submit a task; it starts as soon as resources are available."""
        ...

    def wait(self, seconds: float) -> Sequence[tuple[SceneTask, ProcessExit]]:
        """Wait up to ``seconds`` until a task ends; return all finished tasks with their results."""
        ...

    def close(self) -> None:
        """Wait until running tasks have saved and ended, then release all resources."""
        ...


def capacity_here(cpus: int | None, gpus: int, memory_bytes: int) -> Capacity:
    """Return the resources of this machine; with ``cpus=None``, count the processors that this process may use."""
    # The affinity reflects limits of containers and schedulers, unlike the number of processors.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Capacity(cpus=cpus or usable, gpus=gpus, memory_bytes=memory_bytes)
