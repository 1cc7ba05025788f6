"""`ModuleParameters`: the parameters of the tracked modules, and `FreezeCheck`: which of them were frozen."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fieldwatch.run.loop_checks.streaks import LAST, Streaks

NAMED = 8
"""Maximum number of names in an event."""


class ModuleParameters:
    """Parameters of the tracked modules by name. It holds no tensor, so replaced parameters are freed at once.

    Attributes:
        names: name of each parameter at the last scan, such as ``model.head.weight``.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._slots: list[tuple[Any, str]] = []
        self._ids: list[int] = []
        self._children: list[tuple[Any, list[int]]] = []

    def scan(self, modules: Mapping[str, nn.Module]) -> None:
        """Determine all parameters again; tied parameters count once."""
        self.names = []
        self._slots = []
        self._children = []
        seen: set[int] = set()
        for name, parameters, key in self._walk(modules):
            parameter = parameters[key]
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                self.names.append(name)
                self._slots.append((parameters, key))
        self._ids = [id(parameter) for parameter in self.read()]

    def read(self) -> list[Tensor]:
        """Return the current parameters, in the order of the names.

        Raises:
            KeyError: a parameter was removed since the last scan.
        """
        return [parameters[key] for parameters, key in self._slots]

    def is_current(self) -> bool:
        """Return whether no parameter and no submodule was replaced, added or removed since the last scan."""
        try:
            current = [id(parameter) for parameter in self.read()]
        except KeyError:
            return False
        return current == self._ids and all([*map(id, child.values())] == known for child, known in self._children)

    def trainable(self) -> list[bool]:
        """Return whether each parameter requires a gradient now."""
        return [parameter.requires_grad for parameter in self.read()]

    def _walk(self, modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, Any, str]]:
        """Yield the name, container and key of every parameter, and note the submodules of every module."""
        for item, root in modules.items():
            for path, module in submodules_of(root, item):
                children: dict[str, Any] = module.__dict__["_modules"]
                # Most modules have no submodules, and gain none.
                if children:
                    self._children.append((children, [*map(id, children.values())]))
                parameters: dict[str, Any] = module.__dict__["_parameters"]
                yield from ((f"{path}.{key}", parameters, key) for key in parameters)


class FreezeCheck:
    """Compares which parameters require a gradient with those that did at the first update."""

    def __init__(self) -> None:
        self._settled: dict[str, bool] = {}
        self._pending: dict[str, bool] = {}
        self._streaks = Streaks()
        self._last_equal = -1
        self._since = -1
        self._names: list[str] = []
        self._flags: list[bool] = []

    @property
    def pending(self) -> bool:
        """Whether a change was seen that may still be reverted, so that each update has to be checked."""
        return bool(self._pending)

    @property
    def any_frozen(self) -> bool:
        """Whether a parameter was frozen at the last check."""
        return not all(self._flags)

    def check(
        self, step: int, parameters: ModuleParameters, held: Callable[[], Collection[int]]
    ) -> dict[str, Any] | None:
        """Return the facts of an event if a change has to be recorded.

        Args:
            step: index of the step.
            parameters: current parameters of the modules.
            held: function that returns the ids of the parameters that optimizers hold.
        """
        flags = parameters.trainable()
        # The usual case: nothing has changed since the last check.
        if not self._pending and flags == self._flags and parameters.names is self._names:
            self._last_equal = step
            return None
        self._names = parameters.names
        self._flags = flags
        now = dict(zip(parameters.names, flags, strict=True))
        # A parameter with a new name has nothing to compare with.
        changes = {name: flag for name, flag in now.items() if self._settled.setdefault(name, flag) != flag}
        if changes != self._pending:
            self._streaks.end("")
            self._pending = changes
            self._since = self._last_equal
        self._last_equal = self._last_equal if changes else step
        updates = self._streaks.hold("", step) if changes else 0
        if not updates:
            return None
        if updates == LAST:
            self._settled |= changes
            self._pending = {}
        frozen = [name for name, flag in changes.items() if not flag]
        unfrozen = [name for name, flag in changes.items() if flag]
        ids = {name: id(parameter) for name, parameter in zip(parameters.names, parameters.read(), strict=True)}
        return {
            "since": self._since,
            "first": self._streaks.start(""),
            "updates": updates,
            "frozen": frozen[:NAMED],
            "frozen_count": len(frozen),
            "frozen_in_optimizers": len({ids[name] for name in frozen} & set(held())),
            "unfrozen": unfrozen[:NAMED],
            "unfrozen_count": len(unfrozen),
        }


def submodules_of(root: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the path and module of a module and all its submodules, each once, without those of TorchScript.

    Modules of TorchScript take no hooks, and their containers are no dictionaries of Python.
    """
    # torch leaves the types of this method open.
    named = cast("Iterator[tuple[str, nn.Module]]", root.named_modules(prefix=prefix))
    return ((path, module) for path, module in named if not isinstance(module, torch.jit.ScriptModule))


def some_names(names: Sequence[str]) -> dict[str, Any]:
    """Return the facts of an event about named things: the first names and the number of all."""
    return {"names": list(names[:NAMED]), "count": len(names)}
