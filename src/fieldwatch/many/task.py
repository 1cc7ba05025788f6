"""What goes to whoever tries a scene, and what comes back."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from fieldwatch.monitor import LastWords

TRY_LINE: Final = "--- try"
"""How the line begins that stands above what each try printed."""


@dataclass(frozen=True, kw_only=True)
class Order:
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
class Ended:
    """How a try ended.

    Attributes:
        code: the process's exit code, negative for a signal; None where nobody lived to see it.
        asked: why it was told to end: ``stop``, ``timeout``, or ``""`` for not at all.
        seconds: how long it took.
        cause: what is known besides; empty for nothing.
        pid: of the training process; 0 where it is not known.
        words: why the process itself said that it ends; None where it said nothing.
    """

    code: int | None
    asked: str = ""
    seconds: float = 0.0
    cause: str = ""
    pid: int = 0
    words: LastWords | None = None


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

    def fits(self, order: Order) -> bool:
        """Whether the order could be done if nothing else ran."""
        return order.cpus <= self.cpus and order.gpus <= self.gpus and order.memory_bytes <= self.memory_bytes

    def without(self, order: Order) -> "Capacity":
        """What is left while the order is done."""
        return self._changed(order, -1)

    def with_room_of(self, order: Order) -> "Capacity":
        """What is left when the order is done."""
        return self._changed(order, 1)

    def _changed(self, order: Order, sign: int) -> "Capacity":
        return Capacity(
            cpus=self.cpus + sign * order.cpus,
            gpus=self.gpus + sign * order.gpus,
            memory_bytes=self.memory_bytes + sign * order.memory_bytes,
            grows=self.grows,
        )


@runtime_checkable
class Executor(Protocol):
    """Whoever tries scenes."""

    def capacity(self) -> Capacity:
        """What there is."""
        ...

    def start(self, order: Order) -> None:
        """Take an order; it is done as soon as there is room for it."""
        ...

    def wait(self, seconds: float) -> Sequence[tuple[Order, Ended]]:
        """What has ended; returns early if anything has."""
        ...

    def close(self) -> None:
        """Let go of everything; what still runs saves and ends."""
        ...


def capacity_here(cpus: int | None, gpus: int, memory_bytes: int) -> Capacity:
    """This machine; processors are those that this process may use, or as many as are asked for."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Capacity(cpus=cpus or usable, gpus=gpus, memory_bytes=memory_bytes)
