"""A fake of pynvml with recorded responses; nothing else is faked in these tests."""

from types import SimpleNamespace
from typing import Any

import pynvml

GB = 2**30
NONE = 0xFFFFFFFF


def failure(name: str) -> pynvml.NVMLError:
    """The error that NVML gives under this name, e.g. ``NOT_SUPPORTED``."""
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def process(pid: int, memory: int | None, instance: int = NONE) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory, gpuInstanceId=instance, computeInstanceId=instance)


def card(**answers: Any) -> dict[str, Any]:
    """Responses of an idle RTX 4090 (driver 580), with changes; responses that are errors are raised."""
    usual = {
        "Name": "NVIDIA GeForce RTX 4090",
        "UUID": "GPU-2c1a9f60-6f3e-1f0a-8c2d-000000000000",
        "MemoryInfo": SimpleNamespace(total=24 * GB, used=6 * GB, free=17 * GB, reserved=GB),
        "UtilizationRates": SimpleNamespace(gpu=98, memory=61),
        "PowerUsage": 412_345,
        "EnforcedPowerLimit": 450_000,
        "Temperature": 71,
        "ClockInfo": 2520,
        "CurrentClocksEventReasons": 0x4,
        "TotalEccErrors": failure("NOT_SUPPORTED"),
        "MigMode": failure("NOT_SUPPORTED"),
        "ComputeRunningProcesses": [],
        "GraphicsRunningProcesses": [],
    }
    assert answers.keys() <= usual.keys() | {
        "CurrentClocksThrottleReasons", "TemperatureV", "MaxMigDeviceCount", "MigDeviceHandleByIndex", "GpuInstanceId",
        "ComputeInstanceId", "Handle",
    }  # fmt: skip
    return usual | answers


class FakeNvml:
    """Replacement for the module pynvml.

    Args:
        cards: the answers of each GPU; a change is seen by the next call.
        driver: its version, or the error of nvmlInit.
    """

    def __init__(self, *cards: dict[str, Any], driver: str | Exception = "580.95.05") -> None:
        self.cards = list(cards)
        self.driver = driver
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        known = getattr(pynvml, name)  # what the real library does not have, nobody may call

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return self._answer(name, arguments)

        return call if callable(known) else known

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        answers = {
            "nvmlInit": lambda: self.driver,
            "nvmlShutdown": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: self.driver,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetCount": lambda: len(self.cards),
        }
        if name in answers:
            return told(answers[name]())
        if name == "nvmlDeviceGetHandleByIndex":
            return told(self.cards[arguments[0]].get("Handle", self.cards[arguments[0]]))
        answer = arguments[0].get(name.removeprefix("nvmlDeviceGet"), failure("NOT_SUPPORTED"))
        return told(answer(*arguments[1:]) if callable(answer) else answer)


def told(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
