"""How sharp the surface of a signed distance field is: one learned number, inside bounds."""

import math
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from fieldwatch import InputError

_EXPONENT = 10.0  # of s = exp(10 v), as in NeuS: v is learned at the rate of the other parameters


class Deviation(nn.Module):
    """The learned sharpness s = exp(10 v) of a surface (Wang 2021, NeuS), inside bounds that it cannot leave.

    v is one parameter, held to its bounds where it is read. At a bound, gradients that push further out end, those that
    lead back pass: v neither runs off nor gets stuck (projected gradient descent).

    Args:
        initial: s to begin with, in one over the unit of distances; exp(10 * 0.3) in NeuS, exp(10 * 0.5) in SuperNormal
            and PMNI.
        lowest: s is never below this.
        highest: s is never above this. A surface much thinner than the step between samples is not seen by them: keep
            it below a few times one over the smallest step.

    Raises:
        InputError: not 0 < lowest <= initial <= highest, or one of them not finite.
    """

    def __init__(self, initial: float = math.exp(3.0), lowest: float = 1.0, highest: float = 4096.0) -> None:
        super().__init__()
        if not 0 < lowest <= initial <= highest < math.inf:
            raise InputError(
                f"the inverse deviation starts at {initial} with bounds {lowest} and {highest}: choose finite numbers "
                "with 0 < lowest <= initial <= highest"
            )
        self.lowest = lowest
        self.highest = highest
        self.parameter = nn.Parameter(torch.tensor(math.log(initial) / _EXPONENT))

    @property
    def value(self) -> Float[Tensor, ""]:
        """The v of s = exp(10 v): what the logs of NeuS and PMNI call s."""
        low, high = (math.log(bound) / _EXPONENT for bound in (self.lowest, self.highest))
        return cast("Tensor", _Held.apply(self.parameter, low, high))

    def forward(self) -> Float[Tensor, ""]:
        """Return the inverse deviation s."""
        return (_EXPONENT * self.value).exp()


class _Held(torch.autograd.Function):
    """Clamp whose gradient passes where a step along it leads back between the bounds."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, low: float, high: float) -> Tensor:
        # 1 at the lower bound, -1 at the upper one, 0 between them.
        ctx.save_for_backward((value <= low).to(value.dtype) - (value >= high).to(value.dtype))
        return value.clamp(low, high)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        (side,) = ctx.saved_tensors  # 1 at the low bound, where descent must not lower further; -1 at the high one
        return torch.where(side * gradients[0] > 0, 0, gradients[0]), None, None
