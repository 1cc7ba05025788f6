"""What the file says about each device, checked, with nothing worked out yet. All amounts are bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

State = Literal["active_allocated", "active_awaiting_free", "inactive"]
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "unknown",
)
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = range(7)
UNKNOWN = len(ACTIONS) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorBlock:
    """A piece of a segment.

    Attributes:
        address: where it starts.
        size: what it takes.
        requested: what was asked for; None where the version of torch did not say, and for free blocks 0.
        state: used by a tensor, given back but still awaited by a stream, or free for reuse.
        stack: number of the stack that allocated it, 0 where unknown.
    """

    address: int
    size: int
    requested: int | None
    state: State
    stack: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSegment:
    """Memory that the allocator got from CUDA in one piece.

    Attributes:
        address: where it starts.
        total: its size; the sum over all segments is the reserved memory.
        allocated, active, requested: what the allocator itself counted in it; None where the version did not say.
        stream: the stream it belongs to.
        kind: ``"small"`` (requests up to 1 MiB) or ``"large"``.
        pool: the id of its memory pool; (0, 0) is the common one, others belong to CUDA graphs or ``MemPool``.
        expandable: whether it can grow and give back pages at its end.
        blocks: its pieces in the order of the file.
    """

    address: int
    total: int
    allocated: int | None
    active: int | None
    requested: int | None
    stream: int
    kind: str
    pool: tuple[int, ...]
    expandable: bool
    blocks: tuple[AllocatorBlock, ...]

    @property
    def is_free(self) -> bool:
        """Tell whether no block is in use, so that ``empty_cache`` gives the segment back."""
        return not self.active and all(block.state == "inactive" for block in self.blocks)


@dataclass(frozen=True, kw_only=True)
class AllocatorTrace:
    """The recorded history as columns, one entry for each event ``[events]``, oldest first.

    Attributes:
        action: index into ``ACTIONS``, uint8.
        address: uint64; 0 for an out-of-memory event.
        size: requested bytes, int64.
        time: microseconds since 1970, int64; 0 where not recorded.
        stack: number of the stack, int32.
        phase: index into ``phases``, -1 where no label was set, int32.
        phases: the labels set by ``_set_memory_metadata``.
        unknown: actions that are not in ``ACTIONS``, with how often they came.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    time: NDArray[np.int64]
    stack: NDArray[np.int32]
    phase: NDArray[np.int32]
    phases: tuple[str, ...]
    unknown: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A mark in time that the program or a profiler set.

    Attributes:
        name: its text.
        begins: whether it opens or closes a span.
        time: microseconds since 1970.
        device: the device it is about.
    """

    name: str
    begins: bool
    time: int
    device: int


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """A request that could not be met.

    Attributes:
        event: its place in the history.
        time: microseconds since 1970, 0 where not recorded.
        requested: bytes asked for.
        device_free: what CUDA still reported as free; None where not recorded.
        stack: number of the stack that asked.
    """

    event: int
    time: int
    requested: int
    device_free: int | None
    stack: int


@dataclass(frozen=True, kw_only=True)
class DeviceRecord:
    """What the file says about one device, nothing worked out yet."""

    device: int
    segments: tuple[AllocatorSegment, ...]
    trace: AllocatorTrace
    out_of_memory: tuple[FailedAllocation, ...]
    annotations: tuple[Annotation, ...]
