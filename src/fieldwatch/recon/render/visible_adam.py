"""Adam that updates only the visible rows."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fieldwatch.recon.optimizers import Adam, EagerOptimizer
from fieldwatch.recon.render.gpu import MOST_LISTED, KernelFile, kernels_problem
from fieldwatch.recon.render.native import call, native_available
from fieldwatch.recon.render.splats.visible import VisibleRows, fill_visible
from fieldwatch.recon.transfers import upload

_KERNELS = KernelFile("adam.cu")
_THREADS = 256  # as in gpu/adam.cu
_CLOSE = 1e-5  # largest difference in the trial


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


class _Row(NamedTuple):
    """A parameter and what its group and state say, as the GPU kernel takes them."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Any]
    betas: tuple[float, float]
    rate: float
    eps: float

    @classmethod
    def of(cls, parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Self:
        gradient = _gradient(parameter).contiguous()
        return cls(parameter.detach(), gradient, state, group["betas"], group["lr"], group["eps"])


def _update(rows: list[_Row], visible: Bool[Tensor, " n"] | None, refused: Tensor | None) -> None:
    """Update the visible rows of parameters by the GPU kernel."""
    for start in range(0, len(rows), MOST_LISTED):
        _launch(rows[start : start + MOST_LISTED], visible, refused)


def _launch(rows: list[_Row], visible: Bool[Tensor, " n"] | None, refused: Tensor | None) -> None:
    """Update those of up to `MOST_LISTED` parameters, at least one."""
    sizes = [row.parameter.numel() for row in rows]
    ends = list(itertools.accumulate(-(-size // _THREADS) for size in sizes))
    widths = [row.parameter[:1].numel() if row.parameter.dim() else 1 for row in rows]
    counted = [torch.empty((), device=row.parameter.device) for row in rows]
    gradients = [row.gradient for row in rows]
    steps = [row.state["step"] for row in rows]
    betas = ([row.betas[0] for row in rows], [row.betas[1] for row in rows])
    numbers = (*betas, [row.rate for row in rows], [row.eps for row in rows])
    moments = ([row.state["exp_avg"] for row in rows], [row.state["exp_avg_sq"] for row in rows])
    written = ([row.parameter for row in rows], *moments, counted)
    size = (len(rows), ends, sizes, widths)
    _KERNELS.launch("adam_visible", ends[-1], *size, visible, gradients, steps, refused, *numbers, *written)
    for row, step in zip(rows, counted, strict=True):
        row.state["step"] = step


class VisibleAdam(EagerOptimizer):
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
        visible: unique int64 indices of the rows to update, or a mask of all rows; None updates all. Set it before
            every step.
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
        self.visible: VisibleRows | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the visible rows of every parameter with a gradient; return the loss of the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # GradScaler sets found_inf on optimizers with `_step_supports_amp_scaling` and leaves the skip to them.
        refused = getattr(self, "found_inf", None)
        parameters = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        if parameters and all(_has_kernel(parameter) for parameter in parameters):
            self._step_on_gpu(parameters, refused)
            return loss
        if refused is not None and bool(refused):
            return loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _state_of(self, parameter: Tensor, device: torch.device) -> dict[str, Any]:
        """Return the state of a parameter, with its step counter on a device."""
        state = self.state[parameter]
        if not state:
            # A tensor, as in torch.optim.Adam, so that checkpoints of both are interchangeable.
            state["step"] = torch.zeros((), device=device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        elif state["step"].device != device:
            # Of a checkpoint, which a GPU and a CPU may share.
            state["step"] = upload(state["step"], device) if device.type == "cuda" else state["step"].to(device)
        return state

    def _step_on_gpu(self, parameters: list[Tensor], refused: Tensor | None) -> None:
        """Update the visible rows by one kernel for all parameters; the host waits for nothing."""
        group_of = {parameter: group for group in self.param_groups for parameter in group["params"]}
        rows = [_Row.of(each, self._state_of(each, each.device), group_of[each]) for each in parameters if each.numel()]
        mask = self._mask(parameters[0])
        _update(rows, mask, refused)

    def _mask(self, parameter: Tensor) -> Bool[Tensor, " n"] | None:
        visible = self.visible
        if visible is None or visible.dtype == torch.bool:
            return visible
        return fill_visible(torch.zeros(len(parameter), dtype=torch.bool, device=parameter.device), visible, True)

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self._state_of(parameter, torch.device("cpu"))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        step_count = state["step"].item()
        # Bias corrections folded into rate and root (Kingma 2015, end of section 2): no temporaries per row.
        rate = group["lr"] / (1 - beta1**step_count)
        root = (1 - beta2**step_count) ** 0.5
        numbers = _Numbers(beta2, 1 - beta1, 1 - beta2, rate, root, group["eps"])
        visible = self.visible
        if visible is not None and visible.dtype == torch.bool:
            visible = visible.nonzero()[:, 0]
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


def _has_kernel(parameter: Tensor) -> bool:
    if parameter.device.type != "cuda" or parameter.dtype != torch.float32 or not parameter.is_contiguous():
        return False
    return kernels_problem(_KERNELS, _trial) is None


def visible_adam_problem() -> str | None:
    """Return why `VisibleAdam` has no kernel for the current GPU; None if it has one."""
    return kernels_problem(_KERNELS, _trial)


def _trial() -> str | None:
    """Compare two steps of the GPU kernel with those of the CPU; return the difference in words, or None."""
    chance = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(70, 3, generator=chance) for _ in range(3))
    visible = torch.rand(70, generator=chance) < 0.5
    on_gpu = start.cuda()
    step = torch.zeros((), device="cuda")
    moments = [torch.zeros_like(on_gpu) for _ in range(2)]
    on_cpu = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([on_cpu], lr=0.1, eps=1e-15)
    state: dict[str, Any] = {"step": step, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
    for gradient in gradients:
        on_gpu.grad = gradient.cuda()
        _launch([_Row.of(on_gpu, state, {"betas": (0.9, 0.999), "lr": 0.1, "eps": 1e-15})], visible.cuda(), None)
        on_cpu.grad = gradient
        optimizer.step()
    wanted = torch.where(visible[:, None], on_cpu.detach(), start)
    gap = float((on_gpu.cpu() - wanted).abs().max())
    return None if gap <= _CLOSE else f"Adam of our GPU kernels differs from torch's by {gap:.2g}"


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


class OneLaunchAdam(Adam):
    """torch's Adam, with one launch of our own kernel for all parameter groups on a GPU.

    State and checkpoints are those of `torch.optim.Adam`, whose kernels update the parameters where ours do not work.

    Args:
        params: parameters or groups.
        lr: learning rate.
        fused: whether torch's own kernels are the fused ones, which a GPU needs; None for torch's choice.
    """

    def __init__(self, params: Iterable[Any], lr: float, *, fused: bool | None = True) -> None:
        super().__init__(params, lr=lr, fused=fused)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters with a gradient; return the loss of the closure."""
        group_of = {parameter: group for group in self.param_groups for parameter in group["params"]}
        parameters = [parameter for parameter in group_of if parameter.grad is not None]
        plain = all(_is_plain(group) for group in self.param_groups) and getattr(self, "grad_scale", None) is None
        if closure is not None or not parameters or not plain or not all(map(_has_kernel, parameters)):
            return super().step(closure)
        rows = [_Row.of(each, self._state_with(each), group_of[each]) for each in parameters if each.numel()]
        _update(rows, None, getattr(self, "found_inf", None))
        return None

    def _state_with(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _is_plain(group: dict[str, Any]) -> bool:
    """Return whether Adam is that of the paper."""
    return not (group["weight_decay"] or group["amsgrad"] or group["maximize"] or isinstance(group["lr"], Tensor))
