"""Stored tensors come back on the CPU: each goes to the device of the tensor that it takes the place of."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_EXTRA_STATE = "_extra_state"
"""How torch ends the names of what a module's ``set_extra_state`` takes: the module does not copy that itself."""


def placed(stored: Any, item: Any) -> Any:
    """Return a stored state with every tensor on the device where the item wants it.

    A tensor goes to the device of the tensor that the item's state has under the same path now; where it has none
    there, to the item's ``state_device``, if it has such an attribute. Dtypes stay as they were stored. Modules and
    optimizers copy parameters, buffers and moments to their own devices, one at a time: these are left where they are.

    Args:
        stored: what the item's ``state_dict`` returned, tensors on the CPU.
        item: an object with ``state_dict``; it is asked only if there is a tensor to place.
    """
    if isinstance(item, Optimizer):
        return stored  # `fitted` places what torch leaves to us
    if isinstance(item, nn.Module):
        extra = {key: value for key, value in stored.items() if str(key).endswith(_EXTRA_STATE)}
        if not _has_tensor(extra):
            return stored
        moved = placed_as(extra, item.state_dict(), getattr(item, "state_device", None))
        return _like(stored, {**stored, **moved})
    if not _has_tensor(stored):
        return stored
    return placed_as(stored, item.state_dict(), getattr(item, "state_device", None))


def placed_as(stored: Any, current: Any, device: torch.device | str | None = None) -> Any:
    """Return a tree with its tensors on the devices of those in another tree.

    Args:
        stored: the tree.
        current: the other one; parts may be missing.
        device: for tensors that have no counterpart there; None leaves them where they are.
    """
    return _Placing(device).place(stored, current)


class _Placing:
    """Moves each tensor once: two names of one tensor stay two names of one."""

    def __init__(self, device: torch.device | str | None) -> None:
        self._device = device
        self._moved: dict[tuple[int, str], Tensor] = {}

    def place(self, stored: Any, current: Any) -> Any:
        if isinstance(stored, Tensor):
            return self._tensor(stored, current)
        if isinstance(stored, Mapping):
            members = cast("Mapping[Any, Any]", stored)
            theirs = cast("Mapping[Any, Any]", current if isinstance(current, Mapping) else {})
            return _like(members, {key: self.place(value, theirs.get(key)) for key, value in members.items()})
        if type(stored) in (list, tuple):
            others = list(cast("list[Any]", current)) if isinstance(current, list | tuple) else []
            others += [None] * (len(stored) - len(others))
            return type(stored)(self.place(value, other) for value, other in zip(stored, others, strict=False))
        return stored

    def _tensor(self, stored: Tensor, current: Any) -> Tensor:
        device = current.device if isinstance(current, Tensor) else self._device
        if device is None:
            return stored
        # By identity and device: two names of one tensor must be one tensor again.
        key = (id(stored), str(device))
        if key not in self._moved:
            self._moved[key] = stored.to(device)
        return self._moved[key]


def _has_tensor(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return any(_has_tensor(value) for value in cast("Mapping[Any, Any]", tree).values())
    if type(tree) in (list, tuple):
        return any(_has_tensor(value) for value in tree)
    return isinstance(tree, Tensor)


def _like(stored: Mapping[Any, Any], members: dict[Any, Any]) -> Any:
    """The members in a mapping of the stored one's kind, with the versions that torch hangs to a module's state."""
    made = type(stored)(members)  # type: ignore[call-arg]  dict, OrderedDict and Counter, the kinds that are stored
    metadata = getattr(stored, "_metadata", None)
    if metadata is not None:
        made._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001  where nn.Module looks for it
    return made
