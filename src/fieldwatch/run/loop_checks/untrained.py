"""`UntrainedCheck`: parameters in an optimizer that never get a gradient; and what is frozen or coarse at the start."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fieldwatch.run.loop_checks.left_behind import LeftBehind
from fieldwatch.run.loop_checks.streaks import FIRST, LAST, Streaks
from fieldwatch.run.loop_checks.trainable import ModuleParameters, some_names, submodules_of

COARSE = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""Types of parameters in which usual updates are lost to rounding."""


class UntrainedCheck:
    """Looks for parameters that require a gradient and are in an optimizer, but have had no gradient at any update.

    Only the parameters without one so far are looked at, so that a usual loop costs nothing after its first update.

    Attributes:
        done: whether nothing is left to look at.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[str, ref[Tensor]]] = []
        self._total = 0
        self._streaks = Streaks()
        self.done = False
        self._called = False
        self._handles: list[Any] = []

    def begin(self, parameters: ModuleParameters, held: Collection[int]) -> None:
        """Note the parameters at the first update."""
        rows = list(zip(parameters.names, parameters.read(), strict=True))
        trained = [(name, each) for name, each in rows if each.requires_grad and id(each) in held]
        self._waiting = [(name, ref(each)) for name, each in trained]
        self._total = sum(each.numel() for _, each in trained)

    def check(self, step: int, modules: Callable[[], Mapping[str, nn.Module]]) -> dict[str, Any] | None:
        """Return the facts of an event that has to be recorded; call it at every update until it is done.

        Args:
            step: index of the step.
            modules: function that returns the modules by name.
        """
        waiting = [(name, each()) for name, each in self._waiting]
        left = [(name, each) for name, each in waiting if each is not None and each.grad is None]
        if len(left) < len(self._waiting):
            self._waiting = [(name, ref(each)) for name, each in left]
        if not left:
            self.done = True
            return None
        updates = self._streaks.hold("", step)
        self.done = updates == LAST
        if updates == FIRST:
            self._listen([name for name, _ in left], modules())
        if updates in (0, FIRST):
            return None
        self._stop_listening()
        share = sum(each.numel() for _, each in left) / max(self._total, 1)
        return some_names([name for name, _ in left]) | {
            "updates": updates,
            "share": share,
            "called": self._called,
        }

    def close(self) -> None:
        """Leave the modules as they were."""
        self._stop_listening()

    def _listen(self, names: Sequence[str], modules: Mapping[str, nn.Module]) -> None:
        """Note from now on whether a module that owns one of the parameters is called."""
        owners = {name.rpartition(".")[0] for name in names}
        for item, root in modules.items():
            for path, module in submodules_of(root, item):
                if path in owners:
                    self._handles.append(module.register_forward_pre_hook(cast("Any", _Call(self))))

    def note_call(self) -> None:
        """Note that a module without gradients is used."""
        self._called = True

    def _stop_listening(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


class _Call(LeftBehind):
    """Forward hook that notes a call; a copy of the module does not inherit it."""

    def __init__(self, check: UntrainedCheck) -> None:
        self._check = check

    def __call__(self, module: nn.Module, _args: tuple[Any, ...]) -> None:
        """Note the call, unless it is of an evaluation; a compiler that traces the module must not trace this."""
        evaluated = not module.training or torch.is_inference_mode_enabled()
        if not evaluated and not torch.compiler.is_compiling():
            self._check.note_call()


def frozen_output(parameters: ModuleParameters, held: Collection[int]) -> dict[str, Any] | None:
    """Return the facts of an event if the last parameters are frozen, in an optimizer, and earlier ones are trained.

    Args:
        parameters: parameters of the modules, in order of their definition.
        held: ids of the parameters that optimizers hold.
    """
    rows = list(zip(parameters.names, parameters.read(), strict=True))
    last = len(rows)
    while last and not rows[last - 1][1].requires_grad:
        last -= 1
    tail = rows[last:]
    trained = any(each.requires_grad for _, each in rows[:last])
    if not tail or not trained or not all(id(each) in held for _, each in tail):
        return None
    # A module of its own, such as an average of the weights or a critic, is not the output of the trained one.
    owners = {name.partition(".")[0] for name, each in rows[:last] if each.requires_grad}
    if not all(name.partition(".")[0] in owners for name, _ in tail):
        return None
    return some_names([name for name, _ in tail])


def coarse_parameters(parameters: ModuleParameters, held: Collection[int]) -> dict[str, Any] | None:
    """Return the facts of an event if an optimizer updates parameters of float16 or bfloat16."""
    rows = list(zip(parameters.names, parameters.read(), strict=True))
    for dtype, kind in COARSE.items():
        names = [name for name, each in rows if each.requires_grad and each.dtype is dtype and id(each) in held]
        if names:
            return some_names(names) | {"dtype": kind}
    return None


def settings_of(optimizers: Sequence[Optimizer]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each parameter group, numbered over all optimizers as the recorded rates are."""
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    for number, (optimizer, group) in enumerate(groups):
        decay = group.get("weight_decay", 0.0)
        yield {
            "group": str(group.get("name", number)),
            "optimizer": type(optimizer).__name__,
            "weight_decay": float(decay),
            "decoupled": bool(group.get("decoupled_weight_decay", type(optimizer).__name__ == "AdamW")),
        }


