"""Optimizer state of the Gaussians when rows are added or removed."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.optim import Optimizer


def replace_parameter(
    optimizers: Sequence[Optimizer], old: nn.Parameter, new: nn.Parameter, surviving: Int[Tensor, " surviving"] | None
) -> None:
    """Replace a parameter in all optimizers and keep the state of surviving rows.

    State with one row per Gaussian keeps the rows `surviving` and is zero for new rows, as in the published code of
    3DGS (Kerbl 2023) and in gsplat. Other state, such as the step count, is kept.

    Args:
        optimizers: all optimizers that may update the parameter.
        old: current parameter.
        new: new parameter.
        surviving: rows of the old parameter that are the first rows of the new one; None if the new parameter is
            unrelated: then state is kept only if it already has the new shape.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
        # Optimizer state is keyed by the parameter object, so it has to move to the new one.
        state = optimizer.state.pop(old, None)
        if state is None:
            continue
        if surviving is not None:
            optimizer.state[new] = {name: _carried_over(value, old, new, surviving) for name, value in state.items()}
        # If the optimizer was restored before its Gaussians, its moments already have the new number of rows.
        elif all(not isinstance(v, Tensor) or v.dim() == 0 or v.shape == new.shape for v in state.values()):
            optimizer.state[new] = state


def _carried_over(value: Any, old: Tensor, new: Tensor, surviving: Int[Tensor, " surviving"]) -> Any:
    if not isinstance(value, Tensor) or value.shape != old.shape:
        return value
    carried = value.new_zeros(new.shape)
    # In place, to avoid a second copy of the surviving rows, which are most of the memory.
    torch.index_select(value, 0, surviving, out=carried[: len(surviving)])
    return carried


def clear_moments(optimizers: Sequence[Optimizer], parameter: Tensor, rows: Int[Tensor, " rows"] | None = None) -> None:
    """Set the moments of the given rows of a parameter to zero; None clears all rows."""
    for optimizer in optimizers:
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                if rows is None:
                    value.zero_()
                else:
                    value[rows] = 0
