"""Device placement of restored tensors: each is moved from the CPU to the device of the tensor it replaces."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_EXTRA_STATE = "_extra_state"
"""Suffix of the keys for a module's ``set_extra_state``. Torch does not copy these values to the module's device."""


def placed(stored: Any, item: Any) -> Any:
    """Return a stored state with every tensor on the device that the item expects.

    A tensor is moved to the device of the tensor at the same path in the item's current state. If there is none, it is
    moved to the item's ``state_device``, if it has such an attribute. Dtypes are not changed. Modules and optimizers
    copy parameters, buffers and moments to their devices themselves, so these are left on the CPU.

    Args:
        stored: return value of the item's ``state_dict``, with tensors on the CPU.
        item: object with ``state_dict``, which is only called if there is a tensor to move.
    """
    # `fitted` moves the tensors of an optimizer that torch does not move.
    if isinstance(item, Optimizer):
        return stored
    if isinstance(item, nn.Module):
        extra = {key: value for key, value in stored.items() if str(key).endswith(_EXTRA_STATE)}
        # state_dict() of a large module is expensive, so it is called only if needed.
        if not _has_tensor(extra):
            return stored
        moved = placed_as(extra, item.state_dict(), getattr(item, "state_device", None))
        return _like(stored, {**stored, **moved})
    if not _has_tensor(stored):
        return stored
    return placed_as(stored, item.state_dict(), getattr(item, "state_device", None))


def placed_as(stored: Any, current: Any, device: torch.device | str | None = None) -> Any:
    """Return a tree with its tensors moved to the devices of the tensors in another tree.

    Args:
        stored: tree to move.
        current: tree with the target devices; parts may be missing.
        device: device for tensors without a counterpart; None leaves them where they are.
    """
    return _Placing(device).place(stored, current)


class _Placing:
    """Moves each tensor once, so that shared tensors remain shared."""

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
            # The current list may be shorter, such as the empty state of a new scheduler.
            others = list(cast("list[Any]", current)) if isinstance(current, list | tuple) else []
            others += [None] * (len(stored) - len(others))
            return type(stored)(self.place(value, other) for value, other in zip(stored, others, strict=False))
        return stored

    def _tensor(self, stored: Tensor, current: Any) -> Tensor:
        device = current.device if isinstance(current, Tensor) else self._device
        if device is None:
            return stored
        # Keyed by identity and device: a tensor with two names must become one tensor with two names.
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
    """Return the members as a mapping of the same type, with the version metadata of a module's state."""
    mapping = type(stored)(members)  # type: ignore[call-arg]  dict, OrderedDict or Counter: the types that are stored
    metadata = getattr(stored, "_metadata", None)
    if metadata is not None:
        mapping._metadata = metadata  # type: ignore[attr-defined]  # noqa: SLF001  nn.Module reads it there
    return mapping
