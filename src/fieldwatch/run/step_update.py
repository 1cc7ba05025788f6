"""`StepUpdates`: the updates of one step, each measured, decided, and then applied or refused."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from fieldwatch.base import InputError
from fieldwatch.guard import (
    SCALER_SKIPPED,
    SKIPPED,
    Clip,
    StateCopy,
    Verdict,
    clip_gradients,
    guarded_step,
    moment_norms,
    parameters_finite,
    prefer_fused,
    rate_tensors,
    settings_finite,
    state_norms,
)
from fieldwatch.measure import (
    GradientNorms,
    Terms,
    UpdateSizes,
    gradient_norms,
    gradient_statistics,
    norm,
    parameter_statistics,
)
from fieldwatch.record import tags
from fieldwatch.run.step_context import StepContext
from fieldwatch.run.step_values import sort_by_device

Closure: TypeAlias = Callable[[], Tensor | Terms]
"""Function that clears the gradients, computes the loss and its gradients, and returns the loss or its terms."""
REFUSED = "Guard/refused"
LOSS_SCALE = "Guard/loss_scale"


@runtime_checkable
class StepValues(Protocol):
    """What a step has recorded."""

    index: int
    device_values: dict[str, Tensor]
    host_values: dict[str, float]

    def every(self, steps: int) -> bool:
        """Return whether the step ends an interval."""
        ...


class StepUpdates:
    """The updates of one step. A step may have several: one per optimizer, or several per optimizer.

    Args:
        step: values of the step, to which those of the updates are added.
        context: parts of the run.
    """

    __slots__ = ("_context", "_first", "_first_groups", "_norms", "_number_of_groups", "_refused", "_sizes", "_step")

    def __init__(self, step: StepValues, context: StepContext) -> None:
        self._step = step
        self._context = context
        self._norms: dict[str, Tensor] = {}
        self._refused: Tensor | None = None
        self._sizes: UpdateSizes | None = None
        self._first = False
        # Optimizer to the number of its first parameter group, counted over all optimizers of the step.
        self._first_groups: dict[int, int] = {}
        self._number_of_groups = 0

    def measure(
        self,
        optimizers: Sequence[Optimizer],
        verdict: Verdict | None,
        *,
        others: Collection[int] = (),
        clip: Clip | None = None,
        scaler: GradScaler | None = None,
    ) -> Float[Tensor, ""]:
        """Record the gradients of an update, clip them, and decide whether the update must be refused.

        Args:
            optimizers: optimizers of the update.
            verdict: verdict on the loss; None if no loss was observed.
            others: ids of parameters that are not part of this update.
            clip: limits for the gradient norms.
            scaler: scaler that the loss was multiplied with; the gradients are unscaled already.

        Returns:
            1.0 on the device if the update must be refused, else 0.0.

        Raises:
            ValueError: no parameter has a gradient.
        """
        context = self._context
        step = self._step
        watched = context.tracked.watched
        norms = gradient_norms(watched, others)
        if norms is None:
            raise ValueError(_without_gradient(context, optimizers))
        found = context.loop_checks.at_update(step.index, optimizers)
        if found:
            step.device_values |= found
        self._record_gradients(norms, optimizers, others)
        self._record_rates(optimizers)
        # Decide before clipping, which turns a non-finite norm into non-finite gradients.
        refused = self._decide(norms.total, optimizers, verdict, scaler)
        if context.observer.active:
            clip = context.observer.clip(clip)
        if clip is not None:
            step.device_values |= clip_gradients(clip, norms.by_group(), norms.groups, norms.total)
        return refused

    def apply(self, optimizers: Sequence[Optimizer], refused: Float[Tensor, ""], scaler: GradScaler | None) -> None:
        """Step the optimizers unless the update is refused; then the scaler chooses its next factor."""
        observer = self._context.observer
        if observer.active:
            with observer.updating(optimizers):
                self._step_all(optimizers, refused)
        else:
            self._step_all(optimizers, refused)
        if scaler is not None:
            # It knows from unscale_ whether a gradient was infinite: scaler.step would decide the same again.
            scaler.update()

    def _step_all(self, optimizers: Sequence[Optimizer], refused: Float[Tensor, ""]) -> None:
        for optimizer in optimizers:
            # CUDA needs the fused implementation, which reads the flag on the device. On a CPU, reading the flag
            # is free, so the call to any optimizer can be skipped.
            if refused.is_cuda and prefer_fused(optimizer):
                self._context.log.event("optimizer_fused", optimizer=type(optimizer).__name__)
            guarded_step(optimizer, refused)

    def apply_closure(
        self, optimizer: Optimizer, closure: Closure, begin: Callable[[Tensor | Terms], Float[Tensor, ""]]
    ) -> None:
        """Step an optimizer that computes the loss itself; restore its parameters and state if anything is not finite.

        Args:
            optimizer: optimizer whose ``step`` takes a closure.
            closure: closure of the loop.
            begin: function of the first loss, which measures the update and returns its refusal.
        """
        refused: Tensor | None = None

        def evaluate() -> Tensor:
            nonlocal refused
            with torch.enable_grad():
                result = closure()
            if refused is None:
                refused = begin(result)
            return result.total if isinstance(result, Terms) else result

        if self._context.skips(self._step.index):
            evaluate()
            return
        before = StateCopy(optimizer)
        with self._context.observer.updating((optimizer,)):
            # torch annotates it as a function that returns a float, and takes the loss.
            optimizer.step(cast("Any", evaluate))
        if refused is None:
            raise ValueError(f"{type(optimizer).__name__}.step(...) did not call its closure: leave closure= out")
        # A line search reads its losses anyway, so this read costs nothing that matters.
        if bool(refused) or not parameters_finite(optimizer):
            before.restore()
            self._step.device_values[REFUSED] = torch.ones_like(refused)

    def finish(self, optimizers: Sequence[Optimizer]) -> None:
        """Measure what the update has changed."""
        # Only here are all optimizers known, including those that are not tracked.
        self._context.coverage.check_optimizers(optimizers)
        self._context.loop_checks.after_update()
        if self._sizes is not None:
            ratios = self._sizes.ratios()
            if self._first:
                # Apart from the others: a warm-up, or the first step of Adam, makes it unlike all later ones.
                ratios = {
                    tags.FIRST_UPDATE.tag(group): ratios[name]
                    for group, name in tags.UPDATE_RATIO.parts(ratios).items()
                }
            self._step.device_values |= ratios
            self._sizes = None

    def _decide(
        self,
        length: Float[Tensor, ""],
        optimizers: Sequence[Optimizer],
        verdict: Verdict | None,
        scaler: GradScaler | None,
    ) -> Float[Tensor, ""]:
        """Return 1.0 on the device if the update must not happen, else 0.0, and record it.

        An update is refused if the loss, a gradient or an optimizer setting is not finite, or the step is skipped.
        """
        values = self._step.device_values
        for rate in rate_tensors(optimizers):
            # Adds 0 for a finite rate and NaN for any other, without reading it.
            length = length + (rate - rate)
        # Without an observed loss, the gradients alone decide.
        refused = (verdict or Verdict(length)).refused(length)
        counted = refused
        # A skipped update gets its own column, so that it does not count as a refusal.
        if self._context.skips(self._step.index):
            self._step.host_values[SKIPPED] = 1.0
            refused = counted = torch.ones_like(refused)
        elif not settings_finite(optimizers):
            refused = counted = torch.ones_like(refused)
        elif scaler is not None and scaler.is_enabled():
            overflow, values[LOSS_SCALE] = _overflow(refused, verdict, scaler)
            counted = refused - overflow
            values[SCALER_SKIPPED] = _either(values.get(SCALER_SKIPPED), overflow)
        # With several updates in a step, one refusal is enough to name the step.
        self._refused = values[REFUSED] = counted if self._refused is None else _either(self._refused, counted)
        return refused

    def _record_gradients(self, norms: GradientNorms, optimizers: Sequence[Optimizer], others: Collection[int]) -> None:
        context = self._context
        step = self._step
        values = step.device_values
        groups = norms.groups
        if self._norms:
            self._norms = self._norms | groups
            values[tags.TOTAL_NORM] = norm(torch.stack([*self._norms.values()]))
        else:
            self._norms = groups
            values[tags.TOTAL_NORM] = norms.total
        values.update(zip(_norm_tags(tuple(groups)), groups.values(), strict=True))
        due = context.details.due(step.index)
        self._first = due.groups == () and context.loop_checks.is_first_update(step.index)
        if self._first:
            due = context.details.first()
        begins = step.index == 0
        # The usual step ends here.
        if due is context.details.nothing and not begins:
            return
        if due.largest or due.precision:
            values |= gradient_statistics(
                norms.gradients, largest=due.largest, precision=due.precision, most=due.most_gradients
            )
        if due.averages:
            values |= context.loop_checks.measure()
        watched = context.tracked.watched
        if due.groups != ():
            values |= parameter_statistics(watched, due.groups)
        measured = due.groups
        if others:
            measured = tuple(name for name in norms.groups if measured is None or name in measured)
        # Copies the parameters, so that they can be compared with their values after the update.
        self._sizes = None if measured == () else UpdateSizes(watched, measured)
        if due.groups:
            values |= moment_norms({name: watched.read(name) for name in due.groups}, optimizers)
        # At step 0 too: a later non-finite value only counts as divergence if an earlier one was finite.
        owners = watched.owners().values() if due.buffers or begins else ()
        values |= state_norms(owners, optimizers if due.moments or begins else ())

    def _record_rates(self, optimizers: Sequence[Optimizer]) -> None:
        step = self._step
        for optimizer in optimizers:
            first = self._first_groups.setdefault(id(optimizer), self._number_of_groups)
            # Parameter groups without a name are numbered over all optimizers of the step.
            number = first
            for group in optimizer.param_groups:
                tag = tags.LEARNING_RATE.tag(group.get("name", number))
                rate = group["lr"]
                if rate.__class__ is float:
                    step.host_values[tag] = rate
                else:
                    sort_by_device({tag: rate}, step.device_values, step.host_values)
                number += 1
            self._number_of_groups = max(self._number_of_groups, number)


@lru_cache(maxsize=64)
def _norm_tags(groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags of the gradient norms of groups."""
    return tuple(map(tags.GRADIENT_NORM.tag, groups))


