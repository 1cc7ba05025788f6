"""Optimizer steps that leave parameters, moments and counters untouched if a device flag refuses the update."""

import inspect
import weakref
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.guard.verdict import reading_is_free

_stepped_parameters: weakref.WeakKeyDictionary[Optimizer, frozenset[int]] = weakref.WeakKeyDictionary()
"""Optimizer to the ids of the parameters that it has stepped before, whose state therefore exists."""
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""torch optimizers with a fused CUDA implementation that honors ``found_inf``."""


def guarded_step(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step the optimizer, unless ``refused`` is 1.

    On a CPU the flag is simply read (in less than a microsecond). On a GPU, reading it would synchronize, so fused
    optimizers skip the step on the device (``found_inf``), and for all others every parameter and state tensor is
    copied first and restored with ``torch.where``. The flag is read on a GPU only if neither is possible: at a
    parameter's first step, which creates its state (a fused SGD that skipped it would keep an uninitialized momentum
    buffer), and for state that consists of Python numbers or is on another device.

    Args:
        optimizer: any optimizer whose ``step`` does not require a closure.
        refused: 1.0 to leave everything untouched, 0.0 to step; on the parameters' device.

    Raises:
        TypeError: the optimizer's ``step`` requires a closure (LBFGS).

    Source: the AMP convention of torch's fused optimizers (``found_inf``), used without loss scaling.
    """
    if _needs_closure(type(optimizer)):
        raise TypeError(
            f"{type(optimizer).__name__}.step() expects a closure that runs the model several times, got none: call "
            "step.update(optimizer, closure=closure)"
        )
    # From the cheapest method to the most expensive one; only these two read the flag (the second waits for a GPU).
    if reading_is_free(refused):
        if not bool(refused):
            optimizer.step()
    elif _creates_state(optimizer):
        step_if_allowed(optimizer, refused)
    elif skips_by_itself(optimizer):
        step_with_found_inf(optimizer, refused)
    elif _state_is_selectable(optimizer, refused):
        step_and_restore(optimizer, refused)
    else:
        step_if_allowed(optimizer, refused)


def forget_steps() -> None:
    """Treat every optimizer as new, since restored state may lack entries that existed before."""
    _stepped_parameters.clear()


def skips_by_itself(optimizer: Optimizer) -> bool:
    """Return whether the optimizer skips its step on the device if ``found_inf`` is 1."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    # State from before `prefer_fused`, once restored, has also restored the implementation of that time.
    return type(optimizer) not in _FUSED or all(group.get("fused") for group in optimizer.param_groups)


def prefer_fused(optimizer: Optimizer) -> bool:
    """Switch an optimizer to its fused implementation, if it has one and the user did not choose another.

    A fused optimizer skips a refused step on the device; any other needs a copy of its parameters and state at every
    step. ``fused=False`` and ``foreach=True`` are explicit choices and are respected. Existing state is kept; step
    counters move to their parameter's device, where the fused kernels expect them.

    Args:
        optimizer: optimizer to switch; only those of torch are changed.

    Returns:
        Whether the optimizer was switched.
    """
    if type(optimizer) not in _FUSED or skips_by_itself(optimizer):
        return False
    if not all(_can_be_fused(group) for group in optimizer.param_groups):
        return False
    # Change the defaults too, since groups that are added later take their settings from them.
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"] = True
        group["foreach"] = False
    optimizer._step_supports_amp_scaling = True  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  as torch's constructors set it
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
    return True


def step_if_allowed(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Read the flag of a GPU, which synchronizes, and step unless it is 1."""
    if not bool(refused):
        optimizer.step()
        _stepped_parameters[optimizer] = frozenset(id(p) for p in _with_gradient(optimizer))


def step_with_found_inf(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step a fused optimizer, which checks the flag on the device; does not synchronize."""
    # torch's GradScaler passes both in the same way; None disables loss scaling.
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]  torch reads these two off the object
    optimizer.found_inf = refused  # pyright: ignore[reportAttributeAccessIssue]
    try:
        optimizer.step()
    finally:
        # Otherwise a later call of optimizer.step() by the loop itself would be skipped too.
        del optimizer.grad_scale, optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]


def step_and_restore(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step, then restore a copy of parameters and state if the flag is 1; does not synchronize."""
    with torch.no_grad():
        # Keep (container, key) pairs instead of tensors: a step may replace a tensor by a new one.
        slots = list(_tensor_slots(optimizer))
        before = [container[key].clone() for container, key in slots]
        optimizer.step()
        restore = refused > 0
        for (container, key), old in zip(slots, before, strict=True):
            container[key].copy_(torch.where(restore, old, container[key]))


class StateCopy:
    """Copy of the parameters and the state of an optimizer, for one that runs the model within its step.

    Args:
        optimizer: optimizer to copy.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        with torch.no_grad():
            self._parameters = [(p, p.detach().clone()) for group in optimizer.param_groups for p in group["params"]]
        self._state = {parameter: deepcopy(state) for parameter, state in optimizer.state.items()}

    def restore(self) -> None:
        """Write the copy back. Call it only once: the optimizer uses the copied state from then on."""
        with torch.no_grad():
            for parameter, before in self._parameters:
                parameter.copy_(before)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def parameters_finite(optimizer: Optimizer) -> bool:
    """Return whether all parameters of an optimizer are finite; reads them from their device."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return all(bool(torch.isfinite(parameter).all()) for parameter in parameters)


@cache
def _needs_closure(kind: type[Optimizer]) -> bool:
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _can_be_fused(group: Mapping[str, Any]) -> bool:
    chosen = group["fused"] is False or group["foreach"] is True
    return not chosen and not group["differentiable"] and all(p.is_floating_point() for p in group["params"])


def _creates_state(optimizer: Optimizer) -> bool:
    known = _stepped_parameters.get(optimizer, frozenset())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # The optimizer ignores a parameter without a gradient, and creates no state for it.
            if id(parameter) not in known and parameter.grad is not None:
                return True
    return False


def _state_is_selectable(optimizer: Optimizer, refused: Tensor) -> bool:
    # torch.where cannot select Python numbers, or tensors on another device than the flag.
    state = (value for parameter in _with_gradient(optimizer) for value in optimizer.state.get(parameter, {}).values())
    return all(value is None or (isinstance(value, Tensor) and value.device == refused.device) for value in state)


def _tensor_slots(optimizer: Optimizer) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of each parameter and state tensor; a step may replace the tensor stored there."""
    for group in optimizer.param_groups:
        parameters = group["params"]
        yield from ((parameters, i) for i, parameter in enumerate(parameters) if parameter.grad is not None)
    for parameter in _with_gradient(optimizer):
        state = optimizer.state.get(parameter, {})
        yield from ((state, key) for key, value in state.items() if isinstance(value, Tensor))


def _with_gradient(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)
