"""`ModeCheck`: modules whose training mode has changed since the run began."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import nn

from fieldwatch.run.loop_checks.streaks import LAST, Streaks
from fieldwatch.run.loop_checks.trainable import NAMED, submodules_of

_PROBED = 8
"""Number of parameters that are checked for a gradient, to know whether a module is being trained."""
_INDIFFERENT = (nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""Modules that read their mode only to choose a faster kernel."""


@dataclass(frozen=True, kw_only=True)
class ModeChange:
    """A mode that was changed and not changed back.

    Attributes:
        item: name of the tracked module.
        to: ``"eval"`` or ``"train"``.
        since: last update before the change; -1 if there was none.
        first: first update after the change.
        updates: number of consecutive updates in the new mode.
        modules: names of changed modules whose output depends on the mode, at most 8.
        count: number of such modules.
        whole: whether the mode of the tracked module itself has changed.
        frozen: whether all parameters in and around these modules are frozen.
        only_norms: whether all of them are normalization layers.
    """

    item: str
    to: str
    since: int
    first: int
    updates: int
    modules: list[str]
    count: int
    whole: bool
    frozen: bool
    only_norms: bool


class ModeCheck:
    """Compares the modes of all modules that depend on them with those at the first update.

    A tracked module that changed from train to eval mode before the first update is compared with its mode at the
    start: an evaluation that comes first may have left it so.

    Only these modules and the tracked ones are read, so a model without dropout and batch norm costs one flag. A module
    without gradients is not compared: an average of weights or a frozen critic may change its mode at any time.
    """

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._at_start: list[tuple[nn.Module, dict[int, bool]]] = []
        self._streaks = Streaks()
        self._last_update = -1

    def start(self, modules: Iterable[nn.Module]) -> None:
        """Note the modes when the training begins."""
        self._at_start = [(root, {id(each): each.training for each in root.modules()}) for root in modules]

    def scan(self, modules: Mapping[str, nn.Module]) -> None:
        """Determine the modules to read again, because a module may have been replaced."""
        known = {
            id(module): mode for item in self._items for module, mode in zip(item.modules, item.modes, strict=True)
        }
        for root, modes in self._at_start:
            if modes[id(root)] and not root.training:
                known |= modes
        # Only the modes at the first update are compared with those at the start.
        self._at_start = []
        old = self._items
        self._items = [_Item(name, module, known) for name, module in modules.items()]
        # The old modules must live until here, so that no new one has the id of an old one.
        del old

    def unchanged(self, step: int) -> bool:
        """Return whether all modes are those at the first update, as usual: then there is nothing to check."""
        for item in self._items:
            if item.pending or [module.training for module in item.modules] != item.modes:
                return False
        self._last_update = step
        return True

    def check(self, step: int) -> Iterator[ModeChange]:
        """Yield the changed modes that have to be recorded; call it at every update with a changed mode."""
        for item in self._items:
            modes = [module.training for module in item.modules]
            if modes == item.modes:
                if item.pending:
                    self._forget(item)
                continue
            if not item.is_trained():
                continue
            if modes != item.pending:
                self._forget(item)
                item.pending = modes
                item.since = self._last_update
            yield from self._count(item, step)
        self._last_update = step

    def _count(self, item: "_Item", step: int) -> Iterator[ModeChange]:
        updates = self._streaks.hold(item.name, step)
        if updates:
            yield from item.changes(self._streaks.start(item.name), updates)
        # A mode that has lasted this long is the new normal.
        if updates == LAST:
            item.modes = item.pending
            self._forget(item)

    def _forget(self, item: "_Item") -> None:
        item.pending = []
        self._streaks.end(item.name)


class _Item:
    """Modules of one tracked module whose mode is read."""

    def __init__(self, name: str, root: nn.Module, known: Mapping[int, bool]) -> None:
        self.name = name
        self.names = [""]
        self.modules = [root]
        for path, module in submodules_of(root, ""):
            if path and depends_on_mode(module):
                self.names.append(path)
                self.modules.append(module)
        self.modes = [known.get(id(module), module.training) for module in self.modules]
        self.pending: list[bool] = []
        self.since = -1
        # Weak: a parameter that densification replaces has to be freed at once.
        parameters = [ref(parameter) for parameter in root.parameters() if parameter.requires_grad]
        self._probes = parameters[:: max(len(parameters) // _PROBED, 1)]

    def is_trained(self) -> bool:
        """Return whether parameters of the module have gradients."""
        probes = (probe() for probe in self._probes)
        return any(parameter is not None and parameter.grad is not None for parameter in probes)

    def changes(self, first: int, updates: int) -> Iterator[ModeChange]:
        """Yield the changes to eval and to train separately."""
        changed = [i for i, (old, new) in enumerate(zip(self.modes, self.pending, strict=True)) if old != new]
        for mode in (False, True):
            here = [i for i in changed if self.pending[i] is mode]
            # A tracked module without modules that depend on the mode computes the same in both.
            dependent = [i for i in here if i > 0 or depends_on_mode(self.modules[0])]
            if dependent:
                yield ModeChange(
                    item=self.name,
                    to="train" if mode else "eval",
                    since=self.since,
                    first=first,
                    updates=updates,
                    modules=[self._full_name(i) for i in dependent[:NAMED]],
                    count=len(dependent),
                    whole=0 in here,
                    frozen=all(self._is_frozen(self.names[i]) for i in dependent),
                    only_norms=all(is_norm(self.modules[i]) for i in dependent),
                )

    def _full_name(self, index: int) -> str:
        return f"{self.name}.{self.names[index]}" if index else self.name

    def _is_frozen(self, path: str) -> bool:
        """Return whether the parameters of a module, or of the nearest module around it that has any, are frozen."""
        while True:
            parameters = list(self.modules[0].get_submodule(path).parameters())
            if parameters or not path:
                return not any(parameter.requires_grad for parameter in parameters)
            path = path.rpartition(".")[0]


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a batch or instance normalization."""
    return isinstance(module, nn.modules.batchnorm._NormBase)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the base class of both


def depends_on_mode(module: nn.Module) -> bool:
    """Return whether the output of a module itself, without its submodules, differs between train and eval mode."""
    if isinstance(module, _INDIFFERENT):
        return False
    # Dropout with probability 0 is the identity in both modes.
    probability = getattr(module, "p" if isinstance(module, nn.modules.dropout._DropoutNd) else "dropout", None)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the base class of all dropouts
    if isinstance(probability, int | float) and not probability:
        return False
    # Without running statistics, a norm uses those of the batch in both modes.
    if is_norm(module):
        return bool(getattr(module, "track_running_stats", True))
    return _reads_mode(type(module))


def _reads_mode(kind: type[Any]) -> bool:
    """Return whether a method of a class reads ``self.training``."""
    for base in kind.__mro__:
        # The methods of these read the mode only to set or print it.
        if base in (nn.Module, object):
            continue
        for member in vars(base).values():
            code = getattr(member, "__code__", None)
            if code is not None and "training" in code.co_names and member.__name__ not in ("train", "eval"):
                return True
    return False
