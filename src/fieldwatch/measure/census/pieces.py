"""Determine the storages of a tensor, without copies and without synchronization."""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Storage: TypeAlias = torch.UntypedStorage

_PLAIN = frozenset({Tensor, nn.Parameter})
_COMPRESSED_ROWS = ("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS = ("ccol_indices", "row_indices", "values")
_PARTS_BY_LAYOUT: dict[Any, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}


def pieces_of(tensor: Tensor) -> list[tuple[Tensor, Storage]]:
    """Return the strided tensors that a tensor consists of, each with its storage.

    That is the tensor itself, or the parts of a sparse tensor or of a wrapper subclass (nested, distributed,
    quantized). The list is empty if no memory is visible: uninitialized (lazy) or opaque tensors (mkldnn), and wrappers
    that hide their parts.
    """
    # Fast path for almost all tensors.
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        return [(tensor, tensor.untyped_storage())]
    # Bypass __torch_function__ of subclasses: only their memory matters here.
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch's only name for it
        return _uncommon(tensor)


def address_of(storage: Storage) -> int:
    """Return the start address of a storage; 0 if it has no memory (empty, meta, fake, hidden in a wrapper)."""
    if storage.device.type == "meta":
        return 0
    try:
        return storage.data_ptr()
    except RuntimeError:  # a wrapper subclass, whose own storage never existed
        return 0


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape as plain integers; empty for a nested tensor, which has no shape."""
    try:
        return tuple(tensor.shape)
    except RuntimeError:
        return ()


def _uncommon(tensor: Tensor) -> list[tuple[Tensor, Storage]]:
    if is_lazy(tensor):
        return []
    parts = _PARTS_BY_LAYOUT.get(tensor.layout, ())
    # The protocol by which wrapper subclasses expose their inner tensors.
    if hasattr(type(tensor), "__tensor_flatten__"):
        names: Sequence[str] = cast("Any", tensor).__tensor_flatten__()[0]
        return [piece for name in names for piece in pieces_of(getattr(tensor, name))]
    if parts:
        plain = tensor.detach()
        return [piece for part in parts for piece in pieces_of(getattr(plain, part)())]
    try:
        return [(tensor, tensor.untyped_storage())]
    except RuntimeError:
        return []
