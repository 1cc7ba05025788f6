"""Adapts the stored state of an optimizer to the optimizer of the run, which may use another implementation."""

from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.checkpoint.devices import placed_as
from fieldwatch.checkpoint.incident import StoredStateError

IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Settings that change how a step is computed but not its result; values set by the run take precedence."""
_LATER = ("decoupled_weight_decay",)
"""Settings that are determined by the class and that older versions of torch did not store."""
_HYPERPARAMETERS = frozenset(
    (
        *("alpha", "amsgrad", "betas", "centered", "dampening", "decoupled_weight_decay", "etas", "lambd", "lr_decay"),
        *("maximize", "momentum", "momentum_decay", "nesterov", "rho", "step_sizes", "t0", "weight_decay"),
    )
)
"""Hyperparameters of torch's optimizers that change the step; all other keys are labels of parameter groups."""
_ELEMENTWISE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf")


def fitted(optimizer: Optimizer, stored: Any, path: str) -> Any:
    """Return a stored state in the form that an optimizer can load.

    Optimizers that compute the same step may differ in their settings: one for a CPU has no ``fused``, one without
    weight decay may have no key for it. Missing settings are taken from the run's optimizer if they are off there.
    Settings of the implementation are taken from the run's optimizer wherever it sets them. Tensors among the settings
    are moved to its device.

    Args:
        optimizer: optimizer of the run.
        stored: stored return value of ``state_dict``.
        path: name of the optimizer in error messages.

    Raises:
        StoredStateError: if one of the optimizers uses a setting that the other does not have, so that their steps
            would differ.
    """
    state = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    groups = cast("list[dict[str, Any]]", state.get("param_groups", []))
    # torch reports a wrong number of groups itself.
    if len(groups) != len(optimizer.param_groups):
        return state
    fitting = [
        _fitted_group(optimizer, current, group, f"{path} group {number}")
        for number, (current, group) in enumerate(zip(optimizer.param_groups, groups, strict=True))
    ]
    return {**state, "param_groups": fitting}


def _fitted_group(optimizer: Optimizer, current: dict[str, Any], stored: dict[str, Any], where: str) -> dict[str, Any]:
    kind = type(optimizer).__name__
    for key, value in stored.items():
        if key in _HYPERPARAMETERS and key not in current and _in_use(value):
            raise StoredStateError(
                f"{where} was stored with {key}={value!r}, but {kind} has no such setting: {_ADVICE}"
            )
    # Unknown keys are kept, because they may be labels of the user's groups, except for those of the implementation.
    group = {key: value for key, value in stored.items() if key in current or key not in IMPLEMENTATION}
    for key in optimizer.defaults:
        current_value = current.get(key)
        if key in IMPLEMENTATION:
            group[key] = stored.get(key) if current_value is None else current_value
        elif key not in stored:
            if _in_use(current_value) and key not in _LATER:
                raise StoredStateError(
                    f"{where} was stored without {key}, but {kind} uses {key}={current_value!r}: {_ADVICE}"
                )
            group[key] = current_value
    return placed_as(group, {key: value for key, value in current.items() if key != "params"})


_ADVICE = "it was another optimizer; resume with the optimizer that the run started with, or start a new run"


def _in_use(value: Any) -> bool:
    return bool(value)


def check_moments(optimizer: Optimizer, path: str) -> None:
    """Check that the moments have the shapes of their parameters, which torch does not check.

    Raises:
        StoredStateError: if a shape differs.
    """
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            for key in _ELEMENTWISE:
                moment = state.get(key)
                # torch would load the moments and fail only in the next step.
                if isinstance(moment, Tensor) and moment.shape != parameter.shape:
                    shapes = (
                        f"{tuple(moment.shape)} in the checkpoint, its parameter {tuple(parameter.shape)} in the run"
                    )
                    where = f"{path} {key!r} of group {g}, parameter {p}"
                    raise StoredStateError(
                        f"{where} has shape {shapes}: create the parameters with the stored shape first"
                    )
