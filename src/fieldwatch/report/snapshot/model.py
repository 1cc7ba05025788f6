"""What a snapshot of the CUDA allocator holds: the state of each device, and the history that led to it.

All amounts are bytes. The allocator rounds up what it is asked for: a block's ``size`` is what it takes, ``requested``
what the program wanted. The history records what was requested, so the timeline, its peak and the sites count requested
bytes; the state (reserved, allocated, active, free) counts what is taken.
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
    """Every allocation the history or the final state knows, as columns ``[allocations]``.

    Attributes:
        size: requested bytes, int64.
        start: the event that made it; -1 for those older than the history, int64.
        end: the event that gave it back; the number of events for those never given back, int64.
        stack: number of its stack; -1 where it was made before the history and nobody knows where, int32.
        live: whether a block in use stands for it in the final state.
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
    """The moment of most requested bytes.

    Attributes:
        requested: how many there were.
        event: after which event; -1 means when the history began, so the true peak may lie before.
        time: microseconds since 1970, 0 where not recorded.
        phase: what the program was doing, as far as it said so.
    """

    requested: int
    event: int
    time: int
    phase: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Requested bytes over the history.

    Attributes:
        requested: after each event ``[events]``, int64.
        reserved: memory held from CUDA after each event ``[events]``, int64.
        reserved_before: memory held when the history began, counted back from the end.
        before: requested bytes that were there when the history began: all that is still in use or was given back
            without having been allocated within the history. What was allocated and given back before is not seen.
        peak: the highest point; None without a history.
    """

    requested: NDArray[np.int64]
    reserved: NDArray[np.int64]
    reserved_before: int
    before: int
    peak: Peak | None


@dataclass(frozen=True, kw_only=True)
class SiteUse:
    """What one place in the code did with memory, in requested bytes.

    Attributes:
        site: ``file.py:12 function`` of the innermost call that is not generic.
        filename: its whole file name, empty where there is no stack.
        now: bytes in use at the end.
        at_peak: bytes in use at the peak of the timeline.
        churn: bytes it allocated over the history.
        count: allocations it made over the history.
        stack: the calls that tell who wanted it, innermost first, of the stack with the most bytes.
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
    """The state of one device, or of one of its pools, at the end.

    ``reserved = allocated + awaiting_free + not_returnable + returnable + uncovered`` where the file agrees with
    itself; where it does not, ``DeviceSnapshot.inconsistencies`` says so with numbers.

    Attributes:
        segments: how many.
        blocks: how many.
        reserved: held from CUDA.
        allocated: taken by live tensors.
        active: taken, blocks awaiting a stream included.
        requested: asked for, of what is active; None where the version of torch did not say.
        rounding: active - requested: lost to rounding up; None where unknown.
        awaiting_free: given back, but another stream may still use it.
        not_returnable: free pieces in segments that also hold live blocks: true external fragmentation.
        returnable: segments that are wholly free: ``empty_cache`` gives them back, and other requests can use them.
        largest_free: the largest free block: a larger request needs new memory from CUDA.
        uncovered: bytes of segments that no block describes (0 in a sound file).
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
        """Return the bytes of all free blocks."""
        return self.not_returnable + self.returnable

    @property
    def fragmentation(self) -> float | None:
        """Return 1 - largest free block / all free bytes; 0 is one piece, towards 1 is crumbs, None nothing free."""
        return 1 - self.largest_free / self.free if self.free else None


@dataclass(frozen=True, kw_only=True)
class PoolUse:
    """The state of one pool.

    Attributes:
        pool: its id; (0, 0) is the common pool, others are private (CUDA graphs, ``MemPool``).
        kind: ``"small"`` or ``"large"``.
        stream: the stream.
        totals: its numbers.
    """

    pool: tuple[int, ...]
    kind: str
    stream: int
    totals: MemoryTotals


@dataclass(frozen=True, kw_only=True)
class LabeledPhase:
    """What happened while a label was set or a span was open.

    Attributes:
        name: the label.
        source: ``"metadata"`` (a label on the allocations) or ``"annotation"`` (a span in time).
        events: how many events.
        churn: bytes allocated in it.
        peak: the most requested bytes in it.
    """

    name: str
    source: Source
    events: int
    churn: int
    peak: int


@dataclass(frozen=True, kw_only=True)
class Inconsistency:
    """Two numbers of the file that do not agree.

    Attributes:
        what: a stable name of the kind.
        count: how often.
        message: what was found, with the numbers.
    """

    what: str
    count: int
    message: str


@dataclass(frozen=True, kw_only=True)
class DeviceSnapshot:
    """One device of a snapshot: what the file says, and what follows from it.

    Attributes:
        device: its index.
        segments: its memory, in the order of the file.
        trace: its history.
        totals: the state at the end.
        pools: the same for each pool, largest first.
        allocations: all known allocations.
        timeline: requested bytes over the history.
        sites: what each place in the code did, those with most bytes first.
        site_of: the place in ``sites`` of each allocation, int32 ``[allocations]``.
        out_of_memory: requests that failed.
        phases: labels and spans, in order of their peak.
        inconsistencies: where the file disagrees with itself.
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
        path: the file.
        size_bytes: its size.
        devices: those with memory or history, by index; empty if CUDA was not used.
        stacks: all different stacks; blocks and events refer to them by number.
        settings: the allocator's settings, as text.
    """

    path: Path
    size_bytes: int
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    settings: Mapping[str, str]
