"""Trainings in two parts: a run that stops, and its continuation."""

from pathlib import Path

import torch

from .cases import Train
from .supervised import Edit, Parts, Task, fit


def in_two_parts(task: Task, stop: int, *edits: Edit) -> Train:
    """Return a training that stops at a step, and continues from its checkpoint with edited parts."""

    def train(folder: Path, seed: int) -> float:
        torch.manual_seed(seed)
        first = task(seed)
        total = first.steps
        first.steps = stop
        for edit in edits:
            edit(first)
        fit(first, folder)
        torch.manual_seed(seed + 1)
        second = task(seed)
        second.steps = total
        for edit in edits:
            edit(second)
        return fit(second, folder)

    return train


def untracked_optimizer(parts: Parts) -> None:
    """Track the model only."""
    parts.tracked = {"model": parts.model}


def figure_of_moments(stop: int) -> Edit:
    """Measure whether the optimizer of the continuation begins with the moments of the first part."""

    def edit(parts: Parts) -> None:
        known: list[float] = []

        def note(step: int) -> None:
            if step == stop:
                known.append(float(bool(parts.optimizer.state_dict()["state"])))

        parts.before.append(note)
        parts.figure = lambda: known[0] if known else 1.0

    return edit
