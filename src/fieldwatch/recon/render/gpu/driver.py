"""The CUDA driver, through ctypes: it loads compiled kernels into torch's context and launches them."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from fieldwatch.recon.render.gpu.compilation import KernelsUnavailable

_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
_P = ctypes.c_void_p
_U = ctypes.c_uint
_SIGNATURES: dict[str, list[Any]] = {
    "cuModuleLoadData": [_P, ctypes.c_char_p],
    "cuModuleGetFunction": [_P, _P, ctypes.c_char_p],
    "cuLaunchKernel": [_P, *[_U] * 6, _U, _P, _P, _P],
    "cuGetErrorString": [ctypes.c_int, _P],
}


class CudaDriver:
    """The driver's functions; torch has made the current device's context current.

    Raises:
        KernelsUnavailable: the driver's library cannot be loaded.
    """

    def __init__(self) -> None:
        self._library = _loaded()
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments

    def module(self, image: bytes) -> int:
        """Load a cubin into the current context and return its handle.

        Raises:
            KernelsUnavailable: the driver refused the cubin.
        """
        handle = _P()
        self._call("cuModuleLoadData", ctypes.byref(handle), image)
        return handle.value or 0

    def function(self, module: int, name: str) -> int:
        """Return the handle of a kernel of a module.

        Raises:
            KernelsUnavailable: the module has no such kernel.
        """
        handle = _P()
        self._call("cuModuleGetFunction", ctypes.byref(handle), module, name.encode())
        return handle.value or 0

    def launch(self, function: int, blocks: int, threads: int, values: Sequence[Any], stream: int) -> None:
        """Launch a kernel on a stream.

        Raises:
            KernelsUnavailable: the driver refused the launch.
        """
        addresses = (_P * len(values))(*(ctypes.addressof(value) for value in values))
        self._call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, addresses, None)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise KernelsUnavailable(
                f"{name} of the CUDA driver failed: {(text.value or b'unknown error').decode()} ({code}); update the "
                "driver, or train with --device cpu"
            )


def _loaded() -> ctypes.CDLL:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise KernelsUnavailable(f"cannot load {_LIBRARIES[0]}: install the NVIDIA driver")
