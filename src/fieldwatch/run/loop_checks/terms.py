"""`TermCheck`: loss terms from which no gradient reaches a tracked parameter."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from fieldwatch.measure import Terms
from fieldwatch.run.loop_checks.streaks import Streaks

MOST_NODES = 10_000
"""Maximum number of graph nodes to visit per term."""
AccumulateGrad: Any = torch._C._functions.AccumulateGrad  # noqa: SLF001  # pyright: ignore  torch has no public name for it
"""Node of the graph that adds to the gradient of a parameter."""


class TermCheck:
    """Determines from the autograd graph which terms train something; no gradient is computed.

    The graph of a term is walked until it has once reached a trained parameter. A term without a graph is detached.
    """

    def __init__(self) -> None:
        self._connected: set[str] = set()
        self._streaks = Streaks()
        self._last_step = -1

    def check(self, step: int, terms: Terms, trained: Callable[[], Collection[int]]) -> Iterator[dict[str, Any]]:
        """Yield the facts of each term without a gradient that has to be recorded; call it before terms are detached.

        Args:
            step: index of the step; only the first call of a step counts.
            terms: loss terms, with their graph.
            trained: function that returns the ids of all parameters that are trained.
        """
        # `total` is cached, so one flag tells whether the terms have a graph.
        if step == self._last_step or not terms.total.requires_grad:
            return
        self._last_step = step
        for name, (weight, value) in terms.items():
            connected = value.requires_grad and (name in self._connected or self._connects(name, value, trained))
            # A term with weight 0 is only recorded.
            if connected or (not isinstance(weight, Tensor) and weight == 0):
                self._streaks.end(name)
                continue
            steps = self._streaks.hold(name, step)
            if steps:
                first = self._streaks.start(name)
                yield {"term": name, "first": first, "steps": steps, "detached": not value.requires_grad}

    def _connects(self, name: str, value: Tensor, trained: Callable[[], Collection[int]]) -> bool:
        ids = trained()
        # Without any known parameter, there is nothing to reach.
        connects = not ids or reaches(value, ids)
        if connects:
            self._connected.add(name)
        return connects


def reaches(value: Tensor, ids: Collection[int]) -> bool:
    """Return whether a gradient of a value may reach one of the leaf tensors with the given ids.

    If the graph is too large, or contains a custom function that may hide a part of it (such as checkpointing), the
    answer is True.
    """
    if id(value) in ids:
        return True
    pending: list[Any] = [value.grad_fn]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if isinstance(node, AccumulateGrad) and id(node.variable) in ids:
            return True
        if isinstance(node, torch.autograd.function.BackwardCFunction) or len(seen) > MOST_NODES:
            return True
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return False
