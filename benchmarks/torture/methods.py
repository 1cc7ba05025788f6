"""Methods of saving: one class each, so that the same harness runs over all of them."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fieldwatch.checkpoint import Checkpoints, Retention

State = dict[str, Tensor]
"""A flat state that every method can store."""


class Method(Protocol):
    """A method to save and load.

    Attributes:
        name: name in the table.
        promise: statement of its documentation about interrupted or damaged saves.
    """

    name: str
    promise: str

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save; returning acknowledges the save."""

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Find and load the newest state as a user would; ``like`` has its names, shapes and dtypes."""
        ...


class Ours:
    """``fieldwatch.Checkpoints``, keeping the last two."""

    name = "fieldwatch"
    promise = "the acknowledged save survives kill and power cut; damage is found and the one before is used"

    def __init__(self, last: int = 2) -> None:
        self._keep = Retention(last=last)
        self._of = dict[Path, Checkpoints]()

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save a state."""
        if folder not in self._of:
            self._of[folder] = Checkpoints(folder, keep=self._keep)
        self._of[folder].save(step, state)

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Restore the last good state."""
        state = {name: torch.zeros_like(value) for name, value in like.items()}
        return Checkpoints(folder).restore(state).step, state


def filled(step: int, size: int) -> State:
    """Return a state whose values all equal its step, so that a mixture of two saves is visible."""
    return {"x": torch.full((size,), float(step)), "y": torch.full((size // 4,), step), "n": torch.tensor(step)}


def blank(size: int) -> State:
    """Return zeros of the same shapes."""
    return {name: torch.zeros_like(value) for name, value in filled(0, size).items()}


def whole(step: int, state: State) -> bool:
    """Return whether a loaded state is consistent and of that step."""
    return all(bool(value.eq(step).all()) for value in state.values())
