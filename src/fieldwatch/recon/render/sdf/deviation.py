"""The learned sharpness of the surface of a signed distance field, within bounds."""

import math
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from fieldwatch import InputError

_EXPONENT = 10.0  # in s = exp(10 v), as in NeuS, so that v suits the learning rate of the other parameters


class Deviation(nn.Module):
    """The learned sharpness s = exp(10 v) of a surface (Wang 2021, NeuS), limited to bounds.

    The parameter v is clamped when it is read. At a bound, gradients that point outward are zero and gradients that
    point inward pass, so v neither diverges nor gets stuck (projected gradient descent).

    Args:
        initial: initial s in inverse units of distance; exp(10 * 0.3) in NeuS, exp(10 * 0.5) in SuperNormal and PMNI.
        lowest: smallest s.
        highest: largest s. Samples miss a surface much thinner than their spacing: keep this below a few times the
            inverse of the smallest step.

    Raises:
        InputError: 0 < lowest <= initial <= highest does not hold, or a value is not finite.
    """

    def __init__(self, initial: float = math.exp(3.0), lowest: float = 1.0, highest: float = 4096.0) -> None:
        super().__init__()
        if not 0 < lowest <= initial <= highest < math.inf:
            raise InputError(
                "the inverse deviation needs finite numbers with 0 < lowest <= initial <= highest, got lowest "
                f"{lowest}, initial {initial} and highest {highest}"
            )
        self.lowest = lowest
        self.highest = highest
        # A scalar in log space: s stays positive, and equal steps change it by equal factors.
        self.parameter = nn.Parameter(torch.tensor(math.log(initial) / _EXPONENT))

    @property
    def value(self) -> Float[Tensor, ""]:
        """The clamped v of s = exp(10 v), which the logs of NeuS and PMNI call s."""
        return cast("Tensor", _Held.apply(self.parameter, *self.bounds()))

    def forward(self) -> Float[Tensor, ""]:
        """Return the inverse deviation s."""
        return (_EXPONENT * self.value).exp()

    def bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest v."""
        return math.log(self.lowest) / _EXPONENT, math.log(self.highest) / _EXPONENT


class _Held(torch.autograd.Function):
    """Clamp that passes the gradient at a bound if a descent step leads back inside."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(value)
        cast("Any", ctx).bounds = low, high
        return value.clamp(low, high)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        (value,) = ctx.saved_tensors
        low, high = ctx.bounds
        # 1 at the low bound, where descent must not decrease v; -1 at the high one; 0 between them.
        side = (value <= low).to(value.dtype) - (value >= high).to(value.dtype)
        return torch.where(side * gradients[0] > 0, 0, gradients[0]), None, None
