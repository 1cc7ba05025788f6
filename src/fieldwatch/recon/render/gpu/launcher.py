"""The launcher of kernels: CUDA's driver, or the emulation that tests put in its place."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from fieldwatch.recon.render.gpu.compilation import cubin
from fieldwatch.recon.render.gpu.driver import CudaDriver
from fieldwatch.recon.render.gpu.signatures import KernelSignature

Verdicts = dict[tuple[str, int], str | None]


class Launcher(Protocol):
    """Runs kernels.

    Attributes:
        verdicts: what `kernels_problem` found, per file and device.
    """

    verdicts: Verdicts

    def launch(
        self, source: Path, kernel: KernelSignature, blocks: int, values: Sequence[Any], device: torch.device
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments."""
        ...


class CudaLauncher:
    """Compiles kernels for the GPU with NVRTC at first use, and launches them with the CUDA driver."""

    def __init__(self) -> None:
        self.verdicts: Verdicts = {}
        self._driver: CudaDriver | None = None
        self._modules: dict[tuple[Path, int], int] = {}
        self._functions: dict[tuple[Path, str, int], int] = {}

    def launch(
        self, source: Path, kernel: KernelSignature, blocks: int, values: Sequence[Any], device: torch.device
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments.

        Raises:
            KernelsUnavailable: the kernels cannot be compiled, loaded or launched.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        with torch.cuda.device(index):
            driver = self._driver = self._driver or CudaDriver()
            function = self._functions.get((source, kernel.name, index))
            if function is None:
                function = self._functions[source, kernel.name, index] = self._loaded(driver, source, kernel, index)
            driver.launch(function, blocks, kernel.threads, values, torch.cuda.current_stream(index).cuda_stream)

    def _loaded(self, driver: CudaDriver, source: Path, kernel: KernelSignature, index: int) -> int:
        module = self._modules.get((source, index))
        if module is None:
            major, minor = torch.cuda.get_device_capability(index)
            image = cubin(source, f"sm_{major}{minor}", announce=_announce)
            module = self._modules[source, index] = driver.module(image)
        return driver.function(module, kernel.name)


def _announce(text: str) -> None:
    """Print a line for a user who waits: a run's own output has not begun."""
    sys.stderr.write(f"fieldwatch: {text}\n")


LAUNCHER: Launcher = CudaLauncher()
"""Launcher of this process."""
