"""Gradients that are still there when the next ones are added: of the previous update, or of another loss."""

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.measure import norm

CLEARED = 256
"""Number of updates with new gradient tensors after which an optimizer is no longer checked."""
REUSED = 2
"""Number of updates with the same gradient tensor after which its values are checked."""
MIXED = 8
"""Number of updates with gradients of another loss after which they are recorded."""
MIXED_UPDATES = 256
"""Number of updates within which they are looked for."""
ROWS = 24
"""Number of updates at which the values are recorded."""


class UnclearedGradients:
    """Measures, in one parameter of each optimizer, how much gradient is left when a backward pass adds to it.

    ``zero_grad()`` drops the gradient tensors, so a new tensor at each update proves that they were cleared. Only if
    the tensor stays the same, a hook reads it before each backward pass adds to it: zeros mean that it was cleared in
    place. Micro-batches that accumulate are no reason to measure anything, since the gradients are cleared between two
    updates.
    """

    def __init__(self) -> None:
        self._watches: weakref.WeakKeyDictionary[Optimizer, _Watch] = weakref.WeakKeyDictionary()
        # Optimizers that are no longer checked, all of the latest update.
        self._cleared: Sequence[Optimizer] = ()

    def check(self, optimizers: Sequence[Optimizer]) -> Float[Tensor, ""] | None:
        """Return the largest norm of gradients that were left over, on the device; None if nothing was measured."""
        if optimizers == self._cleared:
            return None
        self._cleared = ()
        left: list[Tensor] = []
        done = True
        for optimizer in optimizers:
            watch = self._watches.get(optimizer)
            if watch is None:
                watch = self._watches[optimizer] = _Watch()
            done = done and watch.done
            value = None if watch.done else watch.check(optimizer)
            if value is not None:
                left.append(value)
        if done:
            self._cleared = tuple(optimizers)
        if len(left) < 2:
            return left[0] if left else None
        return torch.stack([value.to(left[0].device) for value in left]).max()


class ForeignGradients:
    """Looks for gradients that the loss of one optimizer leaves in the parameters of another one.

    They are there at the update of the first one, and when the second one is updated, one backward pass has added to
    the same tensor: nothing has cleared it meanwhile, which would have written to it as well, or replaced it.
    """

    def __init__(self) -> None:
        self.done = False
        self._left: weakref.WeakKeyDictionary[Optimizer, _Left] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._updates = 0
        self._count = 0

    def check(self, optimizers: Sequence[Optimizer]) -> dict[str, Any] | None:
        """Return the facts of an event once such gradients were found often enough; call it before each update."""
        self._updates += 1
        self.done = self._updates >= MIXED_UPDATES
        found = None
        for optimizer in optimizers:
            left = self._left.pop(optimizer, None)
            if left is not None and left.was_added_to():
                self._count += 1
                if self._count == MIXED:
                    self.done = True
                    found = {
                        "optimizer": type(optimizer).__name__,
                        "parameters": left.shape(),
                        "updates": self._updates,
                    }
            self._known.add(optimizer)
        for other in self._known:
            if other not in optimizers:
                parameter = _first_with_gradient(other)
                if parameter is None:
                    self._left.pop(other, None)
                else:
                    self._left[other] = _Left(parameter)
        return found


class _Left:
    """Gradient of a parameter at the update of other ones."""

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = weakref.ref(parameter)
        self._gradient = weakref.ref(cast("Tensor", parameter.grad))
        self._version = cast("Tensor", parameter.grad)._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  torch has no public name for it

    def was_added_to(self) -> bool:
        """Return whether the same tensor has been written to exactly once since then."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or gradient is not self._gradient():
            return False
        return gradient._version == self._version + 1  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the same

    def shape(self) -> list[int]:
        """Return the shape of the parameter."""
        parameter = self._parameter()
        return [] if parameter is None else list(parameter.shape)


class _Watch:
    """State of one optimizer."""

    def __init__(self) -> None:
        self.done = False
        self._gradient: weakref.ref[Tensor] | None = None
        self._parameter: weakref.ref[Tensor] | None = None
        self._cleared = 0
        self._reused = 0
        self._handle: Any = None
        self._left: Tensor | None = None
        self._rows = 0

    def check(self, optimizer: Optimizer) -> Tensor | None:
        """Return what was left since the last update; None if it is not measured."""
        if self._handle is not None:
            return self._measured()
        parameter = _first_with_gradient(optimizer)
        gradient = None if parameter is None else parameter.grad
        if parameter is None or gradient is None:
            return None
        # A weak reference, because a new tensor may get the id of a freed one.
        if self._gradient is not None and self._gradient() is gradient:
            self._reused += 1
        else:
            self._reused = 0
            self._cleared += 1
            self._gradient = weakref.ref(gradient)
        if self._reused >= REUSED:
            self._parameter = weakref.ref(parameter)
            self._handle = cast("Any", parameter).register_hook(self._before_addition)
        self.done = self._cleared >= CLEARED
        return None

    def _measured(self) -> Tensor | None:
        left = self._left
        self._left = None
        self._rows += 1
        if self._rows >= ROWS:
            self._handle.remove()
            self.done = True
        return left

    def _before_addition(self, added: Tensor) -> None:
        """Measure the gradient before a backward pass adds to it; returns None, so nothing is changed."""
        parameter = None if self._parameter is None else self._parameter()
        gradient = None if parameter is None else parameter.grad
        with torch.no_grad():
            left = added.new_zeros(()) if gradient is None else norm(gradient)
            # Several backward passes may add to it: if one of them found zeros, the gradient was cleared.
            self._left = left if self._left is None else torch.minimum(self._left, left)


def _first_with_gradient(optimizer: Optimizer) -> Tensor | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.layout is torch.strided:
                return parameter
    return None
