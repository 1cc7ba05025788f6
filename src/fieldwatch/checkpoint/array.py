"""Tensors and numpy arrays, represented by a dtype name, a shape and raw little-endian bytes."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
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
# Older versions of torch lack some of the dtypes.
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in (*_SHARED, *_TORCH_ONLY) if hasattr(torch, name)
}
NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {name: np.dtype(name) for name in _SHARED}
_TORCH_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Array:
    """One stored array.

    Attributes:
        dtype: name of the dtype, the same in torch and numpy if both have it.
        shape: shape of the array; empty for a scalar.
        raw: ``[nbytes]`` uint8, contiguous, in C order.
    """

    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def tensor(self) -> Tensor:
        """Return a CPU tensor that shares the memory."""
        dtype = TORCH_DTYPES[self.dtype]
        # `view` refuses to reinterpret an empty tensor whose shape has zeros.
        if not self.raw.size:
            return torch.empty(self.shape, dtype=dtype)
        return torch.as_tensor(self.raw).view(dtype).reshape(self.shape)

    def ndarray(self) -> NDArray[np.generic]:
        """Return a numpy array that shares the memory.

        Raises:
            DamageError: if numpy does not have the dtype.
        """
        if self.dtype not in NUMPY_DTYPES:
            raise DamageError(f"an array is stored as a numpy array but has torch's dtype {self.dtype}")
        return self.raw.view(NUMPY_DTYPES[self.dtype]).reshape(self.shape)


def item_size(dtype: str) -> int:
    """Return the size of one element of a known dtype, in bytes."""
    return TORCH_DTYPES[dtype].itemsize


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """An array to be stored, before its bytes are taken.

    Attributes:
        dtype: name of the dtype, the same in torch and numpy if both have it.
        shape: shape of the array.
        value: tensor on any device, or numpy array.
    """

    dtype: str
    shape: tuple[int, ...]
    value: Tensor | NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return expected_nbytes(self.dtype, self.shape)

    def array(self) -> Array:
        """Return the array in host memory, shared with the source if possible."""
        value = self.value
        raw = _bytes_of(_dense(value).cpu()).numpy() if isinstance(value, Tensor) else _raw(value, self.dtype)
        return Array(dtype=self.dtype, shape=self.shape, raw=raw)

    def copied_to(self, target: UInt8[Tensor, "nbytes"]) -> Array:
        """Copy the bytes into host memory; the copy from CUDA into pinned memory is asynchronous."""
        if isinstance(self.value, Tensor):
            # Asynchronous only from CUDA, where an event marks the end of the copy.
            target.copy_(_bytes_of(_dense(self.value)), non_blocking=self.value.is_cuda)
        else:
            target.numpy()[:] = _raw(self.value, self.dtype)
        return Array(dtype=self.dtype, shape=self.shape, raw=target.numpy())


def source_of(value: Tensor | NDArray[np.generic] | np.generic, path: str) -> ArraySource:
    """Describe a tensor, or a numpy array or scalar, for storage; nothing is copied.

    Args:
        value: tensor, array or scalar.
        path: name of the value in error messages.

    Raises:
        CheckpointError: if the value has no plain bytes (sparse, quantized, meta, object, text, a subclass, ...).
    """
    return _of_tensor(value, path) if isinstance(value, Tensor) else _of_numpy(np.asarray(value), path)


def _of_tensor(tensor: Tensor, path: str) -> ArraySource:
    plain = tensor.detach()
    # Subclasses may store more than their elements, which would be lost.
    if type(plain) is not Tensor or plain.layout != torch.strided or plain.device.type == "meta":
        kind = f"{type(plain).__name__} with layout {plain.layout} on {plain.device}"
        raise CheckpointError(f"{path} is a {kind}: only plain dense tensors are stored; convert it in state_dict()")
    # Quantized dtypes need a scale and a zero point besides their bytes.
    if plain.dtype not in _TORCH_NAMES:
        raise CheckpointError(f"{path} has dtype {plain.dtype}, which has no plain bytes: convert it first")
    return ArraySource(dtype=_TORCH_NAMES[plain.dtype], shape=tuple(plain.shape), value=plain)


def _dense(tensor: Tensor) -> Tensor:
    # Conjugation and negation are lazy flags of a view: the bytes in memory do not include them.
    return tensor.resolve_conj().resolve_neg().contiguous()


def _bytes_of(dense: Tensor) -> UInt8[Tensor, "nbytes"]:
    if not dense.numel():
        return torch.empty(0, dtype=torch.uint8, device=dense.device)
    # A tensor with one element may have any stride, which view() refuses.
    flat = dense.as_strided((dense.numel(),), (1,))
    return flat.view(torch.uint8)


def _of_numpy(array: NDArray[np.generic], path: str) -> ArraySource:
    # Big-endian arrays have the same dtype name; `_raw` swaps their bytes.
    name = array.dtype.newbyteorder("=").name
    if name not in NUMPY_DTYPES:
        raise CheckpointError(
            f"{path} is a numpy array of dtype {array.dtype}: supported dtypes are {', '.join(NUMPY_DTYPES)}"
        )
    return ArraySource(dtype=name, shape=array.shape, value=array)


def _raw(array: NDArray[np.generic], dtype: str) -> NDArray[np.uint8]:
    native = np.ascontiguousarray(array, NUMPY_DTYPES[dtype])
    return native.reshape(-1).view(np.uint8) if native.size else np.empty(0, np.uint8)


def expected_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the size in bytes of an array with a dtype and shape."""
    return math.prod(shape) * item_size(dtype)
