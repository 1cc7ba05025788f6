"""Validated content of a snapshot file by device, without derived values; all sizes are in bytes."""

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
        address: start address.
        size: rounded size.
        requested: requested size; 0 for free blocks, None if the version of torch did not record it.
        state: in use by a tensor, freed but still awaiting a stream, or free.
        stack: index of the allocating stack; 0 if unknown.
    """

    address: int
    size: int
    requested: int | None
    state: State
    stack: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSegment:
    """A contiguous piece of memory that the allocator reserved from CUDA.

    Attributes:
        address: start address.
        total: size; the sum over all segments is the reserved memory.
        allocated: allocated bytes as counted by the allocator; None if the version of torch did not record it.
        active: active bytes, likewise.
        requested: requested bytes, likewise.
        stream: CUDA stream.
        kind: ``"small"`` (requests up to 1 MiB) or ``"large"``.
        pool: ID of the memory pool; (0, 0) is the common pool, others belong to CUDA graphs or ``MemPool``.
        expandable: whether the segment can grow, and release pages at its end.
        blocks: blocks in the order of the file.
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
        """Whether no block is in use, so that ``empty_cache`` releases the segment."""
        return not self.active and all(block.state == "inactive" for block in self.blocks)


@dataclass(frozen=True, kw_only=True)
class AllocatorTrace:
    """Recorded history as columns ``[events]``, oldest event first.

    Attributes:
        action: index into ``ACTIONS``, uint8.
        address: uint64; 0 for an out-of-memory event.
        size: requested bytes, int64.
        time: microseconds since 1970, int64; 0 if not recorded.
        stack: index of the stack, int32.
        phase: index into ``phases``, int32; -1 if no label was set.
        phases: labels set by ``_set_memory_metadata``.
        unknown: number of events by action, for actions that are not in ``ACTIONS``.
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
    """Begin or end of a span, set by the program or a profiler.

    Attributes:
        name: name of the span.
        begins: True at the begin, False at the end.
        time: microseconds since 1970.
        device: device index.
    """

    name: str
    begins: bool
    time: int
    device: int


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """A request for memory that failed.

    Attributes:
        event: index of the event in the history.
        time: microseconds since 1970; 0 if not recorded.
        requested: requested bytes.
        device_free: bytes that CUDA reported as free; None if not recorded.
        stack: index of the requesting stack.
    """

    event: int
    time: int
    requested: int
    device_free: int | None
    stack: int


@dataclass(frozen=True, kw_only=True)
class DeviceRecord:
    """Content of the file about one device."""

    device: int
    segments: tuple[AllocatorSegment, ...]
    trace: AllocatorTrace
    out_of_memory: tuple[FailedAllocation, ...]
    annotations: tuple[Annotation, ...]
