"""Matches the events of the history to allocations: the event that made each one, and the event that freed it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fieldwatch.report.snapshot.model import Allocations
from fieldwatch.report.snapshot.records import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    AllocatorBlock,
    AllocatorTrace,
    DeviceRecord,
)

_OLDER = -1
_NOWHERE = -1


@dataclass(kw_only=True)
class Mismatches:
    """Contradictions found while following allocations, by kind.

    Attributes:
        count: number of occurrences.
        size: total size in bytes.
    """

    count: Counter[str] = field(default_factory=Counter[str])
    size: Counter[str] = field(default_factory=Counter[str])

    def note(self, what: str, size: int) -> None:
        """Count one occurrence."""
        self.count[what] += 1
        self.size[what] += size


class _Follower:
    """Goes through the events of one device, with the live allocations by address."""

    def __init__(self, *, requests: bool) -> None:
        self._requests = requests
        self.rows: list[list[int]] = []  # size, start, end, stack, live
        self.alive: dict[int, int] = {}
        self.pending: set[int] = set()
        self.returned: set[int] = set()
        self.oddities = Mismatches()

    def allocate(self, at: int, address: int, size: int, stack: int) -> None:
        if address in self.alive:
            self._end(address, at, "allocated twice without a free in between")
        self.pending.discard(address)
        self.returned.discard(address)
        self.alive[address] = len(self.rows)
        self.rows.append([size, at, -1, stack, 0])

    def request(self, at: int, address: int, size: int) -> None:
        self._give_back(at, address, size)
        self.pending.add(address)

    def complete(self, at: int, address: int, size: int) -> None:
        # The request already freed the bytes; this event only says that the stream has finished with them.
        if address in self.pending:
            self.pending.discard(address)
            return
        if self._requests and address not in self.alive and address not in self.returned:
            return  # freed before the history began
        self.oddities.note("free_completed without free_requested", size)
        self._give_back(at, address, size)

    def _give_back(self, at: int, address: int, size: int) -> None:
        if address in self.alive:
            if self.rows[self.alive[address]][0] != size:
                self.oddities.note("freed with a different size than allocated", size)
            self._end(address, at)
        elif address in self.returned:
            self.oddities.note("freed twice without an allocation in between", size)
        else:
            self.rows.append([size, _OLDER, at, _NOWHERE, 0])
        self.returned.add(address)

    def _end(self, address: int, at: int, why: str = "") -> None:
        row = self.rows[self.alive.pop(address)]
        row[2] = at
        if why:
            self.oddities.note(why, row[0])

    def settle(self, blocks: Iterable[AllocatorBlock], events: int) -> None:
        """Match the live allocations with the blocks in use at the end, and add blocks from before the history."""
        for block in blocks:
            size = block.size if block.requested is None else block.requested
            known = self.alive.pop(block.address, None)
            if known is None:
                self.rows.append([size, _OLDER, events, block.stack or (_NOWHERE if events else 0), 1])
                continue
            row = self.rows[known]
            row[2] = events
            row[3] = block.stack or row[3]
            row[4] = 1
            if row[0] != size and block.requested is not None:
                self.oddities.note("a block and its allocation differ in size", size)
        for left in self.alive.values():
            self.rows[left][2] = events
            self.oddities.note("live in the history, but in no block", self.rows[left][0])


def follow(recorded: DeviceRecord) -> tuple[Allocations, Mismatches]:
    """Return all allocations of the history and the final state, and the contradictions between them.

    An allocation is live until ``free_requested``, or until ``free_completed`` if the history has no such events
    (``skip_actions``).
    """
    trace = recorded.trace
    follower = _Follower(requests=bool((trace.action == FREE_REQUESTED).any()))
    steps = zip(trace.action.tolist(), trace.address.tolist(), trace.size.tolist(), trace.stack.tolist(), strict=True)
    for at, (action, address, size, stack) in enumerate(steps):
        if action == ALLOC:
            follower.allocate(at, address, size, stack)
        elif action == FREE_COMPLETED:
            follower.complete(at, address, size)
        elif action == FREE_REQUESTED:
            follower.request(at, address, size)
    follower.settle(_in_use(recorded), len(trace))
    rows = np.array(follower.rows, dtype=np.int64).reshape(-1, 5)
    size, start, end, stack, live = rows.T.copy()
    columns = Allocations(size=size, start=start, end=end, stack=stack.astype(np.int32), live=live.astype(np.bool_))
    return columns, follower.oddities


def _in_use(recorded: DeviceRecord) -> Iterable[AllocatorBlock]:
    states = {"active_allocated"} if _names_requests(recorded.trace) else {"active_allocated", "active_awaiting_free"}
    return (block for segment in recorded.segments for block in segment.blocks if block.state in states)


def _names_requests(trace: AllocatorTrace) -> bool:
    """Return whether the history records when memory was freed, and not only when it could be reused."""
    return not len(trace) or bool((trace.action == FREE_REQUESTED).any()) or not (trace.action == FREE_COMPLETED).any()
