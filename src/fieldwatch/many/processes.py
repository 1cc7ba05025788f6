"""Run scenes in plain processes on this machine, without any library (`--ray off`)."""

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
    """Runs scenes in processes on this machine in order of submission, as many at a time as resources permit.

    Args:
        capacity: resources of the machine; GPUs are assigned as whole devices.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = self._left = capacity
        self._gpus = _visible(int(capacity.gpus))
        self._waiting: list[SceneTask] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[tuple[SceneTask, ProcessExit, list[str]]] = queue.SimpleQueue()

    def capacity(self) -> Capacity:
        """Return the resources of this machine."""
        return self._capacity

    def submit(self, task: SceneTask) -> None:
        """Queue a task, and start it if resources are available."""
        self._waiting.append(task)
        self._begin()

    def wait(self, seconds: float) -> Sequence[tuple[SceneTask, ProcessExit]]:
        """Return finished tasks with their results, after at most ``seconds``."""
        finished: list[tuple[SceneTask, ProcessExit]] = []
        try:
            finished.append(self._take_back(*self._ended.get(timeout=seconds)))
            while True:
                finished.append(self._take_back(*self._ended.get_nowait()))
        # All finished tasks have released their resources, so others may start.
        except queue.Empty:
            self._begin()
        return finished

    def close(self) -> None:
        """Wait for running tasks, which the driver has told to stop."""
        # Drop tasks that have not started.
        self._waiting.clear()
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        """Start waiting tasks in order while resources suffice; smaller tasks do not overtake a large one."""
        while self._waiting and self._left.fits(self._waiting[0]):
            task = self._waiting.pop(0)
            self._left = self._left.without(task)
            # Hand out disjoint devices through CUDA_VISIBLE_DEVICES, so that scenes cannot share a GPU by accident.
            gpus = self._gpus[: int(task.gpus)]
            self._gpus = self._gpus[int(task.gpus) :]
            thread = threading.Thread(target=self._run, args=(task, gpus), name=task.scene)
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()

    def _run(self, task: SceneTask, gpus: list[str]) -> None:
        try:
            ended = run_task(replace(task, env={"CUDA_VISIBLE_DEVICES": ",".join(gpus), **task.env}))
        # An exception in this thread must reach the driver as a result, or the driver would wait forever.
        except OSError as error:
            ended = ProcessExit(code=None, cause=f"it could not be started: {error}")
        self._ended.put((task, ended, gpus))

    def _take_back(self, task: SceneTask, ended: ProcessExit, gpus: list[str]) -> tuple[SceneTask, ProcessExit]:
        """Release the resources of a finished task."""
        self._gpus = [*self._gpus, *gpus]
        self._left = self._left.with_room_of(task)
        return task, ended


def _visible(count: int) -> list[str]:
    """Return the available GPUs as entries of CUDA_VISIBLE_DEVICES."""
    # Respect an existing restriction, for example by a cluster scheduler; entries may be indices or UUIDs.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]
