"""What the items that a run keeps hold: objects by identity, tensors by their memory."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fieldwatch.checkpoint import ResumableLoader, Shuffled, Stateful

_DEEPEST = 3
_MANY = 1024
"""Members of a list beyond which they are values, not objects with a state."""


class Held:
    """Everything that a checkpoint of some items holds, as far as can be seen.

    Attributes that an object with a ``state_dict`` of its own has are taken to be in it. Those of modules, optimizers
    and schedulers are not: torch stores parameters, buffers and plain numbers of them.

    Args:
        items: what was given to ``run.track``.

    Attributes:
        schedulers: of learning rates.
        orders: data orders of ours.
        has_own: whether there is an object of another kind than torch's, which may be a place in the data.
    """

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.schedulers: list[LRScheduler] = []
        self.orders: list[Shuffled | ResumableLoader] = []
        self.has_own = False
        self._objects: dict[int, Any] = {}  # alive, so that no address is used twice
        self._memory: set[int] = set()
        for item in items.values():
            self._add(item, 0)

    def object(self, thing: object) -> bool:
        """Whether an object is held."""
        return id(thing) in self._objects

    def tensor(self, tensor: Tensor) -> bool:
        """Whether a tensor is held, be it as a view of the same memory."""
        return self.object(tensor) or not tensor.numel() or _memory_of(tensor) in self._memory

    def schedules(self, optimizer: Optimizer) -> bool:
        """Whether a scheduler of this optimizer is held."""
        return any(getattr(one, "optimizer", None) is optimizer for one in self.schedulers)

    def _add(self, thing: Any, depth: int) -> None:
        if id(thing) in self._objects or depth > _DEEPEST:
            return
        self._objects[id(thing)] = thing
        if isinstance(thing, Tensor):
            self._memory.add(_memory_of(thing))
        elif isinstance(thing, nn.Module):
            self._module(thing, depth)
        elif isinstance(thing, Mapping):
            self._several(cast("Mapping[Any, Any]", thing).values(), depth)
        elif isinstance(thing, list | tuple):
            self._several(cast("list[Any]", thing)[:_MANY], depth)
        elif isinstance(thing, LRScheduler):
            self.schedulers.append(thing)
            self._several(getattr(thing, "_schedulers", ()), depth)  # of a chain; its own state holds theirs
        elif isinstance(thing, Stateful) and not _of_torch(thing):
            self.has_own = True
            if isinstance(thing, Shuffled | ResumableLoader):
                self.orders.append(thing)
            self._several(getattr(thing, "__dict__", {}).values(), depth)

    def _module(self, module: nn.Module, depth: int) -> None:
        for part in module.modules():
            self._objects[id(part)] = part
        for tensor in (*module.parameters(), *module.buffers()):
            self._objects[id(tensor)] = tensor
            self._memory.add(_memory_of(tensor))
        if stores_more(module):
            self._several(vars(module).values(), depth)

    def _several(self, things: Iterable[Any], depth: int) -> None:
        for thing in things:
            if isinstance(thing, Tensor | Mapping | list | tuple | Stateful):
                self._add(thing, depth + 1)


def stores_more(module: nn.Module) -> bool:
    """Whether a module says itself what its state is, beyond parameters and buffers."""
    kind = type(module)
    return kind.state_dict is not nn.Module.state_dict or kind.get_extra_state is not nn.Module.get_extra_state


def _of_torch(thing: object) -> bool:
    return type(thing).__module__.partition(".")[0] == "torch"


def _memory_of(tensor: Tensor) -> int:
    """Address of a tensor's memory; a number that nothing else has where it has none."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)
