"""A training loop on pairs of inputs and targets, in parts, so that a plant can spoil a single one of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fieldwatch import Declared, Outputs, Run, Saving, Step, Terms

from .cases import Train

NO_SINKS = Outputs(sinks=())


@dataclass(kw_only=True)
class Parts:
    """The parts of a supervised training.

    Attributes:
        model: trained module.
        optimizer: its optimizer.
        inputs: training inputs, shape [n, ...].
        targets: training targets, shape [n, ...].
        terms: loss terms of a batch.
        measure: what the loop evaluates, by metric name.
        figure: how good the trained model is on clean data; the larger, the better.
        sample_loss: loss per entry of a batch; None if the loop does not name its samples.
        names: names of the training samples; numbers if empty.
        schedule: learning-rate schedule, stepped after each update.
        steps: number of steps.
        batch: number of samples in a batch.
        every: steps between evaluations.
        clip: limit for the gradient norm.
        draw: indices of the batch of a step; by default drawn at random from the run's own generator.
        clear: what the loop calls before it computes gradients.
        evaluate: called instead of the evaluation inside ``run.evaluation``, for a loop that evaluates by hand.
        before: called before each step with its index.
        after_backward: called between the gradients and the update.
        after_update: called after the update.
        tracked: what the loop tracks; model, optimizer and schedule if None.
        groups: named parameter groups.
        declared: declarations of the run.
        saving: when the run saves.
        accumulate: number of batches whose gradients make one update.
        scale: factor by which the loss is multiplied before the backward pass, and the gradients divided after it.
        as_objective: whether the loop uses ``step.backward``.
    """

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    targets: Tensor
    terms: Callable[[Tensor, Tensor], Terms]
    measure: Callable[[], Mapping[str, float]]
    figure: Callable[[], float]
    sample_loss: Callable[[Tensor, Tensor], Tensor] | None = None
    names: list[str] = field(default_factory=list[str])
    schedule: LRScheduler | None = None
    steps: int = 600
    batch: int = 64
    every: int = 100
    clip: float | None = None
    draw: Callable[[int], Tensor] | None = None
    clear: Callable[[], None] | None = None
    evaluate: Callable[[Step], None] | None = None
    before: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])
    after_backward: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])
    after_update: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])
    tracked: dict[str, Any] | None = None
    groups: dict[str, Any] | None = None
    declared: Declared | None = None
    saving: Saving | None = None
    accumulate: int = 1
    scale: float = 1.0
    as_objective: bool = False

    def rate(self, value: float) -> None:
        """Set the learning rate of all groups, also for the schedule."""
        for group in self.optimizer.param_groups:
            group["lr"] = value
            group["initial_lr"] = value
        if self.schedule is not None:
            self.schedule.base_lrs = [value for _ in self.schedule.base_lrs]

    def everything(self) -> dict[str, Any]:
        """Return what the loop tracks."""
        if self.tracked is not None:
            return self.tracked
        items = {"model": self.model, "optimizer": self.optimizer}
        return items if self.schedule is None else {**items, "schedule": self.schedule}

    def indices(self, step: int) -> Tensor:
        """Return the indices of the batch of a step."""
        return torch.randint(len(self.inputs), (self.batch,)) if self.draw is None else self.draw(step)


Task = Callable[[int], Parts]
"""Makes the parts of a sound training with a seed."""
Edit = Callable[[Parts], None]
"""Plants a fault in the parts of a training."""


def fit(parts: Parts, folder: Path) -> float:
    """Train with the parts in a run folder and return the figure of the result."""
    with Run(folder, outputs=NO_SINKS, declared=parts.declared, saving=parts.saving) as run:
        run.track(groups=parts.groups, **parts.everything())
        run.resume()
        for step in run.steps(parts.steps):
            for hook in parts.before:
                hook(step.index)
            if parts.as_objective:
                indices = parts.indices(step.index)
                step.backward(_objective(parts), (parts.inputs[indices], parts.targets[indices]))
            else:
                _gradients(parts, step)
            for hook in parts.after_backward:
                hook(step.index)
            step.update(parts.optimizer, clip=parts.clip)
            if parts.schedule is not None:
                parts.schedule.step()
            for hook in parts.after_update:
                hook(step.index)
            if step.every(parts.every):
                if parts.evaluate is not None:
                    parts.evaluate(step)
                else:
                    with run.evaluation("test"):
                        parts.model.eval()
                        step.record(parts.measure())
    parts.model.eval()
    with torch.no_grad():
        return parts.figure()


def _objective(parts: Parts) -> Callable[[tuple[Tensor, Tensor]], Terms]:
    def objective(batch: tuple[Tensor, Tensor]) -> Terms:
        inputs, targets = batch
        return parts.terms(inputs, targets)

    return objective


def _gradients(parts: Parts, step: Step) -> None:
    """Compute the gradients of one update as most loops do: zero_grad, forward, backward, observe."""
    if parts.clear is None:
        parts.optimizer.zero_grad()
    else:
        parts.clear()
    for _ in range(parts.accumulate - 1):
        _backward(parts, parts.indices(step.index))
    indices = parts.indices(step.index)
    terms = _backward(parts, indices)
    if parts.scale != 1.0:
        for parameter in parts.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= parts.scale
    if parts.sample_loss is None:
        step.observe(terms)
    else:
        names = [parts.names[i] if parts.names else str(i) for i in indices.tolist()]
        with torch.no_grad():
            losses = parts.sample_loss(parts.inputs[indices], parts.targets[indices])
        step.observe(terms, sample=names, sample_loss=losses)


def _backward(parts: Parts, indices: Tensor) -> Terms:
    """Add the gradients of a batch and return its terms."""
    terms = parts.terms(parts.inputs[indices], parts.targets[indices])
    (parts.scale * terms.total / parts.accumulate).backward()
    return terms


def training(task: Task, *edits: Edit) -> Train:
    """Return the training of a task, with faults planted in its parts."""

    def train(folder: Path, seed: int) -> float:
        torch.manual_seed(seed)
        parts = task(seed)
        for edit in edits:
            edit(parts)
        return fit(parts, folder)

    return train
