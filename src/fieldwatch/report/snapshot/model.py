"""Data model of a snapshot of the CUDA allocator: the final state of each device, and its history.

All sizes are in bytes. The allocator rounds requests up: ``size`` of a block is its rounded size, ``requested`` the
size of the request. The history records requested sizes, which the timeline, its peak and the sites therefore count;
the final state (reserved, allocated, active, free) counts rounded sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.snapshot.records import AllocatorSegment, AllocatorTrace, FailedAllocation
from fieldwatch.report.snapshot.stacks import Stack

Source = Literal["metadata", "annotation"]


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """All allocations of the history and the final state, as columns ``[allocations]``.

    Attributes:
        size: requested bytes, int64.
        start: index of the allocating event, int64; -1 if older than the history.
        end: index of the freeing event, int64; the number of events if never freed.
        stack: index of the stack, int32; -1 if older than the history and without a stack.
        live: whether the allocation is a block in use in the final state.
    """

    size: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    stack: NDArray[np.int32]
    live: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The peak of requested bytes.

    Attributes:
        requested: requested bytes at the peak.
        event: index of the event that reached the peak; -1 for the start of the history, before which memory may have
            been higher.
        time: microseconds since 1970; 0 if not recorded.
        phase: phase of the program at the peak; empty if not labeled.
    """

    requested: int
    event: int
    time: int
    phase: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Requested bytes over the history.

    Attributes:
        requested: ``[events]`` int64 requested bytes after each event.
        reserved: ``[events]`` int64 bytes reserved from CUDA after each event.
        reserved_before: reserved bytes at the start of the history, computed backwards from the end.
        before: requested bytes at the start of the history: allocations that are still in use or were freed without
            having been allocated within the history. Allocations freed before the start are not visible.
        peak: peak of requested bytes; None without a history.
    """

    requested: NDArray[np.int64]
    reserved: NDArray[np.int64]
    reserved_before: int
    before: int
    peak: Peak | None


@dataclass(frozen=True, kw_only=True)
class SiteUse:
    """Memory use of one line of code, in requested bytes.

    Attributes:
        site: ``file.py:12 function`` of the innermost call that is not generic.
        filename: full file name; empty without a stack.
        now: bytes in use at the end.
        at_peak: bytes in use at the peak of the timeline.
        churn: total bytes allocated over the history.
        count: number of allocations over the history.
        stack: non-generic calls of the stack with the most bytes, innermost first.
    """

    site: str
    filename: str
    now: int
    at_peak: int
    churn: int
    count: int
    stack: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryTotals:
    """Final state of one device, or of one of its pools.

    In a consistent file, ``reserved = allocated + awaiting_free + not_returnable + returnable + uncovered``; deviations
    are listed in ``DeviceSnapshot.inconsistencies``.

    Attributes:
        segments: number of segments.
        blocks: number of blocks.
        reserved: bytes reserved from CUDA.
        allocated: bytes of live tensors.
        active: allocated bytes, and freed blocks that still await a stream.
        requested: requested bytes of the active blocks; None if torch did not record them.
        rounding: active - requested, the loss by rounding; None if unknown.
        awaiting_free: freed bytes that another stream may still use.
        not_returnable: free bytes in segments that also have live blocks: external fragmentation.
        returnable: bytes of completely free segments, which ``empty_cache`` returns and other requests can use.
        largest_free: size of the largest free block; larger requests need new memory from CUDA.
        uncovered: bytes of segments without a block (0 in a valid file).
    """

    segments: int
    blocks: int
    reserved: int
    allocated: int
    active: int
    requested: int | None
    rounding: int | None
    awaiting_free: int
    not_returnable: int
    returnable: int
    largest_free: int
    uncovered: int

    @property
    def free(self) -> int:
        """Bytes of all free blocks."""
        return self.not_returnable + self.returnable

    @property
    def fragmentation(self) -> float | None:
        """1 - largest free block / free bytes: 0 for one piece, near 1 for many pieces, None if nothing is free."""
        return 1 - self.largest_free / self.free if self.free else None


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """The state of one pool.

    Attributes:
        pool: ID of the pool; (0, 0) is the common pool, others are private (CUDA graphs, ``MemPool``).
        kind: size class, ``"small"`` or ``"large"``.
        stream: CUDA stream.
        totals: totals of the pool.
    """

    pool: tuple[int, ...]
    kind: str
    stream: int
    totals: MemoryTotals


@dataclass(frozen=True, kw_only=True)
class LabeledPhase:
    """Memory use while a label was set or a span was open.

    Attributes:
        name: name of the label or span.
        source: ``"metadata"`` (a label on the allocations) or ``"annotation"`` (a span in time).
        events: number of events.
        churn: total bytes allocated in the phase.
        peak: peak of requested bytes in the phase.
    """

    name: str
    source: Source
    events: int
    churn: int
    peak: int


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """A contradiction between numbers of the file.

    Attributes:
        what: stable name of the kind.
        count: number of occurrences.
        message: description with the numbers.
    """

    what: str
    count: int
    message: str


@dataclass(frozen=True, kw_only=True)
class DeviceSnapshot:
    """One device of a snapshot: content of the file, and values derived from it.

    Attributes:
        device: device index.
        segments: segments in the order of the file.
        trace: recorded history.
        totals: final state.
        pools: final state of each pool, largest first.
        allocations: all known allocations.
        timeline: requested bytes over the history.
        sites: memory use of each allocating line, most bytes first.
        site_of: ``[allocations]`` int32 index into ``sites``.
        out_of_memory: failed requests.
        phases: labels and spans, in order of their peak.
        inconsistencies: contradictions within the file.
    """

    device: int
    segments: tuple[AllocatorSegment, ...]
    trace: AllocatorTrace
    totals: MemoryTotals
    pools: tuple[PoolUse, ...]
    allocations: Allocations
    timeline: Timeline
    sites: tuple[SiteUse, ...]
    site_of: NDArray[np.int32]
    out_of_memory: tuple[FailedAllocation, ...]
    phases: tuple[LabeledPhase, ...]
    inconsistencies: tuple[Inconsistency, ...]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot of torch's CUDA allocator, read without running code.

    Attributes:
        path: snapshot file.
        size_bytes: size of the file.
        devices: devices with memory or history, by index; empty if CUDA was not used.
        stacks: all distinct stacks; blocks and events refer to them by index.
        settings: settings of the allocator, as text.
    """

    path: Path
    size_bytes: int
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, str]
