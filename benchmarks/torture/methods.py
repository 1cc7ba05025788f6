"""What saves: one class per method, so that the same harness runs over all of them."""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fieldwatch.checkpoint import Checkpoints, Retention

State = dict[str, Tensor]
"""A flat state, as every method can keep it."""


class Method(Protocol):
    """A way to save and load.

    Attributes:
        name: as it stands in the table.
        promise: what its documentation says about interrupted or damaged saves.
    """

    name: str
    promise: str

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save; returning is the acknowledgement."""

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Find the newest as a user of it would, and load it; ``like`` has its names, shapes and dtypes."""
        ...


class Ours:
    """``fieldwatch.Checkpoints``, the last two kept."""

    name = "fieldwatch"
    promise = "the acknowledged save survives kill and power cut; damage is found and the one before is used"

    def __init__(self, last: int = 2) -> None:
        self._keep = Retention(last=last)
        self._of = dict[Path, Checkpoints]()

    def save(self, folder: Path, step: int, state: State) -> None:
        """Save one."""
        if folder not in self._of:
            self._of[folder] = Checkpoints(folder, keep=self._keep)
        self._of[folder].save(step, state)

    def load(self, folder: Path, like: State) -> tuple[int, State]:
        """Restore the last good one."""
        state = {name: torch.zeros_like(value) for name, value in like.items()}
        return Checkpoints(folder).restore(state).step, state


def filled(step: int, size: int) -> State:
    """A state all of whose values are its step: a mixture of two saves shows."""
    return {"x": torch.full((size,), float(step)), "y": torch.full((size // 4,), step), "n": torch.tensor(step)}


def blank(size: int) -> State:
    """The same shapes, zeros."""
    return {name: torch.zeros_like(value) for name, value in filled(0, size).items()}


def whole(step: int, state: State) -> bool:
    """Whether a loaded state is of one piece and of that step."""
    return all(bool(value.eq(step).all()) for value in state.values())
