"""An optimizer step that does not happen when the step is bad: parameters, moments and counters stay as they were."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

_stepped: weakref.WeakKeyDictionary[Optimizer, frozenset[int]] = weakref.WeakKeyDictionary()
"""Per optimizer, the parameters (by id) that it has stepped before, so whose state exists."""


def guarded_step(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step the optimizer, unless ``refused`` is 1.

    Fused optimizers skip by themselves (``found_inf``), without a host read. Others step, and every parameter and state
    tensor is chosen anew by ``torch.where``, without a host read. Where neither can be, the flag is read and the step
    called or not: at a parameter's very first step, which makes its state (a fused SGD that skips it would keep an
    uninitialised momentum), and for state kept as Python numbers or on another device.

    Args:
        optimizer: any optimizer whose ``step`` needs no closure.
        refused: 1.0 to leave everything untouched, 0.0 to step; on the parameters' device.

    Source: the AMP convention of torch's fused optimizers (``found_inf``), used without loss scaling.
    """
    if _first_of_any(optimizer):
        _reading(optimizer, refused)
    elif getattr(optimizer, "_step_supports_amp_scaling", False):
        _fused(optimizer, refused)
    elif _choosable(optimizer, refused):
        _choosing(optimizer, refused)
    else:
        _reading(optimizer, refused)


def forget_steps() -> None:
    """Take every optimizer for new: their state was put back, to before some of it existed perhaps."""
    _stepped.clear()


def _fused(optimizer: Optimizer, refused: Tensor) -> None:
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]  torch reads these two off the object
    optimizer.found_inf = refused  # pyright: ignore[reportAttributeAccessIssue]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]


def _choosing(optimizer: Optimizer, refused: Tensor) -> None:
    with torch.no_grad():
        slots = list(_touched(optimizer))
        before = [container[key].clone() for container, key in slots]
        optimizer.step()
        keep = refused > 0
        for (container, key), old in zip(slots, before, strict=True):
            container[key].copy_(torch.where(keep, old, container[key]))


def _reading(optimizer: Optimizer, refused: Tensor) -> None:
    if not bool(refused):
        optimizer.step()
        _stepped[optimizer] = frozenset(id(p) for p in _with_gradient(optimizer))


def _first_of_any(optimizer: Optimizer) -> bool:
    known = _stepped.get(optimizer, frozenset())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known and parameter.grad is not None:
                return True
    return False


def _choosable(optimizer: Optimizer, refused: Tensor) -> bool:
    state = (value for parameter in _with_gradient(optimizer) for value in optimizer.state.get(parameter, {}).values())
    return all(value is None or (isinstance(value, Tensor) and value.device == refused.device) for value in state)


def _touched(optimizer: Optimizer) -> Iterator[tuple[Any, Any]]:
    """Where each parameter and each state tensor is kept: a step may put a new tensor in the old one's place."""
    for group in optimizer.param_groups:
        parameters = group["params"]
        yield from ((parameters, i) for i, parameter in enumerate(parameters) if parameter.grad is not None)
    for parameter in _with_gradient(optimizer):
        state = optimizer.state.get(parameter, {})
        yield from ((state, key) for key, value in state.items() if isinstance(value, Tensor))


def _with_gradient(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)
