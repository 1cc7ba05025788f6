"""What the items that a run keeps hold: objects by identity, tensors by their memory."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fieldwatch.checkpoint import ResumableLoader, Shuffled, Stateful

_MAX_DEPTH = 3
_MAX_MEMBERS = 1024
"""Members of a list beyond which they are values, not objects with a state."""


class CheckpointContents:
    """Everything that a checkpoint of some items holds, as far as can be seen.

    Attributes that an object with a ``state_dict`` of its own has are taken to be in it. Those of modules, optimizers
    and schedulers are not: torch stores parameters, buffers and plain numbers of them.

    Args:
        items: what was given to ``run.track``.

    Attributes:
        schedulers: of learning rates.
        orders: data orders of ours.
        has_custom_state: whether there is an object of another kind than torch's, which may be a place in the data.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.schedulers: list[LRScheduler] = []
        self.orders: list[Shuffled | ResumableLoader] = []
        self.has_custom_state = False
        self._objects: dict[int, Any] = {}  # alive, so that no address is used twice
        self._addresses: set[int] = set()
        for item in items.values():
            self._add(item, 0)

    def has_object(self, item: object) -> bool:
        """Whether an object is held."""
        return id(item) in self._objects

    def has_tensor(self, tensor: Tensor) -> bool:
        """Whether a tensor is held, be it as a view of the same memory."""
        # An empty tensor has nothing that a resumed run could miss.
        return self.has_object(tensor) or not tensor.numel() or _address_of(tensor) in self._addresses

    def has_scheduler_of(self, optimizer: Optimizer) -> bool:
        """Whether a scheduler of this optimizer is held."""
        return any(getattr(scheduler, "optimizer", None) is optimizer for scheduler in self.schedulers)

    def _add(self, item: Any, depth: int) -> None:
        # The first test ends cycles; the depth bounds the search in objects that hold half the program.
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
            self._add_members(getattr(item, "_schedulers", ()), depth)  # of a chain; its own state holds theirs
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
        # Its own state_dict may hold any of its attributes; torch's holds parameters, buffers and submodules only.
        if stores_more(module):
            self._add_members(vars(module).values(), depth)

    def _add_members(self, members: Iterable[Any], depth: int) -> None:
        for item in members:
            if isinstance(item, Tensor | Mapping | list | tuple | Stateful):
                self._add(item, depth + 1)


def stores_more(module: nn.Module) -> bool:
    """Whether a module says itself what its state is, beyond parameters and buffers."""
    kind = type(module)
    return kind.state_dict is not nn.Module.state_dict or kind.get_extra_state is not nn.Module.get_extra_state


def _of_torch(item: object) -> bool:
    return type(item).__module__.partition(".")[0] == "torch"


def _address_of(tensor: Tensor) -> int:
    """Address of a tensor's memory; a number that nothing else has where it has none."""
    # These have no storage to ask for an address.
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    # Storages without memory all have the address 0.
    return tensor.untyped_storage().data_ptr() or id(tensor)
