"""Parameter groups by owner: who owns a parameter is asked again at every step, so densification cannot fool it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

Owner: TypeAlias = nn.Module | Mapping[str, Tensor] | Sequence[Tensor]
"""Whatever holds parameters: a module, a dict of tensors, or a list of them."""

OTHER = "other"
"""The group of parameters that an optimizer steps and nobody watches."""


class _Slot(NamedTuple):
    """Where a parameter is kept. A replaced parameter is found by looking into the slot again."""

    container: Any
    key: Any


class ParameterGroups:
    """Named, disjoint groups of parameters, held by their owners.

    Parameters that are swapped inside their owner (densification, pruning) are seen at the very next read.
    Parameters or modules that are *added* are seen at the next :meth:`rescan`. A parameter counts from when it first
    requires a gradient; one that is held still later (``requires_grad_(False)``) stays in its group.
    """

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}
        self._slots: dict[str, list[_Slot]] = {}
        self._optimizers: tuple[Optimizer, ...] = ()
        self._counts: list[int] = []

    def add(self, **owners: Owner) -> None:
        """Watch more groups.

        Raises:
            ValueError: a name is taken, a group is empty, or two groups share a parameter.
        """
        for name, owner in owners.items():
            if name in self._owners or name == OTHER:
                raise ValueError(f"group {name!r} is already watched: choose another name")
            self._owners[name] = owner
        self.rescan()
        for name in owners:
            if not self.read(name):
                raise ValueError(f"group {name!r} holds no parameter: watch the object that owns the trained tensors")

    def stepped_by(self, optimizers: tuple[Optimizer, ...]) -> None:
        """Say which optimizers step, so that parameters nobody watches are counted too, under ``other``."""
        counts = [len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups]
        if optimizers != self._optimizers or counts != self._counts:  # also where one was given more parameters
            self._optimizers = optimizers
            self._counts = counts
            self.rescan()

    def rescan(self) -> None:
        """Ask every owner anew which parameters it has."""
        previous = {(id(container), key) for slots in self._slots.values() for container, key in slots}
        self._slots = {name: _slots_of(owner, previous) for name, owner in self._owners.items()}
        group_of = self._refuse_overlap()
        # Optimizers may step what nobody watches: it is counted as a group of its own.
        unwatched = [
            _Slot(group["params"], i)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for i, parameter in enumerate(group["params"])
            if id(parameter) not in group_of
        ]
        if unwatched:
            self._slots[OTHER] = unwatched

    def names(self) -> tuple[str, ...]:
        """The groups, in the order they were named."""
        return tuple(self._slots)

    def owners(self) -> Mapping[str, Owner]:
        """The watched objects by group, in the order they were named."""
        return MappingProxyType(self._owners)

    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers that stepped last."""
        return self._optimizers

    def nbytes(self) -> int:
        """Bytes of all watched parameters at this moment."""
        try:
            return self._nbytes()
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            return self._nbytes()

    def read(self, name: str) -> list[Tensor]:
        """The parameters a group holds at this moment."""
        return [container[key] for container, key in self._slots[name]]

    def gradients(self) -> tuple[list[str], list[int], list[Tensor]]:
        """Every gradient there is: the groups that have any, how many each has, and all of them in that order."""
        try:
            return self._gradients()
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            return self._gradients()

    def clear_gradients(self) -> None:
        """Set every gradient to None."""
        try:
            self._clear_gradients()
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            self._clear_gradients()

    def _clear_gradients(self) -> None:
        for slots in self._slots.values():
            for container, key in slots:
                container[key].grad = None

    def _nbytes(self) -> int:
        return sum(container[key].nbytes for slots in self._slots.values() for container, key in slots)

    def _gradients(self) -> tuple[list[str], list[int], list[Tensor]]:
        names: list[str] = []
        counts: list[int] = []
        gradients: list[Tensor] = []
        for name, slots in self._slots.items():
            before = len(gradients)
            for container, key in slots:
                gradient = container[key].grad
                if gradient is not None:
                    gradients.append(gradient)
            if len(gradients) > before:
                names.append(name)
                counts.append(len(gradients) - before)
        return names, counts, gradients

    def _refuse_overlap(self) -> dict[int, str]:
        group_of: dict[int, str] = {}
        for name in self._slots:
            for parameter in self.read(name):
                # Parameters are compared by identity: equal values are not the same parameter.
                other = group_of.setdefault(id(parameter), name)
                if other != name:
                    raise ValueError(
                        f"groups {other!r} and {name!r} share a parameter of shape {tuple(parameter.shape)}: "
                        "watch disjoint objects, so that no gradient is counted twice"
                    )
        return group_of


def _slots_of(owner: Owner, previous: Collection[tuple[int, Any]]) -> list[_Slot]:
    """Where an owner keeps what requires a gradient, or did when it was looked at before."""
    if isinstance(owner, nn.Module):
        return _module_slots(owner, previous)
    entries: Iterable[tuple[Any, Tensor]] = owner.items() if isinstance(owner, Mapping) else enumerate(owner)
    return [_Slot(owner, key) for key, value in entries if value.requires_grad or (id(owner), key) in previous]


def _module_slots(module: nn.Module, previous: Collection[tuple[int, Any]]) -> list[_Slot]:
    seen: set[int] = set()
    slots: list[_Slot] = []
    for submodule in module.modules():
        parameters: dict[str, Tensor | None] = submodule.__dict__[
            "_parameters"
        ]  # the dict itself is the slot that survives swaps
        for key, parameter in parameters.items():
            # Tied weights stand under several names and count once.
            if parameter is None or id(parameter) in seen:
                continue
            if parameter.requires_grad or (id(parameters), key) in previous:
                seen.add(id(parameter))
                slots.append(_Slot(parameters, key))
    return slots
