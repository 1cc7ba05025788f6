"""Source files of kernels: the signatures they declare, and launches with checked arguments."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldwatch.recon.render.gpu import launcher
from fieldwatch.recon.render.gpu.compilation import SOURCES, KernelsUnavailable
from fieldwatch.recon.render.gpu.signatures import MOST_LISTED, KernelParameter, KernelSignature, signatures

_NUMBERS: dict[str, Any] = {
    "int": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_DTYPES = {
    "int": torch.int32,
    "int64_t": torch.int64,
    "float": torch.float32,
    "double": torch.float64,
    "uint8_t": torch.uint8,
}
KernelArgument = Tensor | float | Sequence[Tensor | float | None] | None
"""Argument of a kernel."""
_BYTES = {torch.uint8, torch.bool}  # torch stores a bool in a byte


@dataclass(frozen=True)
class KernelFile:
    """A source file of kernels; `kernel.h` describes the language.

    Args:
        name: file name, such as ``splats.cu``.
        folder: its folder.
        defines: macros and their values, which the source is compiled with.
    """

    name: str
    folder: Path = SOURCES
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def path(self) -> Path:
        """Path of the source."""
        return self.folder / self.name

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the compiler that set the macros."""
        return tuple(f"-D{name}={value}" for name, value in self.defines)

    @functools.cached_property
    def kernels(self) -> dict[str, KernelSignature]:
        """Kernels of the file, by name."""
        return signatures(self.path.read_text())

    def launch(self, name: str, blocks: int, *arguments: KernelArgument) -> None:
        """Launch a kernel on the current stream, without waiting for it; 0 blocks launch nothing.

        Args:
            name: name of the kernel.
            blocks: number of blocks.
            arguments: contiguous tensors on one GPU, numbers, None for missing tensors, and sequences of them for
                lists, in the order of the source.

        Raises:
            TypeError: the number of arguments is wrong, or a tensor has another type than the kernel declares.
            ValueError: a tensor is not contiguous, not on a GPU, or not on the same GPU as the others, or a list is too
                long.
            KernelsUnavailable: the kernels cannot be compiled or loaded.
        """
        kernel = self.kernels[name]
        if len(arguments) != len(kernel.parameters):
            raise TypeError(f"{name} takes {len(kernel.parameters)} arguments, got {len(arguments)}")
        pairs = list(zip(kernel.parameters, arguments, strict=True))
        values = [_value(name, parameter, argument) for parameter, argument in pairs]
        parts = (part for each in arguments for part in (each if isinstance(each, Sequence) else (each,)))
        devices = {part.device for part in parts if isinstance(part, Tensor)}
        if len(devices) != 1:
            raise ValueError(f"{name} needs tensors on one GPU, got {sorted(str(device) for device in devices)}")
        if blocks > 0:
            launcher.LAUNCHER.launch(self.path, self.options, kernel, blocks, values, devices.pop())


def kernels_problem(file: "KernelFile", trial: Callable[[], str | None]) -> str | None:
    """Return why the kernels of a file cannot be used on the current GPU; None if they can.

    The first call per process and GPU compiles the kernels and makes a trial.

    Args:
        file: the kernels.
        trial: compares results of the kernels on a small input with torch's operations; returns the difference in
            words, or None.
    """
    key = (file.name, torch.cuda.current_device())
    verdicts = launcher.LAUNCHER.verdicts
    if key not in verdicts:
        try:
            verdicts[key] = trial()
        # torch raises errors of a kernel (an invalid address) at a later operation.
        except (KernelsUnavailable, torch.AcceleratorError) as error:
            verdicts[key] = str(error).strip().splitlines()[0]
    return verdicts[key]


def _value(kernel: str, parameter: KernelParameter, argument: KernelArgument) -> Any:
    """Return an argument as a ctypes value."""
    if parameter.listed:
        if not isinstance(argument, Sequence) or len(argument) > MOST_LISTED:
            raise ValueError(f"{kernel}: {parameter.name} is a list of up to {MOST_LISTED} arguments")
        kind = ctypes.c_void_p if parameter.pointer else _NUMBERS[parameter.kind]
        return (kind * MOST_LISTED)(*(_single(kernel, parameter, part) for part in argument))
    if isinstance(argument, Sequence):
        raise TypeError(f"{kernel}: {parameter.name} is no list, got {type(argument).__name__}")
    return _single(kernel, parameter, argument)


def _single(kernel: str, parameter: KernelParameter, argument: Tensor | float | None) -> Any:
    if not parameter.pointer:
        if isinstance(argument, Tensor) or argument is None:
            raise TypeError(f"{kernel}: {parameter.name} is a number ({parameter.kind}), got {type(argument).__name__}")
        return _NUMBERS[parameter.kind](argument)
    if argument is None:
        return ctypes.c_void_p()
    if not isinstance(argument, Tensor):
        raise TypeError(f"{kernel}: {parameter.name} is a tensor of {parameter.kind}, got {type(argument).__name__}")
    wanted = _DTYPES[parameter.kind]
    if argument.dtype != wanted and not {argument.dtype, wanted} <= _BYTES:
        raise TypeError(f"{kernel}: {parameter.name} is a tensor of {wanted}, got {argument.dtype}")
    if argument.device.type != "cuda" or not argument.is_contiguous():
        raise ValueError(
            f"{kernel}: {parameter.name} must be a contiguous tensor on a GPU, got {tuple(argument.shape)} with "
            f"strides {argument.stride()} on {argument.device}"
        )
    return ctypes.c_void_p(launcher.LAUNCHER.address(argument))
