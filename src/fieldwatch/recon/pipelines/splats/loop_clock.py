"""How fast the loop runs, how long it will take, and what process and machine use meanwhile."""

import time
from collections import deque

import psutil
import torch

GIB = 2**30
LOOKS = 32
"""Looks at the clock whose mean speed the remaining time is reckoned with."""
MACHINE_SECONDS = 0.5
"""Looks that follow each other faster repeat what the machine said last: asking it costs more than all the rest, and
how busy processors were says little about less time."""


class LoopClock:
    """How fast the loop runs, how long it will take, and what the process and the machine use.

    Args:
        total: number of the step after the last one.
        device: where training happens.
    """

    def __init__(self, total: int, device: torch.device) -> None:
        self._total = total
        self._device = device
        self._looks: deque[tuple[int, float]] = deque(maxlen=LOOKS)
        self._room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
        self._machine: dict[str, float] = {}
        self._asked = time.monotonic()
        psutil.cpu_percent()

    def metrics(self, step: int, seconds: float) -> dict[str, float]:
        """Values of a step, on the host: no device is waited for, nothing blocks. For every tenth step or so.

        Args:
            step: 0-based, the one that is ending; higher than at the last look.
            seconds: training time so far (`run.seconds()`).

        Returns:
            ``Time/...``, ``Performance/...``, ``VRAM/...`` and ``System/...``; speeds from the second look on.
        """
        values = {"Time/elapsed_minutes": seconds / 60} | self._speeds(step, seconds) | self._memory()
        return values | self._use()

    def _use(self) -> dict[str, float]:
        now = time.monotonic()
        if not self._machine or now - self._asked > MACHINE_SECONDS:
            memory = psutil.virtual_memory()
            self._machine = {"System/RAM_percent": memory.percent, "System/CPU_percent": psutil.cpu_percent()}
            self._asked = now
        return self._machine

    def _speeds(self, step: int, seconds: float) -> dict[str, float]:
        self._looks.append((step, seconds))
        if len(self._looks) < 2:
            return {}
        own = _pace(self._looks[-2], self._looks[-1])
        mean = _pace(self._looks[0], self._looks[-1])
        if not own > 0:
            return {}
        return {
            "Time/minutes_per_iter": own / 60,
            "Performance/iterations_per_sec": 1 / own,
            "Performance/eta_minutes": (self._total - step - 1) * mean / 60,
        }

    def _memory(self) -> dict[str, float]:
        if self._device.type != "cuda":
            return {}
        reserved = torch.cuda.memory_reserved(self._device)
        return {
            "VRAM/allocated_GB": torch.cuda.memory_allocated(self._device) / GIB,
            "VRAM/reserved_GB": reserved / GIB,
            "VRAM/percent": 100 * reserved / self._room,
        }


def _pace(before: tuple[int, float], now: tuple[int, float]) -> float:
    """Seconds per step between two looks."""
    return (now[1] - before[1]) / max(now[0] - before[0], 1)
