"""Scenes as plain processes of this machine: what `--ray off` means, and no library is needed for it."""

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import final

from fieldwatch.many.attempt import attempt
from fieldwatch.many.task import Capacity, Ended, Order


@final
class ProcessExecutor:
    """Tries scenes in processes of this machine, as many at a time as there is room for, in the order they came.

    Args:
        capacity: of the machine; GPUs are given out whole.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = self._left = capacity
        self._gpus = _visible(int(capacity.gpus))
        self._waiting: list[Order] = []
        self._threads: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[tuple[Order, Ended, list[str]]] = queue.SimpleQueue()

    def capacity(self) -> Capacity:
        """What there is."""
        return self._capacity

    def start(self, order: Order) -> None:
        """Take an order."""
        self._waiting.append(order)
        self._begin()

    def wait(self, seconds: float) -> Sequence[tuple[Order, Ended]]:
        """What has ended."""
        found: list[tuple[Order, Ended]] = []
        try:
            found.append(self._take_back(*self._ended.get(timeout=seconds)))
            while True:
                found.append(self._take_back(*self._ended.get_nowait()))
        except queue.Empty:
            self._begin()
        return found

    def close(self) -> None:
        """Wait for what runs; the driver has told it to stop."""
        self._waiting.clear()
        for thread in self._threads:
            thread.join()

    def _begin(self) -> None:
        """Start what there is room for; a large one that waits is not overtaken."""
        while self._waiting and self._left.fits(self._waiting[0]):
            order = self._waiting.pop(0)
            self._left = self._left.without(order)
            given = self._gpus[: int(order.gpus)]
            self._gpus = self._gpus[int(order.gpus) :]
            thread = threading.Thread(target=self._do, args=(order, given), name=order.scene)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()

    def _do(self, order: Order, gpus: list[str]) -> None:
        try:
            ended = attempt(replace(order, env={"CUDA_VISIBLE_DEVICES": ",".join(gpus), **order.env}))
        except OSError as error:
            ended = Ended(code=None, cause=f"it could not be started: {error}")
        self._ended.put((order, ended, gpus))

    def _take_back(self, order: Order, ended: Ended, gpus: list[str]) -> tuple[Order, Ended]:
        """Give the room of what ended to others."""
        self._gpus = [*self._gpus, *gpus]
        self._left = self._left.with_room_of(order)
        return order, ended


def _visible(count: int) -> list[str]:
    """The GPUs that may be given out, by the names that CUDA_VISIBLE_DEVICES knows."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(number) for number in range(count)] if named is None else named.split(",")[:count]
