"""Entry of a census: one storage and its owner."""

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["parameters", "gradients", "optimizer", "buffers", "data", "saved"]
"""Purpose of a storage. The order is that of precedence: a storage with two owners belongs to the earlier kind."""

KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "buffers", "data")
"""Kinds of owned storages. Storages saved by autograd for backward are accounted for separately."""


class CensusEntry(NamedTuple):
    """One storage, counted once regardless of the number of tensors that use it.

    Attributes:
        kind: purpose of the storage.
        component: watched group or registered data that the storage belongs to; ``other`` for unwatched parameters of
            an optimizer, ``stale`` for optimizer state of replaced parameters; for saved activations, the span that
            saved them.
        name: name of the tensor, such as ``means.exp_avg``.
        nbytes: size of the storage in bytes; less if another owner claims a part of the same memory.
        shape: shape of the first tensor found on this storage.
        dtype: dtype of that tensor, such as ``float32``.
        views: number of the owners' tensors on this storage, including the first.
        address: start address.
    """

    kind: Kind
    component: str
    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    views: int
    address: int
