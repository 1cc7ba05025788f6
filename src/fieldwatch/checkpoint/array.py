"""Tensors and numpy arrays as a dtype's name, a shape and raw little-endian bytes."""

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
        # `view` refuses to reinterpret an empty tensor whose shape has zeros.
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


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """An array that is to be stored, still where it lives.

    Attributes:
        dtype: its name, the same in torch and numpy where both know it.
        shape: its sizes.
        value: the tensor on any device, or the array.
    """

    dtype: str
    shape: tuple[int, ...]
    value: Tensor | NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        """The bytes it takes."""
        return expected_nbytes(self.dtype, self.shape)

    def array(self) -> Array:
        """Take its bytes; memory of the host is shared where possible."""
        value = self.value
        raw = _bytes_of(_dense(value).cpu()).numpy() if isinstance(value, Tensor) else _raw(value, self.dtype)
        return Array(dtype=self.dtype, shape=self.shape, raw=raw)

    def copied_to(self, target: UInt8[Tensor, "nbytes"]) -> Array:
        """Copy its bytes into ``[nbytes]`` uint8 on the host; from CUDA into pinned memory without waiting for it."""
        if isinstance(self.value, Tensor):
            target.copy_(_bytes_of(_dense(self.value)), non_blocking=self.value.is_cuda)
        else:
            target.numpy()[:] = _raw(self.value, self.dtype)
        return Array(dtype=self.dtype, shape=self.shape, raw=target.numpy())


def source_of(value: Tensor | NDArray[np.generic] | np.generic, path: str) -> ArraySource:
    """Look at a tensor, or a numpy array or scalar, and say what it is as stored; nothing is copied.

    Args:
        value: what to take.
        path: how to name it in an error.

    Raises:
        CheckpointError: its kind has no plain bytes (sparse, quantized, meta, object, text, a subclass...).
    """
    return _of_tensor(value, path) if isinstance(value, Tensor) else _of_numpy(np.asarray(value), path)


def _of_tensor(tensor: Tensor, path: str) -> ArraySource:
    plain = tensor.detach()
    if type(plain) is not Tensor or plain.layout != torch.strided or plain.device.type == "meta":
        kind = f"{type(plain).__name__} with layout {plain.layout} on {plain.device}"
        raise CheckpointError(f"{path} is a {kind}: only plain dense tensors are stored; convert it in state_dict()")
    if plain.dtype not in _TORCH_NAMES:
        raise CheckpointError(f"{path} has dtype {plain.dtype}, which has no plain bytes: convert it first")
    return ArraySource(dtype=_TORCH_NAMES[plain.dtype], shape=tuple(plain.shape), value=plain)


def _dense(tensor: Tensor) -> Tensor:
    # Conjugation and negation are lazy flags of a view: the bytes in memory are without them.
    return tensor.resolve_conj().resolve_neg().contiguous()


def _bytes_of(dense: Tensor) -> UInt8[Tensor, "nbytes"]:
    if not dense.numel():
        return torch.empty(0, dtype=torch.uint8, device=dense.device)
    flat = dense.as_strided((dense.numel(),), (1,))  # a lone element may have any stride, which view() refuses
    return flat.view(torch.uint8)


def _of_numpy(array: NDArray[np.generic], path: str) -> ArraySource:
    # Big-endian arrays have the same name; `_raw` swaps their bytes.
    name = array.dtype.newbyteorder("=").name
    if name not in NUMPY_DTYPES:
        raise CheckpointError(f"{path} is a numpy array of dtype {array.dtype}: stored are {', '.join(NUMPY_DTYPES)}")
    return ArraySource(dtype=name, shape=array.shape, value=array)


def _raw(array: NDArray[np.generic], dtype: str) -> NDArray[np.uint8]:
    native = np.ascontiguousarray(array, NUMPY_DTYPES[dtype])
    return native.reshape(-1).view(np.uint8) if native.size else np.empty(0, np.uint8)


def expected_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes that an array of that dtype and shape takes."""
    return math.prod(shape) * item_size(dtype)
