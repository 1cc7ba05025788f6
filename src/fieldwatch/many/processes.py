"""Scenes as plain processes of this machine: what `--ray off` means, and no library is needed for it."""

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from fieldwatch.many.attempt import run_task
from fieldwatch.many.task import Capacity, ProcessExit, SceneTask


@final
class ProcessExecutor:
    """Tries scenes in processes of this machine, as many at a time as there is room for, in the order they came.

    Args:
        capacity: of the machine; GPUs are given out whole.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = self._left = capacity
        self._gpus = _visible(int(capacity.gpus))
        self._waiting: list[SceneTask] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[tuple[SceneTask, ProcessExit, list[str]]] = queue.SimpleQueue()

    def capacity(self) -> Capacity:
        """What there is."""
        return self._capacity

    def submit(self, task: SceneTask) -> None:
        """Take an order."""
        self._waiting.append(task)
        self._begin()

    def wait(self, seconds: float) -> Sequence[tuple[SceneTask, ProcessExit]]:
        """What has ended."""
        finished: list[tuple[SceneTask, ProcessExit]] = []
        try:
            finished.append(self._take_back(*self._ended.get(timeout=seconds)))
            while True:
                finished.append(self._take_back(*self._ended.get_nowait()))
        # Everything that ended has given its resources back: others may start.
        except queue.Empty:
            self._begin()
        return finished

    def close(self) -> None:
        """Wait for what runs; the driver has told it to stop."""
        self._waiting.clear()
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        """Start what there is room for; a large one that waits is not overtaken."""
        while self._waiting and self._left.fits(self._waiting[0]):
            task = self._waiting.pop(0)
            self._left = self._left.without(task)
            gpus = self._gpus[: int(task.gpus)]
            self._gpus = self._gpus[int(task.gpus) :]
            thread = threading.Thread(target=self._run, args=(task, gpus), name=task.scene)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()

    def _run(self, task: SceneTask, gpus: list[str]) -> None:
        try:
            ended = run_task(replace(task, env={"CUDA_VISIBLE_DEVICES": ",".join(gpus), **task.env}))
        # Raised in a thread: it has to reach the driver as a result, or the driver would wait forever.
        except OSError as error:
            ended = ProcessExit(code=None, cause=f"it could not be started: {error}")
        self._ended.put((task, ended, gpus))

    def _take_back(self, task: SceneTask, ended: ProcessExit, gpus: list[str]) -> tuple[SceneTask, ProcessExit]:
        """Give the room of what ended to others."""
        self._gpus = [*self._gpus, *gpus]
        self._left = self._left.with_room_of(task)
        return task, ended


def _visible(count: int) -> list[str]:
    """The GPUs that may be given out, by the names that CUDA_VISIBLE_DEVICES knows."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]
