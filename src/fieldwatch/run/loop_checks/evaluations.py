"""`RandomCheck` and `EvaluationModeCheck`: evaluations that disturb the training, or that run in train mode."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_BYTES = 64
"""First bytes of the generator's state: its seed, its position and the first words of its state."""
_KEPT = 64
"""Number of states after evaluations that are remembered."""


class RandomCheck:
    """Compares torch's global generator after each update with what an evaluation leaves behind.

    An evaluation is recognized by ``step.record(...)`` after the update of the step. Blocks of ``run.evaluation``
    restore the generator themselves.
    """

    def __init__(self) -> None:
        self._after_update: tuple[Tensor, ...] = ()
        self._seen: dict[bytes, int] = {}
        self._updates = 0
        self._drawn = 0
        self._reset = 0
        self._paused = False

    def begin(self) -> None:
        """Note that a step begins: what it draws is the training's own."""
        self._after_update = ()

    def at_update(self) -> None:
        """Note the state of the generator after an update."""
        self._updates += 1
        # The bytes are compared only if the step records an evaluation.
        self._after_update = _states()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Ignore what happens in a block that restores the generator."""
        before = self._paused
        self._paused = True
        try:
            yield
        finally:
            self._paused = before

    def at_record(self) -> dict[str, Any] | None:
        """Return the facts of an event if an evaluation has changed the generator, and it has to be recorded."""
        # Without an update in this step, the training itself may have drawn numbers.
        if self._paused or not self._after_update:
            return None
        before = _beginning(self._after_update)
        # Once per step.
        self._after_update = ()
        now = _beginning(_states())
        if now == before:
            return None
        self._drawn += 1
        self._reset += now in self._seen
        self._seen[now] = self._updates
        if len(self._seen) > _KEPT:
            del self._seen[next(iter(self._seen))]
        # At powers of two, so that no loop floods the log.
        if self._drawn & (self._drawn - 1):
            return None
        return {"evaluations": self._drawn, "repeated": self._reset, "updates": self._updates}


class EvaluationModeCheck:
    """Counts the evaluations that ran a module in train mode.

    An evaluation is a forward without gradients that is followed by ``step.record(...)``.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._last_step = -1

    def check(self, step: int, updates: int, used: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
        """Yield the facts of each event that has to be recorded.

        Args:
            step: index of the step; only the first record of a step counts.
            updates: number of updates so far.
            used: names of the submodules that depend on the mode, by name of each module that ran in train mode.
        """
        if not used or step == self._last_step:
            return
        self._last_step = step
        for item, modules in used.items():
            count = self._counts.get(item, 0) + 1
            self._counts[item] = count
            # At powers of two, so that no loop floods the log.
            if not count & (count - 1):
                yield {"item": item, "modules": list(modules), "evaluations": count, "updates": updates}


def _states() -> tuple[Tensor, ...]:
    """Return a copy of the state of torch's generator, and of that of the GPU in use."""
    state = torch.default_generator.get_state()
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return (state,)
    # The state of a CUDA generator is kept on the host.
    return state, torch.cuda.default_generators[torch.cuda.current_device()].get_state()


def _beginning(states: Sequence[Tensor]) -> bytes:
    """Return what distinguishes states."""
    return b"".join(state[:_BYTES].numpy().tobytes() for state in states)