_SLOW_MOMENTUM = 0.99
"""Momentum (or first beta) from which an average of gradients lags by a hundred updates."""
_LARGE_EPS = 1e-2
"""Epsilon of an adaptive optimizer from which it hides the size of usual gradients (1e-3 to 1e-6)."""
_MUCH_DROPPED = 0.75
_SLOW_STATISTICS = 0.005
"""Momentum of batch norms below which running statistics lag by 200 updates."""


def odd_settings(optimizers: Sequence[Optimizer], modules: Mapping[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """Yield the settings of optimizers and layers that are rarely meant: ``where``, ``setting``, ``value``, ``usual``.

    Args:
        optimizers: optimizers of the first update.
        modules: modules by name.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        for group in optimizer.param_groups:
            for setting, value, usual in _odd_of_group(group):
                yield {"where": name, "setting": setting, "value": value, "usual": usual}
    for item, root in modules.items():
        for path, module in submodules_of(root, item):
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.p >= _MUCH_DROPPED:  # noqa: SLF001  torch has no public base class  # pyright: ignore[reportPrivateUsage]
                yield {"where": path, "setting": "dropout", "value": float(module.p), "usual": "0.1 to 0.5"}
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                momentum = module.momentum
                if momentum is not None and (momentum < _SLOW_STATISTICS or momentum >= 1):
                    yield {"where": path, "setting": "momentum", "value": float(momentum), "usual": "0.01 to 0.1"}


def _odd_of_group(group: Mapping[str, Any]) -> Iterator[tuple[str, float, str]]:
    if group.get("maximize"):
        yield "maximize", 1.0, "False, for a loss"
    momentum = _number(group.get("momentum"))
    if momentum is not None and momentum >= _SLOW_MOMENTUM:
        yield "momentum", momentum, "0.9"
    betas = group.get("betas")
    if isinstance(betas, tuple | list) and len(cast("Sequence[object]", betas)) == 2:
        first, second = (_number(each) for each in cast("Sequence[object]", betas))
        if first is not None and second is not None and (first >= _SLOW_MOMENTUM or second < first):
            yield "betas[0]", first, "0.9, with betas[1] = 0.999"
        elif second is not None and not second < 0.99995:
            yield "betas[1]", second, "0.95 to 0.999"
    eps = _number(group.get("eps"))
    if eps is not None and eps >= _LARGE_EPS:
        yield "eps", eps, "1e-8 to 1e-5"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def frozen_share(parameters: ModuleParameters, held: Collection[int]) -> dict[str, Any] | None:
    """Return the facts of an event if a large part of a trained module is frozen from the start.

    Args:
        parameters: parameters of the modules.
        held: ids of the parameters that optimizers hold.
    """
    rows = list(zip(parameters.names, parameters.read(), strict=True))
    owners = {name.partition(".")[0] for name, each in rows if each.requires_grad and id(each) in held}
    mine = [(name, each) for name, each in rows if name.partition(".")[0] in owners]
    frozen = [(name, each) for name, each in mine if not each.requires_grad]
    if not frozen:
        return None
    share = sum(each.numel() for _, each in frozen) / max(sum(each.numel() for _, each in mine), 1)
    in_optimizer = any(id(each) in held for _, each in frozen)
    weights = [each for _, each in frozen if _may_be_judged(each)][:_MOST_JUDGED]
    random = sum(each.numel() for each in weights if _is_random(each))
    judged = sum(each.numel() for each in weights)
    facts = {"share": share, "in_optimizer": in_optimizer, "random": random / judged if judged else 0.0}
    return some_names([name for name, _ in frozen]) | facts


_LEAST_SIDE = 24
_MOST_SIDE = 512
"""Rows and columns of a weight that are read; with fewer, random matrices differ too much from each other."""
_MOST_JUDGED = 8
_EDGE = 1.06
"""Largest singular value of a random matrix, as a fraction of its limit for a large one; fluctuations stay below."""


def _may_be_judged(weight: Tensor) -> bool:
    """Return whether a weight is a matrix that is large enough to tell random values from learned ones."""
    plain = weight.dim() > 1 and weight.layout is torch.strided and weight.is_floating_point() and not weight.is_meta
    return plain and len(weight) >= _LEAST_SIDE and weight[0].numel() >= _LEAST_SIDE


def _is_random(weight: Tensor) -> bool:
    """Return whether a weight has no more structure than independent random numbers.

    The largest singular value of an ``m x n`` matrix of independent numbers of mean 0 is near their standard deviation
    times ``sqrt(m) + sqrt(n)`` (Marchenko and Pastur). What training adds has few directions, and rises above it.
    """
    with torch.no_grad():
        rows = weight.detach()[:_MOST_SIDE].flatten(1)[:, :_MOST_SIDE].float()
        limit = rows.square().mean().sqrt() * (rows.shape[0] ** 0.5 + rows.shape[1] ** 0.5)
        linalg: Any = torch.linalg  # torch leaves the types of this module open
        values = cast("Tensor", linalg.svdvals(rows))
        return bool(limit > 0) and bool(values[0] <= _EDGE * limit)