def unscale_gradients(scaler: GradScaler, optimizers: Sequence[Optimizer]) -> None:
    """Divide the gradients by the factor of a scaler.

    Raises:
        InputError: the loop has done so itself.
    """
    for optimizer in optimizers:
        try:
            scaler.unscale_(optimizer)
        except RuntimeError as error:
            raise InputError(
                f"step.update(..., scaler=...) unscales the gradients itself, got: {error} "
                "Leave out scaler.unscale_, scaler.step and scaler.update, and clip with step.update(..., clip=...)"
            ) from error


def _overflow(
    refused: Float[Tensor, ""], verdict: Verdict | None, scaler: GradScaler
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return 1.0 if the scaler explains that gradients are not finite, and its factor; both on the device.

    The factor explains it while the loss itself is finite and the factor can still be halved to 1.
    """
    # The public way to the factor without reading it from a GPU.
    scale = scaler.scale(torch.ones((), device=refused.device))
    loss_bad = torch.zeros_like(refused) if verdict is None else verdict.refused()
    return refused * (1 - loss_bad) * (scale > 1).float(), scale


def _either(one: Tensor | None, other: Float[Tensor, ""]) -> Float[Tensor, ""]:
    return other if one is None else torch.maximum(one, other)


def _without_gradient(context: StepContext, optimizers: Sequence[Optimizer]) -> str:
    """Return what is wrong with an update for which no parameter has a gradient."""
    ids = {
        id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    }
    watched = context.tracked.watched
    names = [f"'{name}'" for name in watched.names() if any(id(each) in ids for each in watched.read(name))]
    return (
        f"no parameter of {', '.join(names) or 'this update'} has a gradient: either terms.total.backward() was not "
        "called before step.update(...), or the loss does not depend on them. Look for a detach(), torch.no_grad() or "
        ".item() between these parameters and the loss, and for a copy of the module that was used instead of it."
    )
