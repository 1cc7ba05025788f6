"""The launcher of kernels, and whether their results can be trusted on this machine."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fieldwatch.recon.render.gpu.compilation import KernelsUnavailable, cubin
from fieldwatch.recon.render.gpu.driver import Driver

if TYPE_CHECKING:
    from fieldwatch.recon.render.gpu.kernels import Kernel, KernelFile

Verdicts = dict[tuple[str, int], str | None]


class Launcher(Protocol):
    """Runs kernels.

    Attributes:
        verdicts: what `kernels_problem` found, per file and device.
    """

    verdicts: Verdicts

    def launch(
        self, file: "KernelFile", kernel: "Kernel", blocks: int, values: Sequence[Any], device: torch.device
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments."""
        ...


class CudaLauncher:
    """Compiles kernels for the GPU with NVRTC at first use, and launches them with the CUDA driver."""

    def __init__(self) -> None:
        self.verdicts: Verdicts = {}
        self._driver: Driver | None = None
        self._functions: dict[tuple[str, str, int], int] = {}

    def launch(
        self, file: "KernelFile", kernel: "Kernel", blocks: int, values: Sequence[Any], device: torch.device
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments.

        Raises:
            KernelsUnavailable: the kernels cannot be compiled, loaded or launched.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        with torch.cuda.device(index):
            driver = self._driver = self._driver or Driver()
            function = self._functions.get((file.name, kernel.name, index))
            if function is None:
                self._load(driver, file, index)
                function = self._functions[file.name, kernel.name, index]
            driver.launch(function, blocks, kernel.threads, values, torch.cuda.current_stream(index).cuda_stream)

    def _load(self, driver: Driver, file: "KernelFile", index: int) -> None:
        major, minor = torch.cuda.get_device_capability(index)
        image = cubin(file.path, f"sm_{major}{minor}", announce=_announce)
        for name, function in driver.functions(image, list(file.kernels)).items():
            self._functions[file.name, name, index] = function


def _announce(text: str) -> None:
    """Print a line for a user who waits: a run's own output has not begun."""
    sys.stderr.write(f"fieldwatch: {text}\n")


LAUNCHER: Launcher = CudaLauncher()
"""Launcher of this process."""


def kernels_problem(file: "KernelFile", trial: Callable[[], str | None]) -> str | None:
    """Return why the kernels of a file cannot be used on the current GPU; None if they can.

    The first call per process and GPU compiles the kernels and makes a trial.

    Args:
        file: the kernels.
        trial: compares results of the kernels on a small input with torch's operations; returns the difference in
            words, or None.
    """
    key = (file.name, torch.cuda.current_device())
    verdicts = LAUNCHER.verdicts
    if key not in verdicts:
        try:
            verdicts[key] = trial()
        # torch raises errors of a kernel (an invalid address) at a later operation.
        except (KernelsUnavailable, torch.AcceleratorError) as error:
            verdicts[key] = str(error).strip().splitlines()[0]
    return verdicts[key]
