"""The loaded kernel library: declared signatures, and calls with tensor addresses."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch  # noqa: F401  imported before the library is loaded: both then share torch's OpenMP runtime
from torch import Tensor

from fieldwatch.recon.render.native.build import NativeUnavailable, built, is_carried, is_parallel

_P = ctypes.c_void_p
_L = ctypes.c_int64
_I = ctypes.c_int32
_F = ctypes.c_float
_D = ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    # Types of the result and the arguments, in the order of the C declarations.
    "fw_project": (_L, [_P, _L, *[_P] * 4, _I, *[_P] * 8]),
    "fw_project_backward": (None, [_P, _L, _L, *[_P] * 12, _I, *[_P] * 4]),
    "fw_harmonics": (None, [_L, *[_P] * 5, _L, _I, _I, _P]),
    "fw_harmonics_backward": (None, [_L, _L, *[_P] * 4, _L, _I, _P, _P, _I, *[_P] * 3]),
    "fw_rank": (_L, [_L, *[_P] * 4, _I, _I, _I, *[_P] * 4]),
    "fw_fill": (None, [_L, _P, _I, _I, _I, *[_P] * 3]),
    "fw_blend": (None, [_L, _L, _L, _I, _I, *[_P] * 4, _I, *[_P] * 4]),
    "fw_blend_backward": (None, [_L, _L, _L, _L, _I, _I, _P, _L, *[_P] * 7, _I, *[_P] * 6]),
    "fw_similarity_scratch": (_L, [_L, _L, _L]),
    "fw_similarity": (None, [_L, _L, _L, _P, _P, _I, *[_P] * 4]),
    "fw_depth_normals": (None, [_L, _L, *[_D] * 5, *[_P] * 4, _I, *[_P] * 7]),
    "fw_cast_triangles": (None, [_L, _P, _L, *[_P] * 3, _L, _L, _I, *[_P] * 6]),
    "fw_adam": (None, [_L, _P, _L, _P, *[_F] * 6, _I, *[_P] * 3]),
    "fw_encode": (_L, [_L, _P, _L, _L, *[_P] * 3, _I, _P, _P]),
    "fw_encode_backward": (None, [_L, _P, _L, _L, *[_P] * 3, _I, *[_P] * 4]),
    "fw_section_alpha": (None, [_L, _P, _P, _D, _I, _P]),
    "fw_section_alpha_backward": (_D, [_L, _P, _P, _D, _P, _I, *[_P] * 3]),
    "fw_composite": (_L, [_L, _P, _L, *[_P] * 3, _L, _P, _I, *[_P] * 4]),
    "fw_composite_backward": (None, [_L, _L, *[_P] * 4, _L, _P, _I, *[_P] * 5]),
    "fw_composite_sections": (_L, [_L, _P, _L, _P, _L, *[_P] * 3, _D, _P, _L, _P, _I, *[_P] * 5]),
    "fw_composite_sections_backward": (_D, [_L, _L, *[_P] * 3, _D, _P, _P, _L, _P, _I, *[_P] * 5]),
    "fw_march": (None, [_L, *[_P] * 5, _F, _L, _I, *[_P] * 3, _I, *[_P] * 3]),
    "fw_march_samples": (None, [_L, _P, _F, *[_P] * 4, _I, *[_P] * 3]),
    "fw_rim": (None, [_L, _P, _I, *[_P] * 5]),
    "fw_search_memory": (_L, [_L, _L, _I]),
    "fw_search": (
        None,
        [_L, _P, _P, _P, _L, *[_P] * 3, _L, _P, _D, _L, _L, *[_P] * 3, _L, *[_P] * 4, _F, _I, *[_P] * 6],
    ),
    "fw_search_sections": (None, [_L, *[_P] * 3, _L, *[_P] * 7]),
    "fw_sdf_memory": (_L, [_L, _L, _L, _I, _I, _I]),
    "fw_sdf_scratch": (_L, [_L, _L, _L]),
    "fw_sdf": (_L, [_L, _P, _L, _L, *[_P] * 3, _L, *[_P] * 4, _F, _I, _I, *[_P] * 3]),
    "fw_sdf_backward": (None, [_L, _L, _L, *[_P] * 3, _L, *[_P] * 4, _F, _I, _I, *[_P] * 10]),
}


@functools.cache
def _library() -> ctypes.CDLL:
    path = built()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        remedy = "install a C compiler" if is_carried(path) else "delete the file to rebuild it"
        raise NativeUnavailable(f"cannot load {path}: {error}; {remedy}") from error
    # Without declared types, ctypes passes integers as 32 bits and cannot pass floats.
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@functools.cache
def native_available() -> tuple[bool, str]:
    """Return whether the native kernels are available, else the reason. The first call builds them."""
    try:
        _library()
    except NativeUnavailable as reason:
        return False, str(reason)
    return True, ""


def native_note() -> str | None:
    """Return why a CPU trains more slowly than it could: without the native kernels, or with one thread; else None."""
    available, reason = native_available()
    if not available:
        return f"the native kernels are not used ({reason}); plain torch takes 20 to 60 times as long"
    # The loaded one: asked again, a compiler that fails would be tried again.
    library = Path(_library()._name)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the path given to CDLL
    if is_parallel(library):
        return None
    if is_carried(library):
        return (
            "the native kernels use one thread: no C compiler built them here, and those of the installation have no "
            "OpenMP; install gcc or clang, or set $CC"
        )
    return (
        "the native kernels use one thread, because the C compiler has no OpenMP: set $CC to one that has it, such as "
        f"gcc, and delete {library}"
    )


def call(name: str, *arguments: Any) -> Any:
    """Call a kernel. Tensors are passed by `pointer`, numbers and None (a null pointer) unchanged.

    Raises:
        NativeUnavailable: the kernels could not be built or loaded.
    """
    return getattr(_library(), name)(*[pointer(a) if isinstance(a, Tensor) else a for a in arguments])


def pointer(tensor: Tensor) -> int:
    """Return the address of the first element of a tensor.

    Raises:
        ValueError: the tensor is not on the CPU or not contiguous, so a kernel would read wrong memory.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"a native kernel needs a contiguous tensor on the CPU, got {tuple(tensor.shape)} with strides "
            f"{tensor.stride()} on {tensor.device}: call .contiguous() first"
        )
    return tensor.data_ptr()
