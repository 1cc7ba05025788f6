"""`TrackedObjects`: objects of a run that are watched, saved in checkpoints, or only occupy memory."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fieldwatch.base import InputError
from fieldwatch.measure import Owner, ParameterGroups
from fieldwatch.run.micro_batches import MicroBatches

MICRO_BATCHES = "micro_batches"
"""Name of the item with the run's default number of micro-batches."""
RESERVED = ("random_state", "loop_checks")
"""Item names that the run uses itself."""


class TrackedObjects:
    """Objects passed to ``run.track``.

    Attributes:
        watched: parameter groups.
        items: items saved in checkpoints, by name.
        data: objects that only occupy memory, by name.
        micro_batches: default number of micro-batches of a step.
    """

    def __init__(self) -> None:
        self.watched = ParameterGroups()
        self.items: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.micro_batches = MicroBatches()
        self._sealed = ""
        # The tracked optimizers that have stepped, by id.
        self._stepped: dict[int, Optimizer] = {}
        # The optimizers of the latest update, all that have stepped so far, and whether these are the same.
        self._updating: Sequence[Optimizer] = ()
        self._stepping: tuple[Optimizer, ...] = ()
        self._only_these = True

    def add(self, items: Mapping[str, Any], groups: Mapping[str, Owner], data: Mapping[str, Any]) -> None:
        """Track further objects.

        Raises:
            InputError: a name is used or reserved, items are added after :meth:`seal`, a group has no parameters, or
                two groups share one.
        """
        if items and self._sealed:
            raise InputError(
                f"run.track({', '.join(items)}) was called after {self._sealed}: track all objects before it"
            )
        # Check everything before anything is added, so that a rejected call has no effect.
        taken = sorted((items.keys() & self.items.keys()) | (items.keys() & set(RESERVED)))
        if taken:
            raise InputError(f"run.track(...) got {', '.join(taken)} a second time: choose another name")
        taken_data = sorted(data.keys() & self.data.keys())
        if taken_data:
            raise InputError(f"run.track(data=...) got {', '.join(taken_data)} a second time: choose another name")
        watched_before = set(self.watched.owners())
        # Add the groups first: a module whose parameters they cover gets no group itself.
        self.watched.add(**groups)
        try:
            for name, item in items.items():
                if isinstance(item, nn.Module) and not self._is_watched(item):
                    self.watched.add(**{name: item})
        except InputError:
            self.watched.remove(self.watched.owners().keys() - watched_before)
            raise
        self.items |= items
        self.data |= data
        micro_batches = items.get(MICRO_BATCHES)
        if isinstance(micro_batches, MicroBatches):
            self.micro_batches = micro_batches

    def seal(self, call: str) -> dict[str, Any]:
        """Fix the content of checkpoints, and return it: the tracked items and the default number of micro-batches.

        Args:
            call: name of the call that fixes the content, for the error message of a later ``track``.
        """
        # The first call fixes the content, so it is the one to name in the message.
        self._sealed = self._sealed or call
        # A user's item with that name replaces the default.
        return {MICRO_BATCHES: self.micro_batches, **self.items} if self.items else {}

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of items that checkpoints of earlier fieldwatch versions may lack."""
        return () if MICRO_BATCHES in self.items else (MICRO_BATCHES,)

    def modules(self) -> list[nn.Module]:
        """Return the tracked modules."""
        return [item for item in self.items.values() if isinstance(item, nn.Module)]

    def parameters(self) -> list[Tensor]:
        """Return the watched parameters."""
        return [parameter for name in self.watched.names() for parameter in self.watched.read(name)]

    def updating(self, optimizers: Sequence[Optimizer]) -> Collection[int]:
        """Note that optimizers are about to step.

        In a loop that steps its optimizers one after the other, as in the training of a GAN, the gradients of the
        others are those of another loss.

        Returns:
            The ids of the parameters with a gradient that belong to other optimizers, which have stepped before.
        """
        if optimizers != self._updating:
            self._stepped |= {id(each): each for each in optimizers if self._is_tracked(each)}
            untracked = [each for each in optimizers if id(each) not in self._stepped]
            # In a fixed order, so that optimizers that take turns are one constellation.
            self._stepping = (*self._stepped.values(), *untracked)
            self._only_these = len(self._stepping) == len(optimizers)
            self._updating = tuple(optimizers)
        # At every update: parameters may have been added to an optimizer.
        self.watched.stepped_by(self._stepping)
        if self._only_these:
            return ()
        theirs = {id(parameter) for parameter in _parameters_of(optimizers)}
        return {id(p) for p in _parameters_of(self._stepped.values()) if p.grad is not None} - theirs

    def clear_gradients(self) -> None:
        """Set the gradients of all watched parameters, and of those of all optimizers, to None."""
        # Optimizers may hold parameters that no group covers.
        for optimizer in (*self._optimizers(), *self.watched.optimizers()):
            optimizer.zero_grad(set_to_none=True)
        self.watched.clear_gradients()

    def _optimizers(self) -> list[Optimizer]:
        return [item for item in self.items.values() if isinstance(item, Optimizer)]

    def _is_tracked(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._stepped or any(each is optimizer for each in optimizers_in(self.items))

    def _is_watched(self, module: nn.Module) -> bool:
        """Return whether a module needs no group: it has no trainable parameters, or groups contain some of them."""
        trainable = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
        return not trainable or any(id(parameter) in trainable for parameter in self.parameters())


def refuse_lazy_parameters(items: Mapping[str, Any]) -> None:
    """Refuse modules whose parameters torch makes at their first forward only.

    Raises:
        InputError: a module has such parameters.
    """
    for name, item in items.items():
        if isinstance(item, nn.Module) and any(map(is_lazy, item.parameters())):
            raise InputError(
                f"{name!r} has parameters without a shape (torch makes those of LazyLinear and the like at the first "
                "forward): call it on a batch before the loop begins"
            )


def optimizers_in(items: Mapping[str, Any]) -> Iterator[Optimizer]:
    """Yield the optimizers among items, those in mappings of items included."""
    for item in items.values():
        if isinstance(item, Optimizer):
            yield item
        elif isinstance(item, Mapping):
            yield from optimizers_in(cast("Mapping[str, Any]", item))


def _parameters_of(optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    return (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])


def refuse_non_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return the value of an option of ``track``; an empty mapping for None.

    Raises:
        InputError: the value is not a mapping, so it was probably meant as an item with that name.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(
            f"run.track({name}=...) is an option, expected a mapping, got {type(value).__qualname__}: to track the "
            "object as an item, choose another name"
        )
    return cast("Mapping[str, Any]", value)
