"""One piece of memory and its owner."""

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["parameters", "gradients", "optimizer", "buffers", "data", "saved"]
"""What memory is there for. The order is the order of claims: storage with two owners belongs to the earlier kind."""

KINDS: tuple[Kind, ...] = ("parameters", "gradients", "optimizer", "buffers", "data")
"""The kinds of the owners; what autograd saves for backward is accounted for by itself."""


class CensusEntry(NamedTuple):
    """One storage, counted once, whoever looks at it.

    Attributes:
        kind: what it is there for.
        component: the watched group or the registered data it belongs to; ``other`` for what an optimizer steps and
            nobody watches, ``stale`` for what an optimizer keeps of parameters that were replaced; for saved
            activations the span in which they were saved.
        name: the tensor's own name, such as ``means.exp_avg``.
        nbytes: size of the storage; less where another owner holds a part of the same memory.
        shape: of the tensor that was found first.
        dtype: of that tensor, such as ``float32``.
        views: how many tensors of the owners look at this storage, the first included.
        address: where it begins.
    """

    kind: Kind
    component: str
    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    views: int
    address: int
