"""The launcher of kernels: CUDA's driver, or the emulation that tests put in its place."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

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

    def address(self, tensor: Tensor) -> int:
        """Return the address of a tensor's first element."""
        ...

    def launch(  # noqa: PLR0913, PLR0917  what a driver needs for a launch
        self,
        source: Path,
        options: tuple[str, ...],
        kernel: KernelSignature,
        blocks: int,
        values: Sequence[Any],
        device: torch.device,
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments."""
        ...


class CudaLauncher:
    """Compiles kernels for the GPU with NVRTC at first use, and launches them with the CUDA driver."""

    def __init__(self) -> None:
        self.verdicts: Verdicts = {}
        self._driver: CudaDriver | None = None
        self._modules: dict[tuple[Path, tuple[str, ...], int], int] = {}
        self._functions: dict[tuple[Path, tuple[str, ...], str, int], int] = {}

    def address(self, tensor: Tensor) -> int:
        """Return the address of a tensor's first element."""
        return tensor.data_ptr()

    def launch(  # noqa: PLR0913, PLR0917  what a driver needs for a launch
        self,
        source: Path,
        options: tuple[str, ...],
        kernel: KernelSignature,
        blocks: int,
        values: Sequence[Any],
        device: torch.device,
    ) -> None:
        """Start a kernel on the current stream of a device, with ctypes values as arguments.

        Raises:
            KernelsUnavailable: the kernels cannot be compiled, loaded or launched.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        with torch.cuda.device(index):
            driver = self._driver = self._driver or CudaDriver()
            key = (source, options, kernel.name, index)
            function = self._functions.get(key)
            if function is None:
                module = self._module(driver, source, options, index)
                function = self._functions[key] = driver.function(module, kernel.name)
            driver.launch(function, blocks, kernel.threads, values, torch.cuda.current_stream(index).cuda_stream)

    def _module(self, driver: CudaDriver, source: Path, options: tuple[str, ...], index: int) -> int:
        key = (source, options, index)
        if key not in self._modules:
            major, minor = torch.cuda.get_device_capability(index)
            self._modules[key] = driver.module(cubin(source, f"sm_{major}{minor}", *options, announce=_announce))
        return self._modules[key]


def _announce(text: str) -> None:
    """Print a line for a user who waits: a run's own output has not begun."""
    sys.stderr.write(f"fieldwatch: {text}\n")


LAUNCHER: Launcher = CudaLauncher()
"""Launcher of this process."""
