"""Source files of kernels: the signatures they declare, and launches with checked arguments."""

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldwatch.recon.render.gpu import launcher
from fieldwatch.recon.render.gpu.compilation import SOURCES

_KERNEL = re.compile(r"^KERNEL\((\w+),\s*(\w+),\s*([^)]*)\)\s*\{", re.MULTILINE)
_CONSTANT = r"^#define {} (\d+)\b"
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
_BYTES = {torch.uint8, torch.bool}  # torch stores a bool in a byte


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: its name in the source.
        kind: its type without `const` and `*`.
        pointer: whether it is a tensor.
    """

    name: str
    kind: str
    pointer: bool


@dataclass(frozen=True)
class Kernel:
    """A kernel as its source declares it.

    Attributes:
        name: its name in the source.
        threads: threads per block.
        parameters: its parameters, in order.
    """

    name: str
    threads: int
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class KernelFile:
    """A source file of kernels; `kernel.h` describes the language.

    Args:
        name: file name, such as ``splats.cu``.
        folder: its folder.
    """

    name: str
    folder: Path = SOURCES

    @property
    def path(self) -> Path:
        """Path of the source."""
        return self.folder / self.name

    @functools.cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Kernels of the file, by name."""
        text = self.path.read_text()
        return {name: Kernel(name, _threads(text, at), _parameters(listed)) for name, at, listed in _found(text)}

    def launch(self, name: str, blocks: int, *arguments: Tensor | float | None) -> None:
        """Launch a kernel on the current stream, without waiting for it; 0 blocks launch nothing.

        Args:
            name: name of the kernel.
            blocks: number of blocks.
            arguments: contiguous tensors on one GPU, numbers, and None for missing tensors, in the order of the source.

        Raises:
            TypeError: the number of arguments is wrong, or a tensor has another type than the kernel declares.
            ValueError: a tensor is not contiguous, not on a GPU, or not on the same GPU as the others.
            KernelsUnavailable: the kernels cannot be compiled or loaded.
        """
        kernel = self.kernels[name]
        if len(arguments) != len(kernel.parameters):
            raise TypeError(f"{name} takes {len(kernel.parameters)} arguments, got {len(arguments)}")
        pairs = list(zip(kernel.parameters, arguments, strict=True))
        values = [_value(name, parameter, argument) for parameter, argument in pairs]
        devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
        if len(devices) != 1:
            raise ValueError(f"{name} needs tensors on one GPU, got {sorted(str(device) for device in devices)}")
        if blocks > 0:
            launcher.LAUNCHER.launch(self, kernel, blocks, values, devices.pop())


def _found(text: str) -> list[tuple[str, str, str]]:
    return [(match[1], match[2], match[3]) for match in _KERNEL.finditer(text)]


def _threads(text: str, given: str) -> int:
    if given.isdigit():
        return int(given)
    constant = re.search(_CONSTANT.format(given), text, re.MULTILINE)
    if constant is None:
        raise ValueError(f"the threads of a block are a number or a #define of the same file, got {given}")
    return int(constant[1])


def _parameters(listed: str) -> tuple[Parameter, ...]:
    return tuple(_parameter(part) for part in listed.split(","))


def _parameter(text: str) -> Parameter:
    words = text.replace("*", " * ").replace("__restrict__", " ").split()
    kind = next(word for word in words if word not in {"const", "*"})
    if kind not in _DTYPES or ("*" not in words and kind not in _NUMBERS):
        raise ValueError(f"a parameter is a number or a pointer to one of {', '.join(_DTYPES)}, got {text.strip()!r}")
    return Parameter(words[-1], kind, "*" in words)


def _value(kernel: str, parameter: Parameter, argument: Tensor | float | None) -> Any:
    """Return an argument as a ctypes value."""
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
    return ctypes.c_void_p(argument.data_ptr())
