"""`FrameworkLoop`: a run whose steps follow a loop that a framework runs."""

import atexit
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fieldwatch import InputError, Retention, Run, Saving, Step, Terms, preserve_random_state

EVALUATIONS = ("eval", "test", "val", "validation")
"""First words of the names under which frameworks log what they evaluate."""
_SPEED = ("epoch", "runtime", "per_second")
"""Ends of names that say how far or how fast a training is, which a run records itself."""
ALL = Retention(every=1)
"""The checkpoints of a run that only say where its record was are small: a framework may go back to any of its own."""


class FrameworkLoop:
    """A run whose steps are opened and closed by the hooks of a framework.

    A step of the run is one update of the weights, with all batches that it accumulates.

    Args:
        folder: run folder.
        terms: names of logged values that are loss terms, with their weights; empty for the loss alone.
        refuse: whether to refuse updates whose gradients are not finite.
        restores_random_state: whether the framework restores the random states of a resumed training itself.
        options: options of :class:`Run`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        terms: Mapping[str, float],
        refuse: bool,
        restores_random_state: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.run = Run(folder, **options)
        # Launchers set the variables of torchrun, or open a process group.
        refuse_several(max(self.run.ranks.world, dist.get_world_size() if dist.is_initialized() else 1))
        self.terms = terms
        self.total: int | None = None
        self.started = False
        self._refuse = refuse
        self._keeps_random_state = restores_random_state
        self._step: Step | None = None
        self._updated = False
        self._handles: list[RemovableHandle] = []

    def start(self) -> None:
        """Enter the run, unless that was done before."""
        if not self.started:
            self.run.start()
            self.started = True
            atexit.register(self._at_exit)

    def finish(self, error: BaseException | None = None) -> None:
        """Leave the run; an update that has not ended is recorded without its end."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.started:
            self.started = False
            atexit.unregister(self._at_exit)
            self.run.finish(error)

    def hook(self, optimizers: Iterable[Optimizer]) -> None:
        """Look at the updates of optimizers through the hooks that torch offers, until the run is finished."""
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def begin_with(self, module: nn.Module) -> None:
        """Open a step when a module is called for training, so that its time is that of the whole step."""

        def begin(called: nn.Module, _arguments: Any) -> None:
            if called.training:
                self.begin()

        self._handles.append(module.register_forward_pre_hook(begin))

    def begin(self) -> Step:
        """Return the open step; open one if there is none."""
        if self._step is None:
            # The first step of a resumed run restores the random states, too.
            with preserve_random_state() if self._keeps_random_state else nullcontext():
                self._step = self.run.begin_step(self.total)
            self._keeps_random_state = False
            self._updated = False
        return self._step

    @property
    def updated(self) -> bool:
        """Whether the open step has made an update, refused or not."""
        return self._step is not None and self._updated

    def before_update(self, optimizer: Optimizer, scaler: GradScaler | None = None) -> None:
        """Record the gradients of an update; drop them if the update must not happen.

        Torch's optimizers change neither a parameter without a gradient nor its state.

        Args:
            optimizer: optimizer that is about to step.
            scaler: scaler that has unscaled its gradients.
        """
        step = self.begin()
        self._updated = True
        if not any(parameter.grad is not None for parameter in _parameters(optimizer)):
            return
        refused = step.check_update(optimizer, scaler=scaler)
        # Reading the flag waits for a GPU.
        if self._refuse and bool(refused):
            for parameter in _parameters(optimizer):
                parameter.grad = None

    def after_update(self, optimizer: Optimizer) -> None:
        """Measure what the update has changed."""
        if self._step is not None and self._updated:
            self._step.after_update(optimizer)

    def skip_update(self) -> None:
        """Note that a gradient scaler of the framework has skipped the update of the open step."""
        self.begin().record({"Guard/scaler_skipped": 1.0})
        self._updated = True

    def observe(self, loss: Tensor | None, logged: Sequence[Mapping[str, Any]]) -> None:
        """Record the loss of the open step: its terms if the user has named them, else the loss alone.

        Args:
            loss: loss of all batches of the step; None if it is unknown.
            logged: values logged for each batch of the step.

        Raises:
            InputError: a term was not logged.
        """
        step = self.begin()
        if self.terms and logged:
            for values in logged:
                self._refuse_missing(values)
            step.observe(Terms(**{name: (weight, mean_logged(name, logged)) for name, weight in self.terms.items()}))
        elif loss is not None:
            step.observe(Terms(loss=(1.0, loss.detach())))

    def record(self, logged: Mapping[str, Any]) -> None:
        """Record what the framework has logged: evaluations as ``Validation/<name>``, the rest as ``Logged/<name>``.

        In an open step, tensors are not read, so that nothing waits for a GPU.
        """
        values: dict[str, float | Tensor] = {}
        for name, value in logged.items():
            number = _number(value)
            if number is not None and name not in self.terms and not name.endswith(_SPEED):
                group = "Validation" if is_evaluation(name) else "Logged"
                values[f"{group}/{name.replace('/', '_')}"] = number
        if values and self._step is not None:
            self._step.record(values)
        elif values:
            self.run.record({name: float(value) for name, value in values.items()})

    def end(self) -> None:
        """Close the step, if one is open: record it, check it, and save a checkpoint if one is due."""
        if self._step is not None:
            self._step = None
            try:
                self.run.end_step()
            # Not every framework tells its callbacks about an error, or about the end by a signal.
            except BaseException as error:
                self.finish(error)
                raise

    def _at_exit(self) -> None:
        """Leave the run of a training that failed in code that this class does not see."""
        self.finish(getattr(sys, "last_value", None) or RuntimeError("the process ended before the training"))

    def _refuse_missing(self, logged: Mapping[str, Any]) -> None:
        missing = sorted(self.terms.keys() - logged.keys())
        if missing:
            raise InputError(
                f"expected {missing[0]!r} of terms=... among the logged values, got {', '.join(sorted(logged))}: log "
                "every term in every training step, or leave it out of terms"
            )

    def _before_step(self, optimizer: Optimizer, _arguments: Any, _options: Any) -> None:
        self.before_update(optimizer)

    def _after_step(self, optimizer: Optimizer, _arguments: Any, _options: Any) -> None:
        self.after_update(optimizer)


