"""Adam that updates only the visible rows."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.recon.render.native import call, native_available


class _Numbers(NamedTuple):
    """Constants of a step: moment weights, learning rate and root with bias corrections, and eps.

    One minus a beta is computed in double precision: in single precision, 1 - 0.999 has a relative error of 5e-5.
    """

    old_square: float
    new_mean: float
    new_square: float
    rate: float
    root: float
    eps: float


class VisibleAdam(Optimizer):
    """Adam (Kingma 2015) on the rows in `visible`; all other rows keep their values and moments.

    For updated rows it equals `torch.optim.Adam` without weight decay; the bias corrections count the steps of the
    whole parameter, not of the row. For skipped rows, Adam would decay the moments and keep applying them, so that a
    row that is not visible drifts; here it does not move.

    It follows the convention of torch for fused optimizers (`found_inf`): a skipped step changes nothing. The state per
    parameter is that of Adam: `step`, `exp_avg`, `exp_avg_sq`.

    Args:
        params: parameters or groups, with one row per Gaussian.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: term added to the root of the second moment.

    Attributes:
        visible: unique int64 indices of the rows to update; None updates all. Set it before every step.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-15,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(f"Adam needs lr >= 0, eps >= 0 and betas in [0, 1), got lr {lr}, eps {eps}, betas {betas}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.visible: Int[Tensor, " visible"] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the visible rows of every parameter with a gradient; return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # GradScaler sets found_inf on optimizers with `_step_supports_amp_scaling` and leaves the skip to them.
        refused = getattr(self, "found_inf", None)
        if refused is not None and bool(refused):
            return loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            # A tensor, as in torch.optim.Adam, so that checkpoints of both are interchangeable.
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step_count = state["step"].item()
        # Bias corrections folded into rate and root (Kingma 2015, end of section 2): no temporaries per row.
        rate = group["lr"] / (1 - beta1**step_count)
        root = (1 - beta2**step_count) ** 0.5
        numbers = _Numbers(beta2, 1 - beta1, 1 - beta2, rate, root, group["eps"])
        visible = self.visible
        # The kernel indexes with 64-bit integers and needs contiguous ids.
        ids = torch.arange(len(parameter), device=parameter.device) if visible is None else visible.contiguous()
        if parameter.device.type == "cpu" and parameter.dtype == torch.float32 and native_available()[0]:
            width = parameter[:1].numel()
            threads = torch.get_num_threads()
            moments = (state["exp_avg"], state["exp_avg_sq"])
            gradient = _gradient(parameter).contiguous()
            call("fw_adam", len(ids), ids, width, gradient, *numbers, threads, parameter, *moments)
        else:
            _step_rows(parameter, ids, state, numbers)


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None or parameter.grad.is_sparse:
        raise ValueError("VisibleAdam needs a dense gradient of the whole parameter: it selects visible rows itself")
    return parameter.grad


def _step_rows(parameter: Tensor, ids: Int[Tensor, " visible"], state: dict[str, Tensor], constants: _Numbers) -> None:
    """Update rows in plain torch, like the native kernel."""
    gradient = _gradient(parameter)[ids]
    mean = state["exp_avg"][ids].lerp(gradient, constants.new_mean)
    square = (state["exp_avg_sq"][ids] * constants.old_square).addcmul(gradient, gradient, value=constants.new_square)
    state["exp_avg"][ids] = mean
    state["exp_avg_sq"][ids] = square
    # Indexed assignment: `parameter[ids]` alone is a copy.
    parameter[ids] -= constants.rate * mean / (square.sqrt() / constants.root + constants.eps)
