"""Training speed, remaining time, and resource use of process and machine."""

import time
from collections import deque

import psutil
import torch

GIB = 2**30
WINDOW = 32
"""Number of recent readings whose mean speed determines the remaining time."""
MACHINE_SECONDS = 0.5
"""Minimum time between queries of the machine, seconds. They cost more than all the rest, and processor utilization
over a shorter time is not meaningful; readings in between repeat the last values."""


class LoopClock:
    """Training speed, remaining time, and resource use of process and machine.

    Args:
        total: last step + 1.
        device: training device.
    """

    def __init__(self, total: int, device: torch.device) -> None:
        self._total = total
        self._device = device
        self._readings: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._device_memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        self._machine: dict[str, float] = {}
        self._machine_read_at = time.monotonic()
        psutil.cpu_percent()  # the first call only starts the interval that the next call reports

    def metrics(self, step: int, seconds: float) -> dict[str, float]:
        """Return the metrics of a step without synchronizing the device; meant for about every tenth step.

        Args:
            step: index of the finishing step, 0-based; greater than at the last call.
            seconds: training time so far (`run.seconds()`).

        Returns:
            ``Time/...``, ``Performance/...``, ``VRAM/...`` and ``System/...``; speeds from the second call on.
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
        # The speed is that of the last interval; the remaining time uses the mean over the window, which is steadier.
        latest = _seconds_per_step(self._readings[-2], self._readings[-1])
        mean = _seconds_per_step(self._readings[0], self._readings[-1])
        if not latest > 0:  # readings at the same time give no speed
            return {}
        return {
            "Time/minutes_per_iter": latest / 60,
            "Performance/iterations_per_sec": 1 / latest,
            "Performance/eta_minutes": (self._total - step - 1) * mean / 60,
        }

    def _device_use(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        # Of torch's allocator in this process; other processes on the device are not included.
        reserved = torch.cuda.memory_reserved(self._device)
        return {
            "VRAM/allocated_GB": torch.cuda.memory_allocated(self._device) / GIB,
            "VRAM/reserved_GB": reserved / GIB,
            "VRAM/percent": 100 * reserved / self._device_memory,
        }


def _seconds_per_step(before: tuple[int, float], now: tuple[int, float]) -> float:
    return (now[1] - before[1]) / max(now[0] - before[0], 1)
