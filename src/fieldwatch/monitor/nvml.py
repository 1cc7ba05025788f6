"""NVML, NVIDIA's management library: opened once, asked for one value at a time, never making a CUDA context."""

from typing import Any, Final, final

import pynvml  # pyright: ignore[reportMissingTypeStubs]  it has none

FAILURES: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
"""What any call may raise: not supported here, no permission, GPU lost, a driver older than the call."""

SM_CLOCK: Final[int] = pynvml.NVML_CLOCK_SM
MEMORY_CLOCK: Final[int] = pynvml.NVML_CLOCK_MEM
CORE_TEMPERATURE: Final[int] = pynvml.NVML_TEMPERATURE_GPU
MEMORY_WITH_RESERVED: Final[int] = pynvml.nvmlMemory_v2
UNCORRECTED: Final[tuple[int, int]] = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC


class NvmlQuery:
    """Asks for single values: one that cannot be had is None, and why is kept.

    Attributes:
        missing: the name of each value that could not be had, with NVML's reason.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def __call__(self, value: str, call: str, *arguments: Any) -> Any:
        """Return what the NVML call says, or None.

        Args:
            value: what is asked for, as :attr:`missing` names it.
            call: name of the function in pynvml.
            arguments: what it takes, the device's handle first.
        """
        function = getattr(pynvml, call, None)
        if function is None:
            self.missing.setdefault(value, f"the installed nvidia-ml-py has no {call}")
            return None
        try:
            answer = function(*arguments)
        except FAILURES as error:
            self.missing.setdefault(value, str(error))  # the first reason: an older call is only a second try
            return None
        self.missing.pop(value, None)  # an older call answered
        return answer


@final
class Nvml:
    """The library from opening to :meth:`close`; without a driver it is simply not there.

    Attributes:
        absent: why there is no NVML here; empty where there is.
        driver: version of the driver, or None.
        cuda: the newest CUDA version the driver can run (``13.0``), or None.
    """

    def __init__(self) -> None:
        self.absent = ""
        self.driver: str | None = None
        self.cuda: str | None = None
        self._handles: dict[int, Any] = {}
        try:
            pynvml.nvmlInit()
        except FAILURES as error:
            self.absent = str(error)
            return
        query = NvmlQuery()
        self.driver = query("driver", "nvmlSystemGetDriverVersion")
        version = query("cuda", "nvmlSystemGetCudaDriverVersion_v2")
        self.cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        """Return how many GPUs there are; 0 without a driver."""
        return 0 if self.absent else NvmlQuery()("count", "nvmlDeviceGetCount") or 0

    def handle(self, index: int, query: NvmlQuery) -> Any:
        """Return a GPU's handle, asked for once; None (and ``ask.missing["gpu"]``) where it cannot be reached."""
        if index not in self._handles:
            handle = query("gpu", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                return None
            self._handles[index] = handle
        return self._handles[index]

    def close(self) -> None:
        """Give the library back; more than once is fine."""
        if not self.absent:
            NvmlQuery()("close", "nvmlShutdown")
            self.absent = "closed"
            self._handles.clear()
