"""A stored optimizer's state, fitted to the optimizer of this run: another device may mean another kind of it."""

from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.checkpoint.devices import placed_as
from fieldwatch.checkpoint.incident import StoredStateError

IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Settings that say how a step is computed, not which: where this run's code sets them, its choice counts."""
_LATER = ("decoupled_weight_decay",)
"""Settings that follow from the class and that older versions of torch did not store."""
_HYPERPARAMETERS = frozenset(
    (
        *("alpha", "amsgrad", "betas", "centered", "dampening", "decoupled_weight_decay", "etas", "lambd", "lr_decay"),
        *("maximize", "momentum", "momentum_decay", "nesterov", "rho", "step_sizes", "t0", "weight_decay"),
    )
)
"""What an optimizer of torch may be told about the step itself; a key that is not here is a label or a note."""
_ELEMENTWISE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf")


def fitted(optimizer: Optimizer, stored: Any, path: str) -> Any:
    """Return a stored state as this optimizer takes it.

    Two optimizers that do the same step differ in their settings: one for a CPU has no ``fused``, one without weight
    decay has no key for it. Settings that the stored one lacks come from this run's optimizer, where they are off;
    settings about the implementation come from it wherever it sets them; tensors among the settings go to its device.

    Args:
        optimizer: of this run.
        stored: what ``state_dict`` returned when the checkpoint was made.
        path: how to name it in an error.

    Raises:
        StoredStateError: one of them has a setting in use that the other does not know: their steps would differ.
    """
    state = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
    groups = cast("list[dict[str, Any]]", state.get("param_groups", []))
    if len(groups) != len(optimizer.param_groups):
        return state  # torch says what is wrong with it
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
                f"{where} was stored with {key}={value!r}, and {kind} has no such setting: {_ADVICE}"
            )
    # Unknown keys stay, since they may be labels of the user's groups; settings about the implementation do not.
    group = {key: value for key, value in stored.items() if key in current or key not in IMPLEMENTATION}
    for key in optimizer.defaults:
        own_value = current.get(key)
        if key in IMPLEMENTATION:
            group[key] = stored.get(key) if own_value is None else own_value
        elif key not in stored:
            if _in_use(own_value) and key not in _LATER:
                raise StoredStateError(
                    f"{where} was stored without {key}, and {kind} uses {key}={own_value!r}: {_ADVICE}"
                )
            group[key] = own_value
    return placed_as(group, {key: value for key, value in current.items() if key != "params"})


_ADVICE = "it was another optimizer; resume with the one that the run began with, or start the optimizer anew"


def _in_use(value: Any) -> bool:
    return bool(value)


def check_moments(optimizer: Optimizer, path: str) -> None:
    """Compare the moments' shapes with the parameters', which torch itself does not.

    Raises:
        StoredStateError: they differ.
    """
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter, {})
            for key in _ELEMENTWISE:
                moment = state.get(key)
                if isinstance(moment, Tensor) and moment.shape != parameter.shape:
                    shapes = (
                        f"{tuple(moment.shape)} in the checkpoint, its parameter {tuple(parameter.shape)} in the run"
                    )
                    where = f"{path} {key!r} of group {g}, parameter {p}"
                    raise StoredStateError(f"{where} has shape {shapes}: restore the parameters' count first")
