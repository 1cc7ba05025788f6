"""`OptimizerCheck`: trained parameters that no optimizer updates, and parameters that no module has any more."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.measure import norm
from fieldwatch.run.loop_checks.trainable import ModuleParameters, some_names
from fieldwatch.run.tracked_objects import optimizers_in

WAIT = 32
"""Number of updates within which an optimizer that the run does not know would change a parameter."""

_KEPT = 4
"""Number of renewals after which only the newest optimizers are held."""


class OptimizerCheck:
    """Compares the parameters of the modules with those of the optimizers.

    A parameter counts as forgotten if it has gradients, no known optimizer holds it, and it does not change within
    32 updates. So neither an average of weights nor a parameter with an optimizer of its own counts. The values are
    compared only if there are such parameters, with one read from the device.
    """

    def __init__(self) -> None:
        self._optimizers: dict[int, Optimizer] = {}
        self._suspects: dict[str, Tensor] = {}
        self._due = 0
        self._pause = WAIT
        self._reported: set[str] = set()
        self._renewals = 0

    def add_items(self, items: Mapping[str, Any]) -> None:
        """Add the optimizers among the tracked items."""
        self.add(list(optimizers_in(items)))

    def add(self, optimizers: Sequence[Optimizer]) -> None:
        """Add optimizers that the loop uses."""
        for optimizer in optimizers:
            self._optimizers[id(optimizer)] = optimizer

    def renewed(self, optimizers: Sequence[Optimizer], updates: int) -> dict[str, Any] | None:
        """Return the facts of an event if the loop makes its optimizers anew again and again; call it before `add`.

        Args:
            optimizers: optimizers of this update.
            updates: number of updates so far.
        """
        fresh = [each for each in optimizers if updates and id(each) not in self._optimizers]
        if not fresh:
            return None
        known = self.held()
        replaced = [
            each for each in fresh if any(id(p) in known for group in each.param_groups for p in group["params"])
        ]
        if not replaced:
            return None
        self._renewals += 1
        # The old ones hold moments of all parameters.
        if self._renewals > _KEPT:
            self._optimizers.clear()
        # At powers of two, so that no loop floods the log.
        if self._renewals & (self._renewals - 1):
            return None
        return {"renewals": self._renewals, "updates": updates, "optimizer": type(replaced[0]).__name__}

    def held(self) -> set[int]:
        """Return the ids of all parameters that the known optimizers hold."""
        return {id(parameter) for parameter in self._parameters()}

    def restart(self) -> None:
        """Compare again from the next update on, because parameters were replaced or unfrozen."""
        self._suspects = {}
        self._pause = WAIT
        self._due = 0

    def check(self, parameters: ModuleParameters, update: int) -> dict[str, Any] | None:
        """Return the facts of an event if there are forgotten parameters; call it at every update.

        Args:
            parameters: parameters of the modules.
            update: number of this update.
        """
        if update < self._due:
            return None
        suspects = self._suspects
        now = self._missing(parameters)
        both = [name for name in now if name in suspects]
        # Read from the device, which happens only if a parameter with a gradient is in no known optimizer.
        same = [bool(torch.equal(now[name], suspects[name])) for name in both]
        found = [name for name, unchanged in zip(both, same, strict=True) if unchanged]
        self._reported.update(found)
        self._suspects = {name: value for name, value in now.items() if name not in self._reported}
        # Other parameters may get a gradient later: look again, less and less often.
        self._pause *= 2
        self._due = update + (WAIT if self._suspects and not suspects else self._pause)
        return some_names(found) | {"updates": WAIT, "replaced": self._stale(parameters)} if found else None

    def _missing(self, parameters: ModuleParameters) -> dict[str, Tensor]:
        """Return the norm of each trainable parameter with a gradient that is in no known optimizer."""
        held = self.held()
        rows = zip(parameters.names, parameters.read(), strict=True)
        missing = {name: p for name, p in rows if p.requires_grad and id(p) not in held and p.grad is not None}
        with torch.no_grad():
            return {name: norm(parameter) for name, parameter in missing.items() if name not in self._reported}

    def _stale(self, parameters: ModuleParameters) -> int:
        """Return the number of parameters without a gradient that only optimizers hold."""
        present = {id(parameter) for parameter in parameters.read()}
        return sum(p.grad is None and id(p) not in present for p in self._parameters())

    def _parameters(self) -> Iterator[Tensor]:
        groups = (group for optimizer in self._optimizers.values() for group in optimizer.param_groups)
        return (parameter for group in groups for parameter in group["params"])
