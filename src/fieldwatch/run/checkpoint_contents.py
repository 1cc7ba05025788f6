"""`CheckpointContents`: which objects and tensors the checkpoints of a run contain."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fieldwatch.checkpoint import ResumableLoader, Shuffled, Stateful

_MAX_DEPTH = 3
_MAX_MEMBERS = 1024
"""Maximum number of members of a list that are searched for objects with state."""


class CheckpointContents:
    """Objects and tensors contained in the checkpoints of some items, as far as this can be determined.

    Objects are compared by identity, tensors by memory address. The attributes of an object with a custom
    ``state_dict`` are assumed to be part of it. Those of torch modules, optimizers and schedulers are not, since torch
    stores only their parameters, buffers and plain numbers.

    Args:
        items: items passed to ``run.track``.

    Attributes:
        schedulers: learning rate schedulers.
        orders: data orders of fieldwatch.
        has_custom_state: whether there is a stateful object of a class outside of torch, which may hold the position
            in the data.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.schedulers: list[LRScheduler] = []
        self.orders: list[Shuffled | ResumableLoader] = []
        self.has_custom_state = False
        # Keeps the objects alive, so that no id is reused.
        self._objects: dict[int, Any] = {}
        self._addresses: set[int] = set()
        for item in items.values():
            self._add(item, 0)

    def has_object(self, item: object) -> bool:
        """Return whether the checkpoints contain an object."""
        return id(item) in self._objects

    def has_tensor(self, tensor: Tensor) -> bool:
        """Return whether the checkpoints contain a tensor, or a view of the same memory."""
        # An empty tensor has no values that a resumed run could miss.
        return self.has_object(tensor) or not tensor.numel() or _address_of(tensor) in self._addresses

    def has_scheduler_of(self, optimizer: Optimizer) -> bool:
        """Return whether the checkpoints contain a scheduler of this optimizer."""
        return any(getattr(scheduler, "optimizer", None) is optimizer for scheduler in self.schedulers)

    def _add(self, item: Any, depth: int) -> None:
        # The first test ends cycles; the depth limits the search in objects that reference half of the program.
        if id(item) in self._objects or depth > _MAX_DEPTH:
            return
        self._objects[id(item)] = item
        if isinstance(item, Tensor):
            self._addresses.add(_address_of(item))
        elif isinstance(item, nn.Module):
            self._add_module(item, depth)
        elif isinstance(item, Mapping):
            self._add_members(cast("Mapping[Any, Any]", item).values(), depth)
        elif isinstance(item, list | tuple):
            self._add_members(cast("list[Any]", item)[:_MAX_MEMBERS], depth)
        elif isinstance(item, LRScheduler):
            self.schedulers.append(item)
            self._add_members(getattr(item, "_schedulers", ()), depth)  # a chained scheduler's state contains theirs
        elif isinstance(item, Stateful) and not _of_torch(item):
            self.has_custom_state = True
            if isinstance(item, Shuffled | ResumableLoader):
                self.orders.append(item)
            self._add_members(getattr(item, "__dict__", {}).values(), depth)

    def _add_module(self, module: nn.Module, depth: int) -> None:
        for submodule in module.modules():
            self._objects[id(submodule)] = submodule
        for tensor in (*module.parameters(), *module.buffers()):
            self._objects[id(tensor)] = tensor
            self._addresses.add(_address_of(tensor))
        # A custom state_dict may contain any attribute; torch's contains only parameters, buffers and submodules.
        if stores_more(module):
            self._add_members(vars(module).values(), depth)

    def _add_members(self, members: Iterable[Any], depth: int) -> None:
        for item in members:
            if isinstance(item, Tensor | Mapping | list | tuple | Stateful):
                self._add(item, depth + 1)


def stores_more(module: nn.Module) -> bool:
    """Return whether a module overrides its state, so that it may contain more than parameters and buffers."""
    kind = type(module)
    return kind.state_dict is not nn.Module.state_dict or kind.get_extra_state is not nn.Module.get_extra_state


def _of_torch(item: object) -> bool:
    return type(item).__module__.partition(".")[0] == "torch"


def _address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; a unique number if the tensor has no memory."""
    # Sparse and meta tensors have no storage with an address.
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    # Storages without memory all have the address 0.
    return tensor.untyped_storage().data_ptr() or id(tensor)
