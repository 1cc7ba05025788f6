"""Reads refused updates off the record, names their culprit, and says when there are too many in a row."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fieldwatch.record import Block, tags

REFUSED = "Guard/refused"
SKIPPED = "Guard/skipped"
"""Stands in the rows of steps whose update was skipped on purpose, after a rollback: no refusal."""


class Streak(NamedTuple):
    """An unbroken run of refused updates: its first step, how many there are so far, and what was not finite."""

    first: int
    length: int
    culprit: str


class Refusals:
    """A reader of blocks that reports every refused step, with the terms, groups and samples that were not finite.

    Args:
        limit: this many refusals in a row mean that the run has diverged.
        report: called once per refusal with an event: step, terms, groups, samples.
    """

    def __init__(self, limit: int, report: Callable[[Mapping[str, Any]], None]) -> None:
        self._limit = limit
        self._report = report
        self._streak: Streak | None = None
        self.count = 0
        self.diverged: Streak | None = None

    @property
    def ongoing(self) -> bool:
        """Whether the last update that was read was refused."""
        return self._streak is not None

    def restart(self, count: int) -> None:
        """Begin a segment after so many refusals."""
        self.count = count
        self._streak = None
        self.diverged = None

    def __call__(self, block: Block) -> None:
        """Read one block."""
        if block.axis != "step" or REFUSED not in block.columns or SKIPPED in block.columns:
            return
        refused = block.values[:, block.columns.index(REFUSED)] > 0
        # The usual block: rows are looked at one by one only where something was refused.
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
        if self.diverged is None and self._streak.length >= self._limit:
            self.diverged = self._streak

    def _longer(self, step: int, reason: str) -> Streak:
        streak = self._streak
        return Streak(streak.first, streak.length + 1, reason) if streak else Streak(step, 1, reason)


def culprit(block: Block, row: int) -> dict[str, list[str]]:
    """Which loss terms, parameter groups, learning rates and samples of a row were not finite."""
    bad = [name for name, ok in zip(block.columns, np.isfinite(block.values[row]), strict=True) if not ok]
    terms = list(tags.COMPONENT.parts(bad))
    groups = list(tags.GROUP_NORM.parts(bad))
    rates = list(tags.LEARNING_RATE.parts(bad))
    samples = list(block.samples[row]) if block.samples else []
    # Where no loss per sample tells which one it was, all samples of the step are named.
    bad_samples = [samples[index] for name in bad if (index := tags.sample_place(name)) is not None]
    return {"terms": terms, "groups": groups, "rates": rates, "samples": bad_samples or samples}


def describe_refusal(event: Mapping[str, Any]) -> str:
    """One phrase: term, group, learning rate and sample."""
    kinds = {"term": "terms", "group": "groups", "learning rate": "rates", "sample": "samples"}
    parts = [f"{kind} {', '.join(event[key])}" for kind, key in kinds.items() if event.get(key)]
    return "; ".join(parts) or "the total loss"
