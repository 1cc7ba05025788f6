"""Bit allocation: fewer bits for tensors whose quantization costs little, within a budget of squared error."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .quantization import quantize
from .tensors import FEWEST, values_of


@torch.no_grad()
def allocate_bits(
    state: Mapping[str, Tensor],
    error: Callable[[Mapping[str, Tensor]], float],
    budget: float,
    *,
    least: int = 2,
    most: int = 8,
) -> dict[str, int]:
    """Return bits per tensor, for `CodecOptions(by_prefix=...)`.

    Every tensor is quantized alone to ``least`` bits, where its added error is largest and dominates that of a model
    that is not exactly at its minimum. Errors of different tensors are assumed to add up, and each further bit to
    quarter them (uniform quantization at high rate). With this model, bits are removed one at a time from the tensor
    that saves most per added error, while the sum stays within the budget.

    Args:
        state: weights of the model.
        error: mean squared error of the model with given weights over some frames; called once per tensor + 1.
        budget: mean squared error that quantization may add; if too small for ``most`` bits, all tensors keep ``most``.
        least: minimum bits per symbol.
        most: bits per symbol to start from.

    Raises:
        ValueError: the budget is not positive, or least is above most.
    """
    if not (math.isfinite(budget) and budget > 0 and 1 <= least <= most <= 12):
        msg = f"expected a budget > 0 and 1 <= least <= most <= 12 bits, got {budget} and {least} to {most} bits"
        raise ValueError(msg)
    # The error of the unquantized model, which is subtracted from all others.
    exact = error(state)
    sizes = {name: t.numel() for name, t in state.items() if t.is_floating_point() and t.numel() >= FEWEST}
    added = {}
    for name in sizes:
        rounded = values_of(quantize(state[name], least), state[name].dtype).to(state[name].device)
        # Rounding may by chance improve a model that is not at its minimum; other tensors must not benefit from it.
        added[name] = max(error({**state, name: rounded}) - exact, 0.0)
    return _take(sizes, added, budget, range(least, most + 1))


def _take(sizes: Mapping[str, int], added: Mapping[str, float], budget: float, allowed: range) -> dict[str, int]:
    """Greedily remove bits from the tensor with the least added error per bit saved until none fits the budget."""
    bits = dict.fromkeys(sizes, allowed[-1])
    # Measured at the fewest bits; each further bit quarters it.
    costs = {name: added[name] * 4.0 ** (allowed[0] - allowed[-1]) for name in sizes}
    while True:
        # Removing a bit quadruples the error, which adds three times its value.
        step = {name: 3 * costs[name] for name in sizes if bits[name] > allowed[0]}
        left = budget - sum(costs.values())
        fitting = [name for name in step if step[name] <= left]
        if not fitting:
            return bits
        chosen = min(fitting, key=lambda name: step[name] / sizes[name])
        bits[chosen] -= 1
        costs[chosen] += step[chosen]
