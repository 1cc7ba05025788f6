"""Speed of the loop, remaining time, and what process and machine use meanwhile."""

import time
from collections import deque

import psutil
import torch

GIB = 2**30
WINDOW = 32
"""Readings whose mean speed the remaining time is computed with."""
MACHINE_SECONDS = 0.5
"""Least time between two queries of the machine, which cost more than all the rest; readings in between repeat the last
values. The use of processors over less time says little."""


class LoopClock:
    """Speed of the loop, remaining time, and what the process and the machine use.

    Args:
        total: number of the step after the last one.
        device: where training happens.
    """

    def __init__(self, total: int, device: torch.device) -> None:
        self._total = total
        self._device = device
        self._readings: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._device_memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        self._machine: dict[str, float] = {}
        self._machine_read_at = time.monotonic()
        psutil.cpu_percent()  # the first call only starts the interval that the next one reports on

    def metrics(self, step: int, seconds: float) -> dict[str, float]:
        """Values of a step, on the host: no device is waited for, nothing blocks. For every tenth step or so.

        Args:
            step: 0-based, the one that is ending; higher than at the last reading.
            seconds: training time so far (`run.seconds()`).

        Returns:
            ``Time/...``, ``Performance/...``, ``VRAM/...`` and ``System/...``; speeds from the second reading on.
        """
        values = {"Time/elapsed_minutes": seconds / 60} | self._speeds(step, seconds) | self._device_use()
        return values | self._machine_use()

    def _machine_use(self) -> dict[str, float]:
        now = time.monotonic()
        if not self._machine or now - self._machine_read_at > MACHINE_SECONDS:
            memory = psutil.virtual_memory()
            self._machine = {"System/RAM_percent": memory.percent, "System/CPU_percent": psutil.cpu_percent()}
            self._machine_read_at = now
        return self._machine

    def _speeds(self, step: int, seconds: float) -> dict[str, float]:
        self._readings.append((step, seconds))
        if len(self._readings) < 2:
            return {}
        latest = _seconds_per_step(self._readings[-2], self._readings[-1])
        mean = _seconds_per_step(self._readings[0], self._readings[-1])
        if not latest > 0:  # two readings at the same time tell no speed
            return {}
        return {
            "Time/minutes_per_iter": latest / 60,
            "Performance/iterations_per_sec": 1 / latest,
            "Performance/eta_minutes": (self._total - step - 1) * mean / 60,
        }

    def _device_use(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        reserved = torch.cuda.memory_reserved(self._device)
        return {
            "VRAM/allocated_GB": torch.cuda.memory_allocated(self._device) / GIB,
            "VRAM/reserved_GB": reserved / GIB,
            "VRAM/percent": 100 * reserved / self._device_memory,
        }


def _seconds_per_step(before: tuple[int, float], now: tuple[int, float]) -> float:
    return (now[1] - before[1]) / max(now[0] - before[0], 1)
