"""Detects losses that jump, as opposed to noisy or newly weighted ones, and counts refused updates."""

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.delayed_counts import DelayedNumbers

WINDOW = 64
"""Number of steps in the running median of a term."""
SETTLED = 32
"""Minimum number of steps before the median of a term is used."""


class _Pending(NamedTuple):
    """Weights and values of a step that has not been judged yet, and whether its update was refused."""

    weights: dict[str, float]
    values: dict[str, Any]
    refused: Any


class LossMonitor:
    """Compares the loss of each step with its usual value: the running medians of its terms under the current weights.

    So a ramped weight is not a jump, and a term that has just started is not judged. Steps above the bound do not enter
    the medians. Observed values stay on the device until `judge`, which reads all of them in a single transfer. For
    values on a GPU, `judge` only begins the transfer, and the next `judge_arrived` judges, so that the host does not
    wait.

    Args:
        ratio: ratio to the usual loss above which a step counts as high.

    Attributes:
        high: number of consecutive high steps up to the last `judge`.
        refused: number of consecutive refused updates.
        worst: largest ratio among these high steps; 0 if there are none.
    """

    def __init__(self, ratio: float = 10.0) -> None:
        self._ratio = ratio
        self._usual: dict[str, deque[float]] = {}
        self._pending: list[_Pending] = []
        self._transfer = DelayedNumbers()
        self._due = False
        self.high = self.refused = 0
        self.worst = 0.0

    def observe(self, weights: Mapping[str, float], values: Mapping[str, Tensor], refused: Float[Tensor, ""]) -> None:
        """Add a step without reading from the device.

        Args:
            weights: weights of the terms.
            values: unweighted values of the terms.
            refused: 1 if the step's update was refused, else 0.
        """
        self._pending.append(_Pending(dict(weights), dict(values), refused))

    def judge(self) -> None:
        """Read and judge all steps since the last call; on a GPU, begin to read them."""
        values = self._values_on_device()
        if values and values[0].is_cuda:
            self._transfer.put(torch.stack(values))
            self._due = True
            return
        self._judge_pending()

    def judge_arrived(self) -> None:
        """Judge the steps that `judge` began to read. Call it in the next step, before `observe`."""
        if self._due:
            self._due = False
            self._judge_pending()

    def _judge_pending(self) -> None:
        self._read()
        for weights, values, refused in self._pending:
            self._judge(weights, values, refused=bool(refused))
        self._pending.clear()

    def reset(self) -> None:
        """Reset the counts after a rebuild or rollback."""
        self._pending.clear()
        self._transfer = DelayedNumbers()
        self._due = False
        self.high = self.refused = 0
        self.worst = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return medians, counts and steps not yet judged."""
        self._read()
        usual = {name: list(values) for name, values in self._usual.items()}
        pending = [step._asdict() for step in self._pending]
        counts = {"high": self.high, "refused": self.refused, "worst": self.worst}
        return {"usual": usual, "pending": pending, **counts} | ({"due": True} if self._due else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._usual = {name: deque(values, WINDOW) for name, values in state["usual"].items()}
        self._pending = [_Pending(**step) for step in state["pending"]]
        self._transfer = DelayedNumbers()
        self._due = bool(state.get("due", False))
        self.high = int(state["high"])
        self.refused = int(state["refused"])
        self.worst = float(state["worst"])

    def _read(self) -> None:
        """Convert all values on the device to numbers in a single transfer."""
        unread = self._unread()
        if not unread:
            return
        # A transfer that was begun has the values of all unread steps.
        arrived = self._transfer.take()
        numbers = iter(torch.stack(self._values_on_device()).tolist() if arrived is None else arrived)
        read_steps = [
            _Pending(step.weights, {name: next(numbers) for name in step.values}, next(numbers)) for step in unread
        ]
        # Unread steps are always at the end: a checkpoint reads all of them, and later steps are appended.
        self._pending = [*self._pending[: len(self._pending) - len(unread)], *read_steps]

    def _unread(self) -> list[_Pending]:
        """Return the steps with values on the device; those restored from a checkpoint or read have plain numbers."""
        return [step for step in self._pending if isinstance(step.refused, Tensor)]

    def _values_on_device(self) -> list[Tensor]:
        return [value.float() for step in self._unread() for value in (*step.values.values(), step.refused)]

    def _judge(self, weights: Mapping[str, float], values: Mapping[str, float], *, refused: bool) -> None:
        # A refused step's values may be NaN, so they must not enter the medians.
        if refused:
            self.refused += 1
            return
        self.refused = 0
        # Terms without a median are omitted from both sides of the ratio.
        judged = [name for name in values if len(self._usual.get(name, ())) >= SETTLED]
        usual = sum(weights[name] * median(self._usual[name]) for name in judged)
        # Current weights on both sides, so that a change of weights alone does not change the ratio.
        ratio = sum(weights[name] * values[name] for name in judged) / usual if usual > 0 else 0.0
        if ratio > self._ratio:
            self.high += 1
            self.worst = max(self.worst, ratio)
            return
        # A single normal step ends the streak.
        self.high = 0
        self.worst = 0.0
        for name, value in values.items():
            self._usual.setdefault(name, deque(maxlen=WINDOW)).append(value)
