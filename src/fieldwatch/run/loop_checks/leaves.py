"""`LeafCheck`: parameters that a loss depends on, but that no optimizer holds and no tracked module lists."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from fieldwatch.measure import Terms, norm
from fieldwatch.run.loop_checks.optimizers import WAIT
from fieldwatch.run.loop_checks.terms import AccumulateGrad
from fieldwatch.run.loop_checks.trainable import some_names, submodules_of

_MOST_NODES = 20_000
"""Maximum number of operations behind a loss that are visited, once per run."""
_OWN = frozenset(vars(nn.Module()))
"""Attributes in which a module lists its parameters, submodules and hooks."""
_MOST_PARTS = 64
"""Maximum number of entries of a list or mapping in which a module is searched."""


class LeafCheck:
    """Finds parameters behind the first loss of a run that nothing updates.

    The graph of a loss ends at its parameters, whoever holds them. A parameter counts if no optimizer of the run holds
    it, no tracked module lists it, and it has a gradient and the same values 32 updates later. So a parameter that an
    optimizer outside of the run updates does not count.
    """

    def __init__(self) -> None:
        self._leaves: list[ref[Tensor]] = []
        self._total = 0
        self._before: dict[int, Tensor] = {}
        self._due = 0
        self._walked = False
        self._done = False

    @property
    def pending(self) -> bool:
        """Whether parameters behind the first loss have to be looked at."""
        return self._walked and not self._done

    def walk(self, terms: Terms) -> None:
        """Note the parameters behind the first loss that has a graph; later calls return at once."""
        total = terms.total
        if self._walked or not total.requires_grad:
            return
        self._walked = True
        found = list(leaves_of(total))
        self._leaves = [ref(each) for each in found]
        self._total = sum(each.numel() for each in found)

    def check(
        self, updates: int, held: Collection[int], listed: Collection[int], modules: Mapping[str, nn.Module]
    ) -> dict[str, Any] | None:
        """Return the facts of an event if there are such parameters.

        Args:
            updates: number of updates before this one.
            held: ids of the parameters that optimizers hold.
            listed: ids of the parameters of the tracked modules.
            modules: tracked modules by name, in whose attributes the parameters are searched.
        """
        if not self.pending:
            return None
        alive = [each for leaf in self._leaves if (each := leaf()) is not None]
        loose = [each for each in alive if each.requires_grad and id(each) not in held and id(each) not in listed]
        if not loose or updates > 2 * WAIT:
            self._done = True
            return None
        if not self._before:
            with torch.no_grad():
                self._before = {id(each): norm(each) for each in loose}
            self._due = updates + WAIT
            return None
        if updates < self._due:
            return None
        self._done = True
        with torch.no_grad():
            # Read from the device once per run, and only if there are such parameters.
            same = [
                each
                for each in loose
                if each.grad is not None
                and id(each) in self._before
                and bool(torch.equal(norm(each), self._before[id(each)]))
            ]
        if not same:
            return None
        names = _names_of(same, modules)
        inside = [name for name in names if name]
        share = sum(each.numel() for each in same) / max(self._total, 1)
        shown = inside or [f"a parameter of shape {tuple(each.shape)}" for each in same]
        return some_names(shown) | {"share": share, "inside": len(inside), "updates": WAIT}


def leaves_of(value: Tensor) -> Iterator[nn.Parameter]:
    """Yield the parameters at which the graph of a value ends, each once."""
    pending: list[Any] = [value.grad_fn]
    seen = set(pending)
    while pending and len(seen) < _MOST_NODES:
        node = pending.pop()
        if isinstance(node, AccumulateGrad):
            # Inputs that require a gradient, as those of a gradient penalty, are no parameters.
            if isinstance(node.variable, nn.Parameter):
                yield node.variable
            continue
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def _names_of(parameters: Collection[Tensor], modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the path of each parameter in the plain attributes of the modules; empty where it is in none."""
    paths: dict[int, str] = {}
    for item, root in modules.items():
        for path, module in submodules_of(root, item):
            attributes = {key: each for key, each in vars(module).items() if key not in _OWN}
            for name, each in _spread(path, attributes):
                inside = each.named_parameters(prefix=name) if isinstance(each, nn.Module) else [(name, each)]
                for where, parameter in inside:
                    paths.setdefault(id(parameter), where)
    return [paths.get(id(each), "") for each in parameters]


def _spread(path: str, attributes: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Yield the modules and parameters among attributes, and in lists and mappings of them."""
    for key, value in attributes.items():
        entries: list[tuple[object, object]] = [("", value)]
        if isinstance(value, list | tuple):
            entries = [(at, each) for at, each in enumerate(cast("list[object]", value)[:_MOST_PARTS])]
        elif isinstance(value, Mapping):
            entries = list(cast("Mapping[object, object]", value).items())[:_MOST_PARTS]
        for index, each in entries:
            if isinstance(each, nn.Module | nn.Parameter):
                yield f"{path}.{key}" + (f".{index}" if index != "" else ""), each
