"""Tensors and numpy arrays as a dtype's name, a shape and raw little-endian bytes."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldwatch.checkpoint.incident import CheckpointError, DamageError

_SHARED = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_TORCH_ONLY = (
    *("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*_SHARED, *_TORCH_ONLY) if hasattr(torch, name)
}
NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {name: np.dtype(name) for name in _SHARED}
_TORCH_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Array:
    """One stored array.

    Attributes:
        dtype: its name, the same in torch and numpy where both know it.
        shape: its sizes; empty for a single number.
        raw: ``[nbytes]`` uint8, contiguous, in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def tensor(self) -> Tensor:
        """View the bytes as a tensor on the CPU."""
        dtype = TORCH_DTYPES[self.dtype]
        if not self.raw.size:
            return torch.empty(self.shape, dtype=dtype)
        return torch.as_tensor(self.raw).view(dtype).reshape(self.shape)

    def ndarray(self) -> NDArray[np.generic]:
        """View the bytes as a numpy array.

        Raises:
            DamageError: numpy does not know the dtype.
        """
        if self.dtype not in NUMPY_DTYPES:
            raise DamageError(f"an array is said to be numpy's but has torch's dtype {self.dtype}")
        return self.raw.view(NUMPY_DTYPES[self.dtype]).reshape(self.shape)


def item_size(dtype: str) -> int:
    """Return the bytes of one element of a known dtype."""
    return TORCH_DTYPES[dtype].itemsize


def array_of(value: Tensor | NDArray[np.generic] | np.generic, path: str) -> Array:
    """Take the raw bytes of a tensor (copied to the host where it is elsewhere) or of a numpy array or scalar.

    Args:
        value: what to take; its memory is shared where possible.
        path: how to name it in an error.

    Raises:
        CheckpointError: its kind has no plain bytes (sparse, quantized, meta, object, text, a subclass...).
    """
    return _of_tensor(value, path) if isinstance(value, Tensor) else _of_numpy(np.asarray(value), path)


def _of_tensor(tensor: Tensor, path: str) -> Array:
    plain = tensor.detach()
    if type(plain) is not Tensor or plain.layout != torch.strided or plain.device.type == "meta":
        kind = f"{type(plain).__name__} with layout {plain.layout} on {plain.device}"
        raise CheckpointError(f"{path} is a {kind}: only plain dense tensors are stored; convert it in state_dict()")
    if plain.dtype not in _TORCH_NAMES:
        raise CheckpointError(f"{path} has dtype {plain.dtype}, which has no plain bytes: convert it first")
    host = plain.cpu().resolve_conj().resolve_neg().contiguous()
    return Array(dtype=_TORCH_NAMES[plain.dtype], shape=tuple(plain.shape), raw=_bytes_of(host))


def _bytes_of(host: Tensor) -> NDArray[np.uint8]:
    if not host.numel():
        return np.empty(0, np.uint8)
    flat = host.as_strided((host.numel(),), (1,))  # a lone element may have any stride, which view() refuses
    return flat.view(torch.uint8).numpy()


def _of_numpy(array: NDArray[np.generic], path: str) -> Array:
    name = array.dtype.newbyteorder("=").name
    if name not in NUMPY_DTYPES:
        raise CheckpointError(f"{path} is a numpy array of dtype {array.dtype}: stored are {', '.join(NUMPY_DTYPES)}")
    native = np.ascontiguousarray(array, NUMPY_DTYPES[name])
    raw = native.reshape(-1).view(np.uint8) if native.size else np.empty(0, np.uint8)
    return Array(dtype=name, shape=array.shape, raw=raw)


def expected_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes that an array of that dtype and shape takes."""
    return math.prod(shape) * item_size(dtype)
