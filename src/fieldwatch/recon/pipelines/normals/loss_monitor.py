"""Tells a loss that has jumped from one that is noisy or newly weighted, and counts updates that were refused."""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

WINDOW = 64
"""Steps in the running median of a term."""
SETTLED = 32
"""Steps before a term has a median: fewer are noise."""


class _Pending(NamedTuple):
    """A step whose values have not been read yet: weights, values, and whether its update was refused."""

    weights: dict[str, float]
    values: dict[str, Any]
    refused: Any


class LossMonitor:
    """Compares the loss of each step with what it usually is: the running medians of its terms under today's weights.

    So a weight that ramps up is no jump, and a term that has just begun is not judged. Steps above the bound do not
    enter the medians, which so stay those of the time before. What it is told stays on the device until `look`, which
    reads everything since the last look in one transfer.

    Args:
        ratio: to the usual loss, above which a step is high.

    Attributes:
        high: steps that were high, in a row, up to the last look.
        refused: updates that were refused, in a row.
        worst: largest ratio among the high steps in this row; 0 if there are none.
    """

    def __init__(self, ratio: float = 10.0) -> None:
        self._ratio = ratio
        self._usual: dict[str, deque[float]] = {}
        self._pending: list[_Pending] = []
        self.high = self.refused = 0
        self.worst = 0.0

    def observe(self, weights: Mapping[str, float], values: Mapping[str, Tensor], refused: Float[Tensor, ""]) -> None:
        """Take in a step; nothing is read.

        Args:
            weights: of the terms.
            values: of the terms, without their weights.
            refused: 1 where the step's update was refused, else 0.
        """
        self._pending.append(_Pending(dict(weights), dict(values), refused))

    def judge(self) -> None:
        """Read and judge the steps since the last look."""
        self._read()
        for weights, values, refused in self._pending:
            self._judge(weights, values, refused=bool(refused))
        self._pending.clear()

    def reset(self) -> None:
        """Begin to count anew, after something was done about it."""
        self._pending.clear()
        self.high = self.refused = 0
        self.worst = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return medians, counts and what has not been judged, for a checkpoint."""
        self._read()
        usual = {name: list(values) for name, values in self._usual.items()}
        pending = [step._asdict() for step in self._pending]
        return {"usual": usual, "pending": pending, "high": self.high, "refused": self.refused, "worst": self.worst}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._usual = {name: deque(values, WINDOW) for name, values in state["usual"].items()}
        self._pending = [_Pending(**step) for step in state["pending"]]
        self.high = int(state["high"])
        self.refused = int(state["refused"])
        self.worst = float(state["worst"])

    def _read(self) -> None:
        """Turn all that is on the device into numbers, in one transfer."""
        unread = [step for step in self._pending if isinstance(step.refused, Tensor)]
        if not unread:
            return
        device_values = [value for step in unread for value in (*step.values.values(), step.refused)]
        numbers = iter(torch.stack([value.float() for value in device_values]).tolist())
        read_steps = [
            _Pending(step.weights, {name: next(numbers) for name in step.values}, next(numbers)) for step in unread
        ]
        # What is unread is always the end of the list: a checkpoint reads all, and later steps are appended.
        self._pending = [*self._pending[: len(self._pending) - len(unread)], *read_steps]

    def _judge(self, weights: Mapping[str, float], values: Mapping[str, float], *, refused: bool) -> None:
        # Its values may be NaN: they enter no median, and say nothing about the loss.
        if refused:
            self.refused += 1
            return
        self.refused = 0
        # Terms without a median yet are left out on both sides of the ratio.
        judged = [name for name in values if len(self._usual.get(name, ())) >= SETTLED]
        usual = sum(weights[name] * median(self._usual[name]) for name in judged)
        ratio = sum(weights[name] * values[name] for name in judged) / usual if usual > 0 else 0.0
        if ratio > self._ratio:
            self.high += 1
            self.worst = max(self.worst, ratio)
            return
        self.high = 0
        self.worst = 0.0
        for name, value in values.items():
            self._usual.setdefault(name, deque(maxlen=WINDOW)).append(value)
