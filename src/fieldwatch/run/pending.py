"""Rows that are in the journal and wait for the other readers, which take many rows as fast as a few."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np

from fieldwatch.record import Axis, Block

LONGEST_WAIT = 0.25
"""Seconds that a row waits at most."""
MOST_ROWS = 256
"""Number of rows that wait at most. Arrays of more rows take longer for each row: their memory comes page by page."""


class PendingBlocks:
    """Collects blocks for `LONGEST_WAIT` seconds.

    Args:
        clock: monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._blocks: list[Block] = []
        self._rows = 0
        self._due = 0.0

    def add(self, blocks: Sequence[Block]) -> None:
        """Add blocks that follow those added before."""
        if not self._blocks:
            self._due = self._clock() + LONGEST_WAIT
        self._blocks.extend(blocks)
        self._rows += sum(map(len, blocks))

    @property
    def last_step(self) -> int:
        """Last step that waits; -1 if none does."""
        return max((int(block.steps[-1]) for block in self._blocks if len(block)), default=-1)

    def wait(self) -> float | None:
        """Return the seconds until the blocks are due, 0 if they are; None if there are none."""
        if not self._blocks:
            return None
        return 0.0 if self._rows >= MOST_ROWS else max(0.0, self._due - self._clock())

    def take(self) -> list[Block]:
        """Return all rows and begin anew. Consecutive blocks with the same columns become one."""
        blocks = self._blocks
        self._blocks = []
        self._rows = 0
        return list(_joined(blocks))


def _joined(blocks: Sequence[Block]) -> Iterator[Block]:
    for (axis, columns, has_samples), group in groupby(blocks, _layout):
        parts = list(group)
        if len(parts) == 1:
            yield parts[0]
            continue
        yield Block(
            axis=axis,
            columns=columns,
            steps=np.concatenate([part.steps for part in parts]),
            seconds=np.concatenate([part.seconds for part in parts]),
            positions=np.concatenate([part.positions for part in parts]),
            values=np.concatenate([part.values for part in parts]),
            samples=tuple(names for part in parts for names in part.samples) if has_samples else (),
        )


def _layout(block: Block) -> tuple[Axis, tuple[str, ...], bool]:
    return block.axis, block.columns, bool(block.samples)