class ForeignState:
    """Checkpoint item for a training that a framework saves and restores.

    Args:
        save: function that returns the state as plain values and tensors.
        restore: function of a state that was saved.

    Attributes:
        contains: objects that the framework's checkpoint contains, so that no warning says that they are missing.
    """

    def __init__(self, save: Callable[[], dict[str, Any]], restore: Callable[[dict[str, Any]], None]) -> None:
        self._save = save
        self._restore = restore
        self.contains: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return self._save()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        self._restore(state)


def refuse_several(processes: int) -> None:
    """Refuse a training of several processes, whose gradients, checkpoints and end the framework coordinates.

    Raises:
        InputError: there is more than one process.
    """
    if processes > 1:
        raise InputError(
            f"expected a training of one process, got {processes}: the adapters cannot watch several. Train with one "
            "device, or use fieldwatch.Run in a loop of your own: docs/scale.md"
        )


def without_own_checkpoints(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run whose training is saved by a framework: it saves only together with that one.

    Raises:
        InputError: the options say how to save.
    """
    if "saving" in options:
        raise InputError("saving=...: expected no such option, because the framework decides when it saves")
    return {**options, "saving": Saving(every=None, keep=ALL)}


def mean_logged(name: str, logged: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the mean of a logged value over the batches of a step."""
    values = [torch.as_tensor(each[name]).detach().float().reshape(()) for each in logged]
    return values[0] if len(values) == 1 else torch.stack(values).mean()


def is_evaluation(name: str) -> bool:
    """Return whether a logged value was measured by an evaluation, judging by the first word of its name."""
    return name.replace("/", "_").split("_")[0] in EVALUATIONS


def _number(value: Any) -> float | Tensor | None:
    """Return a logged value as a number or a scalar tensor; None if it is text or has several entries."""
    if isinstance(value, Tensor):
        return value.detach().reshape(()) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
