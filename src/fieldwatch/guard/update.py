"""An optimizer step that does not happen when the step is bad: parameters, moments and counters stay as they were."""

import inspect
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

_stepped_parameters: weakref.WeakKeyDictionary[Optimizer, frozenset[int]] = weakref.WeakKeyDictionary()
"""Per optimizer, the parameters (by id) that it has stepped before, so whose state exists."""
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""The optimizers of torch with a fused implementation for CUDA that honors ``found_inf``."""


def guarded_step(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step the optimizer, unless ``refused`` is 1.

    On a CPU the flag is read (under a microsecond) and the step is made or not. On a GPU reading it would make the host
    wait, so fused optimizers skip by themselves (``found_inf``), and of all others every parameter and state tensor is
    copied and chosen by ``torch.where``. Where neither is possible the flag is read on a GPU too: at a parameter's very
    first step, which creates its state (a fused SGD that skips it would keep an uninitialized momentum), and for state
    that is kept as Python numbers or on another device.

    Args:
        optimizer: any optimizer whose ``step`` needs no closure.
        refused: 1.0 to leave everything untouched, 0.0 to step; on the parameters' device.

    Raises:
        TypeError: the optimizer's ``step`` needs a closure (LBFGS).

    Source: the AMP convention of torch's fused optimizers (``found_inf``), used without loss scaling.
    """
    if _needs_closure(type(optimizer)):
        raise TypeError(
            f"step.update(...) cannot guard {type(optimizer).__name__}: its step() expects a closure that runs the "
            "model several times; call optimizer.step(closure) yourself, without step.update(...)"
        )
    # From the cheapest way to the last resort; only the branches that read the flag on a GPU make the host wait.
    if reading_is_free(refused) or _creates_state(optimizer):
        step_if_allowed(optimizer, refused)
    elif skips_by_itself(optimizer):
        step_with_found_inf(optimizer, refused)
    elif _state_is_selectable(optimizer, refused):
        step_and_restore(optimizer, refused)
    else:
        step_if_allowed(optimizer, refused)


def reading_is_free(flag: Float[Tensor, ""]) -> bool:
    """Whether the host can read the flag without waiting for a device."""
    return flag.device.type == "cpu"


def forget_steps() -> None:
    """Treat every optimizer as new: its state was restored, perhaps to a moment before some of it existed."""
    _stepped_parameters.clear()


def skips_by_itself(optimizer: Optimizer) -> bool:
    """Whether the optimizer leaves everything untouched when ``found_inf`` is 1, without a host read."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def prefer_fused(optimizer: Optimizer) -> bool:
    """Switch an optimizer to its fused implementation, if it has one and nobody chose otherwise.

    A fused optimizer skips a bad step on the device; any other pays for a copy of all that it touches at every step.
    ``fused=False`` and ``foreach=True`` count as a choice and stay. Existing state is kept; step counters move to their
    parameter's device, where the fused kernels expect them.

    Args:
        optimizer: of torch; any other stays as it is.

    Returns:
        Whether it was switched.
    """
    if type(optimizer) not in _FUSED or skips_by_itself(optimizer):
        return False
    if not all(_can_be_fused(group) for group in optimizer.param_groups):
        return False
    # Defaults too: groups that are added later take their settings from there.
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"] = True
        group["foreach"] = False
    optimizer._step_supports_amp_scaling = True  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]  as torch's constructors set it
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(device=parameter.device, dtype=torch.float32)
    return True


def step_if_allowed(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Read the flag, and step unless it is 1."""
    if not bool(refused):
        optimizer.step()
        if not reading_is_free(refused):  # else nobody asks whether this is a first step
            _stepped_parameters[optimizer] = frozenset(id(p) for p in _with_gradient(optimizer))


def step_with_found_inf(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step a fused optimizer, which skips by itself; no host read."""
    # torch's GradScaler hands both over in the same way; None stands for no loss scaling.
    optimizer.grad_scale = None  # pyright: ignore[reportAttributeAccessIssue]  torch reads these two off the object
    optimizer.found_inf = refused  # pyright: ignore[reportAttributeAccessIssue]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]


def step_and_restore(optimizer: Optimizer, refused: Float[Tensor, ""]) -> None:
    """Step, then put back a copy of everything if the flag is 1; no host read."""
    with torch.no_grad():
        # Slots, not tensors: a step may put a new tensor in the place of the old one.
        slots = list(_tensor_slots(optimizer))
        before = [container[key].clone() for container, key in slots]
        optimizer.step()
        restore = refused > 0
        for (container, key), old in zip(slots, before, strict=True):
            container[key].copy_(torch.where(restore, old, container[key]))


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
            # Without a gradient the optimizer passes over the parameter, and makes no state for it.
            if id(parameter) not in known and parameter.grad is not None:
                return True
    return False


def _state_is_selectable(optimizer: Optimizer, refused: Tensor) -> bool:
    # Numbers of Python and tensors on another device cannot be chosen by a flag on this one.
    state = (value for parameter in _with_gradient(optimizer) for value in optimizer.state.get(parameter, {}).values())
    return all(value is None or (isinstance(value, Tensor) and value.device == refused.device) for value in state)


def _tensor_slots(optimizer: Optimizer) -> Iterator[tuple[Any, Any]]:
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
