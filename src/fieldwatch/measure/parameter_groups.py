"""Named parameter groups that stay up to date when densification replaces parameters inside their owners."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, getitem
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.base import InputError

Owner: TypeAlias = nn.Module | Mapping[str, Tensor] | Sequence[Tensor]
"""An object that holds parameters: a module, a dict of tensors or a list of tensors."""

_gradient_of: Callable[[Tensor], Tensor | None] = attrgetter("grad")
OTHER = "other"
"""Group of parameters that an optimizer steps but no watched group contains."""


class _Slot(NamedTuple):
    """Container and key of a parameter. Reading the slot again yields the current parameter, even after a swap."""

    container: Any
    key: Any


class ParameterGroups:
    """Named, disjoint groups of parameters, read from the objects that own them.

    Parameters that are replaced inside their owner (densification, pruning) are picked up at the next read. Parameters
    or modules that are *added* are picked up at the next :meth:`rescan`. A parameter joins its group once it requires a
    gradient or an optimizer holds it; if it is frozen later (``requires_grad_(False)``), it stays in its group. A group
    whose parameters are all frozen from the start appears once they are unfrozen.
    """

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}
        self._slots: dict[str, list[_Slot]] = {}
        self._optimizers: tuple[Optimizer, ...] = ()
        self._counts: list[int] = []
        self._modules: list[nn.Module] = []
        self._seen: list[object] = []
        # All slots in one row, with the name and number of those of each group, for the work of every step.
        self._all_containers: list[Any] = []
        self._all_keys: list[Any] = []
        self._all_names: list[str] = []
        self._all_counts: list[int] = []

    def add(self, **owners: Owner) -> None:
        """Watch additional groups: all of them, or none if one is refused.

        Args:
            **owners: owner of the parameters of each group, by group name.

        Raises:
            InputError: if a name is taken, an owner has no parameters, or two groups share a parameter.
        """
        for name, owner in owners.items():
            if name in self._owners or name == OTHER:
                raise InputError(f"group {name!r} is already watched: choose another name")
            # Frozen parameters are fine, because they may be unfrozen later.
            if not _has_parameters(owner):
                raise InputError(
                    f"group {name!r} has no parameters: pass the module, mapping or sequence of tensors that holds "
                    "them, or leave the group out"
                )
        self._owners |= owners
        # Scan all owners at once, so that an overlap with any existing group is detected.
        try:
            self.rescan()
        except InputError:
            self.remove(owners)
            raise

    def remove(self, names: Collection[str]) -> None:
        """Stop watching groups."""
        self._owners = {name: owner for name, owner in self._owners.items() if name not in names}
        self.rescan()

    def stepped_by(self, optimizers: tuple[Optimizer, ...]) -> None:
        """Set the optimizers, so that their unwatched parameters are included as the group ``other``."""
        counts: list[int] = []
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                counts.append(len(group["params"]))  # noqa: PERF401  at every update: a comprehension is another call
        if optimizers != self._optimizers or counts != self._counts:  # the counts reveal added parameters
            self._optimizers = optimizers
            self._counts = counts
            self.rescan()

    def refresh(self) -> None:
        """Determine the parameters of every owner again if any was added, removed, replaced, frozen or unfrozen."""
        if self._contents() != self._seen:
            self.rescan()

    def rescan(self) -> None:
        """Determine the parameters of every owner again."""
        # Parameters found earlier stay in their group, even if they have been frozen since.
        previous = {(id(container), key) for slots in self._slots.values() for container, key in slots}
        # So do those that an optimizer holds: once they are unfrozen, their gradients are those of their group.
        stepped = [
            _Slot(group["params"], i)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for i in range(len(group["params"]))
        ]
        held = {id(container[key]) for container, key in stepped}
        slots = {name: _slots_of(owner, previous, held) for name, owner in self._owners.items()}
        self._slots = {name: found for name, found in slots.items() if found}
        group_of = self._refuse_overlap()
        # Optimizers may also step unwatched parameters: collect those in a separate group.
        unwatched = [slot for slot in stepped if id(slot.container[slot.key]) not in group_of]
        if unwatched:
            self._slots[OTHER] = unwatched
        slots_in_order = [slot for found in self._slots.values() for slot in found]
        self._all_containers = [container for container, _ in slots_in_order]
        self._all_keys = [key for _, key in slots_in_order]
        self._all_names = list(self._slots)
        self._all_counts = [len(found) for found in self._slots.values()]
        owners = [owner for owner in self._owners.values() if isinstance(owner, nn.Module)]
        self._modules = [module for owner in owners for module in owner.modules()]
        self._seen = self._contents()

    def names(self) -> tuple[str, ...]:
        """Return the names of the groups that have parameters, in order of registration."""
        return tuple(self._slots)

    def owners(self) -> Mapping[str, Owner]:
        """Return the watched objects by group name, in order of registration."""
        return MappingProxyType(self._owners)

    def optimizers(self) -> tuple[Optimizer, ...]:
        """Return the optimizers of the last :meth:`stepped_by` call."""
        return self._optimizers

    def nbytes(self) -> int:
        """Return the current size of all watched parameters in bytes."""
        try:
            return self._nbytes()
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            return self._nbytes()

    def read(self, name: str) -> list[Tensor]:
        """Return the current parameters of a group; none if all are frozen from the start."""
        return [container[key] for container, key in self._slots.get(name, ())]

    def gradients(self, without: Collection[int] = ()) -> tuple[list[str], list[int], list[Tensor]]:
        """Return the names of groups that have gradients, the number of gradients per group, and all gradients.

        Of a sparse gradient, its entries: rows that occur twice are added up first, as sparse optimizers do.

        Args:
            without: ids of parameters to leave out.
        """
        try:
            return self._gradients(without)
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            return self._gradients(without)

    def clear_gradients(self) -> None:
        """Set every gradient to None."""
        try:
            self._clear_gradients()
        except (KeyError, IndexError):  # a parameter was removed from its owner since the last scan
            self.rescan()
            self._clear_gradients()

    def _contents(self) -> list[object]:
        """Return what a scan depends on, as numbers: it holds no tensor, so replaced parameters are freed at once."""
        found: list[object] = []
        parameters: list[Tensor | None] = []
        for module in self._modules:
            found += map(id, module.__dict__["_modules"].values())
            parameters += module.__dict__["_parameters"].values()
        for owner in self._owners.values():
            if not isinstance(owner, nn.Module):
                parameters += owner.values() if isinstance(owner, Mapping) else owner
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                parameters += group["params"]
        found += map(id, parameters)
        found += [parameter is not None and parameter.requires_grad for parameter in parameters]
        return found

    def _clear_gradients(self) -> None:
        for slots in self._slots.values():
            for container, key in slots:
                container[key].grad = None

    def _nbytes(self) -> int:
        return sum(container[key].nbytes for slots in self._slots.values() for container, key in slots)

    def _gradients(self, without: Collection[int]) -> tuple[list[str], list[int], list[Tensor]]:
        # Runs at every step. The usual case: every parameter has a dense gradient.
        if not without:
            read: Any = getitem  # also of mappings
            parameters: Iterator[Tensor] = map(read, self._all_containers, self._all_keys)
            found = map(_gradient_of, parameters)
            dense = [gradient for gradient in found if gradient is not None and not gradient.is_sparse]
            if len(dense) == len(self._all_keys):
                return self._all_names, self._all_counts, dense
        names: list[str] = []
        counts: list[int] = []
        gradients: list[Tensor] = []
        for name, slots in self._slots.items():
            before = len(gradients)
            for container, key in slots:
                gradient = container[key].grad
                if gradient is not None and (not without or id(container[key]) not in without):
                    gradients.append(gradient if not gradient.is_sparse else _entries(container[key]))
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
                    raise InputError(
                        f"groups {other!r} and {name!r} share a parameter of shape {tuple(parameter.shape)}: "
                        "watch disjoint objects, so that no gradient is counted twice"
                    )
        return group_of


def _has_parameters(owner: Owner) -> bool:
    return any(True for _ in owner.parameters()) if isinstance(owner, nn.Module) else len(owner) > 0


def _slots_of(owner: Owner, previous: Collection[tuple[int, Any]], held: Collection[int]) -> list[_Slot]:
    """Return the slots of all parameters that require a gradient, did so at the previous scan, or are held."""
    if isinstance(owner, nn.Module):
        return _module_slots(owner, previous, held)
    # For dicts and lists the owner itself is the container, so replaced entries are found through it.
    entries: Iterable[tuple[Any, Tensor]] = owner.items() if isinstance(owner, Mapping) else enumerate(owner)
    return [
        _Slot(owner, key)
        for key, value in entries
        if value.requires_grad or id(value) in held or (id(owner), key) in previous
    ]


def _module_slots(module: nn.Module, previous: Collection[tuple[int, Any]], held: Collection[int]) -> list[_Slot]:
    seen: set[int] = set()
    slots: list[_Slot] = []
    for submodule in module.modules():
        parameters: dict[str, Tensor | None] = submodule.__dict__[
            "_parameters"
        ]  # this dict survives replacements of its parameters
        for key, parameter in parameters.items():
            # Tied weights have several names but count once.
            if parameter is None or id(parameter) in seen:
                continue
            if parameter.requires_grad or id(parameter) in held or (id(parameters), key) in previous:
                seen.add(id(parameter))
                slots.append(_Slot(parameters, key))
    return slots


def _entries(parameter: Tensor) -> Tensor:
    """Return the entries of a sparse gradient, which share its memory, so that clipping scales the gradient."""
    gradient = cast("Tensor", parameter.grad)
    if not gradient.is_coalesced():
        gradient = parameter.grad = gradient.coalesce()
    return gradient.values()
