"""The objects that a run trains: which are watched, which a checkpoint holds, which only occupy memory."""

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.base import InputError
from fieldwatch.measure import Owner, ParameterGroups
from fieldwatch.run.micro_batches import MicroBatches

MICRO_BATCHES = "micro_batches"
"""Name of the item that holds the run's default number of micro-batches."""
RESERVED = ("random_state",)
"""Names of items that the run adds itself."""


class TrackedObjects:
    """Everything that ``run.track`` was given.

    Attributes:
        watched: the parameter groups.
        items: what a checkpoint holds, by name.
        data: what only occupies memory, by name.
        micro_batches: the default number of micro-batches of a step.
    """

    def __init__(self) -> None:
        self.watched = ParameterGroups()
        self.items: dict[str, Any] = {}
        self.data: dict[str, Any] = {}
        self.micro_batches = MicroBatches()
        self._sealed = ""

    def add(self, items: Mapping[str, Any], groups: Mapping[str, Owner], data: Mapping[str, Any]) -> None:
        """Track more objects; nothing is tracked where one of them is refused.

        Raises:
            InputError: a name is taken or reserved, or the items of the checkpoints are settled already.
            ValueError: a group is empty, or two groups share a parameter.
        """
        if items and self._sealed:
            raise InputError(f"run.track({', '.join(items)}) came after {self._sealed}: track all objects before it")
        taken = sorted((items.keys() & self.items.keys()) | (items.keys() & set(RESERVED)))
        if taken:
            raise InputError(f"run.track(...) got {', '.join(taken)} a second time: choose another name")
        taken_data = sorted(data.keys() & self.data.keys())
        if taken_data:
            raise InputError(f"run.track(data=...) got {', '.join(taken_data)} a second time: choose another name")
        # Groups first: a module whose parameters they cover gets no group of its own.
        self.watched.add(**groups)
        for name, item in items.items():
            if isinstance(item, nn.Module) and not self._is_watched(item):
                self.watched.add(**{name: item})
        self.items |= items
        self.data |= data
        micro_batches = items.get(MICRO_BATCHES)
        if isinstance(micro_batches, MicroBatches):
            self.micro_batches = micro_batches

    def seal(self, call: str) -> dict[str, Any]:
        """Settle what a checkpoint holds, and return it: the tracked items, and the default number of micro-batches.

        Args:
            call: what settles it, for the message of a later ``track``.
        """
        self._sealed = self._sealed or call
        # An item of the user's with that name replaces the default.
        return {MICRO_BATCHES: self.micro_batches, **self.items} if self.items else {}

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of items that checkpoints of earlier versions lack."""
        return () if MICRO_BATCHES in self.items else (MICRO_BATCHES,)

    def modules(self) -> list[nn.Module]:
        """Return the tracked modules."""
        return [item for item in self.items.values() if isinstance(item, nn.Module)]

    def parameters(self) -> list[Tensor]:
        """Return the watched parameters."""
        return [parameter for name in self.watched.names() for parameter in self.watched.read(name)]

    def clear_gradients(self) -> None:
        """Set the gradients of all watched parameters, and of those of all tracked optimizers, to None."""
        # Optimizers too: they may step parameters that no group covers.
        for optimizer in (*self._optimizers(), *self.watched.optimizers()):
            optimizer.zero_grad(set_to_none=True)
        self.watched.clear_gradients()

    def _optimizers(self) -> list[Optimizer]:
        return [item for item in self.items.values() if isinstance(item, Optimizer)]

    def _is_watched(self, module: nn.Module) -> bool:
        """Return whether a module needs no group of its own: it has none to train, or groups have some already."""
        trainable = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
        return not trainable or any(id(parameter) in trainable for parameter in self.parameters())


def refuse_non_mapping(name: str, value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping; it is an option of ``track``, not an item of that name.

    Raises:
        InputError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(
            f"run.track({name}=...) is an option, expected a mapping, got {type(value).__qualname__}: "
            "choose another name for this item"
        )
    return cast("Mapping[str, Any]", value)
