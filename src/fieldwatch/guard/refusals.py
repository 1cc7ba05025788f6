"""Detect refused updates in recorded rows, name their cause, and detect too many in a row."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import Block, tags

REFUSED = "Guard/refused"
SKIPPED = "Guard/skipped"
"""Column set in the rows of steps whose update was skipped after a rollback; these are not refusals."""
SCALER_SKIPPED = "Guard/scaler_skipped"
"""Column that is 1 in the rows of steps whose update a gradient scaler skipped to lower its factor; not a refusal."""


class Streak(NamedTuple):
    """Consecutive refused updates.

    Attributes:
        first: step of the first refused update.
        length: number of refused updates so far.
        culprit: description of the non-finite values of the latest one.
    """

    first: int
    length: int
    culprit: str


class Refusals:
    """Block reader that reports every refused step with its non-finite terms, groups and samples.

    Args:
        limit: number of consecutive refusals at which the run has diverged.
        report: callback, called once per refusal with an event: step, terms, groups, rates, samples.

    Attributes:
        count: number of refusals so far.
        diverged: streak that reached the limit; None if there is none.
    """

    def __init__(self, limit: int, report: Callable[[Mapping[str, Any]], None]) -> None:
        self._limit = limit
        self._report = report
        self._streak: Streak | None = None
        self.count = 0
        self.diverged: Streak | None = None

    @property
    def ongoing(self) -> bool:
        """Whether the latest update was refused."""
        return self._streak is not None

    def restart(self, count: int) -> None:
        """Begin a new segment.

        Args:
            count: number of refusals in earlier segments.
        """
        self.count = count
        self._streak = None
        self.diverged = None

    @staticmethod
    def are_in(block: Block) -> bool:
        """Return whether any update of a block was refused."""
        refused = _refused(block)
        return refused is not None and bool(refused.any())

    def __call__(self, block: Block) -> None:
        """Process one block of rows."""
        refused = _refused(block)
        if refused is None:
            return
        # Fast path: rows are inspected one by one only in a block that contains a refusal.
        if not refused.any():
            self._streak = None
            return
        for row in range(len(block)):
            self._read(block, row, refused=bool(refused[row]))

    def _read(self, block: Block, row: int, *, refused: bool) -> None:
        if not refused:
            self._streak = None
            return
        step = int(block.steps[row])
        event = {"kind": "refusal", "step": step, "seconds": float(block.seconds[row]), **culprit(block, row)}
        self.count += 1
        self._streak = self._longer(step, describe_refusal(event))
        self._report(event)
        # Keep the first streak that reached the limit; it may grow until the training thread notices.
        if self.diverged is None and self._streak.length >= self._limit:
            self.diverged = self._streak

    def _longer(self, step: int, reason: str) -> Streak:
        streak = self._streak
        return Streak(streak.first, streak.length + 1, reason) if streak else Streak(step, 1, reason)


def _refused(block: Block) -> NDArray[np.bool_] | None:
    """Return whether the update of each row was refused; None if the block does not tell."""
    # All rows of a block have the same columns, so SKIPPED means that every update in it was skipped.
    if block.axis != "step" or REFUSED not in block.columns or SKIPPED in block.columns:
        return None
    return block.values[:, block.columns.index(REFUSED)] > 0


def culprit(block: Block, row: int) -> dict[str, list[str]]:
    """Return the names of the non-finite loss terms, parameter groups, learning rates and samples of a row."""
    bad = [name for name, ok in zip(block.columns, np.isfinite(block.values[row]), strict=True) if not ok]
    terms = list(tags.COMPONENT.parts(bad))
    groups = list(tags.GROUP_NORM.parts(bad))
    rates = list(tags.LEARNING_RATE.parts(bad))
    samples = list(block.samples[row]) if block.samples else []
    # Without a loss per sample, any sample of the step may be the cause: name them all.
    bad_samples = [samples[index] for name in bad if (index := tags.sample_place(name)) is not None]
    return {"terms": terms, "groups": groups, "rates": rates, "samples": bad_samples or samples}


def describe_refusal(event: Mapping[str, Any]) -> str:
    """Return a phrase that names the non-finite terms, groups, learning rates and samples of a refusal."""
    kinds = {"term": "terms", "group": "groups", "learning rate": "rates", "sample": "samples"}
    parts = [f"{kind} {', '.join(event[key])}" for kind, key in kinds.items() if event.get(key)]
    return "; ".join(parts) or "the total loss"
