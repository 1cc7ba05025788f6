"""Optimizers of torch that do not load its compiler.

torch (2.13) wraps methods of its optimizers, so that `torch.compile` leaves them alone. The wrappers import
`torch._dynamo` at their first call, and with it sympy, FSDP and the exporters: a second of processor time, in programs
that compile nothing, too. The classes of this module call the wrapped methods instead, which compute the same numbers.
They cannot be compiled.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

_adam_step: Callable[..., Any] = inspect.unwrap(torch.optim.Adam.step)


class EagerOptimizer(Optimizer):
    """Base class of optimizers whose methods are never compiled, and do not load the compiler."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


class Adam(EagerOptimizer, torch.optim.Adam):
    """`torch.optim.Adam`, never compiled and not differentiable."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient; return the loss of the closure."""
        return _adam_step(self, closure)
