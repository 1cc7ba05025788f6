"""Access to NVML, NVIDIA's management library, one value at a time; it never creates a CUDA context."""

from typing import Any, Final, final

import pynvml  # pyright: ignore[reportMissingTypeStubs]  it has none

FAILURES: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)
"""Errors that any call may raise: not supported, no permission, GPU lost, driver older than the call."""

SM_CLOCK: Final[int] = pynvml.NVML_CLOCK_SM
MEMORY_CLOCK: Final[int] = pynvml.NVML_CLOCK_MEM
CORE_TEMPERATURE: Final[int] = pynvml.NVML_TEMPERATURE_GPU
MEMORY_WITH_RESERVED: Final[int] = pynvml.nvmlMemory_v2
UNCORRECTED: Final[tuple[int, int]] = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC


class NvmlQuery:
    """Queries single values; a value that is not available is None, and its reason is recorded.

    Attributes:
        missing: NVML's reason for each value that is not available, by name.
    """

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def __call__(self, value: str, call: str, *arguments: Any) -> Any:
        """Return the result of an NVML call, None if it fails.

        Args:
            value: name of the value in :attr:`missing`.
            call: name of the function in pynvml.
            arguments: arguments of the function, the device's handle first.
        """
        # Looked up by name, because calls differ between versions of nvidia-ml-py.
        function = getattr(pynvml, call, None)
        if function is None:
            self.missing.setdefault(value, f"the installed nvidia-ml-py has no {call}")
            return None
        try:
            answer = function(*arguments)
        except FAILURES as error:
            # Keep the first reason, because calls of older drivers are only fallbacks.
            self.missing.setdefault(value, str(error))
            return None
        # A fallback succeeded.
        self.missing.pop(value, None)
        return answer


@final
class Nvml:
    """The NVML library, open until :meth:`close`. Without a driver, it reports no GPUs.

    Attributes:
        absent: reason why NVML is not available; empty if it is.
        driver: version of the driver, or None.
        cuda: newest CUDA version that the driver supports (``13.0``), or None.
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
        # Encoded as 1000 * major + 10 * minor.
        self.cuda = None if version is None else f"{version // 1000}.{version % 1000 // 10}"

    def count(self) -> int:
        """Return the number of GPUs; 0 without a driver."""
        return 0 if self.absent else NvmlQuery()("count", "nvmlDeviceGetCount") or 0

    def handle(self, index: int, query: NvmlQuery) -> Any:
        """Return the handle of a GPU; None, with the reason in ``query.missing["gpu"]``, if it cannot be reached."""
        # A handle remains valid until shutdown, so it is queried only once.
        if index not in self._handles:
            handle = query("gpu", "nvmlDeviceGetHandleByIndex", index)
            if handle is None:
                return None
            self._handles[index] = handle
        return self._handles[index]

    def close(self) -> None:
        """Shut NVML down; may be called repeatedly."""
        if not self.absent:
            NvmlQuery()("close", "nvmlShutdown")
            self.absent = "closed"
            self._handles.clear()
