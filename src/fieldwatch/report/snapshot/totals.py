"""Totals of segments: used memory, free memory, and the part of it that can be returned."""

from collections.abc import Sequence

from fieldwatch.report.snapshot.model import MemoryTotals, PoolUse
from fieldwatch.report.snapshot.records import AllocatorSegment, State


def totals_of(segments: Sequence[AllocatorSegment]) -> MemoryTotals:
    """Return the totals of segments.

    The allocator's own counters (allocated, active, requested) are used if the segments have them; otherwise the blocks
    are summed.
    """
    active = sum(_active(segment) for segment in segments)
    requests = [_requested(segment) for segment in segments]
    requested = None if any(request is None for request in requests) else sum(request or 0 for request in requests)
    reserved = sum(segment.total for segment in segments)
    return MemoryTotals(
        segments=len(segments),
        blocks=sum(len(segment.blocks) for segment in segments),
        reserved=reserved,
        allocated=sum(_allocated(segment) for segment in segments),
        active=active,
        requested=requested,
        rounding=None if requested is None else active - requested,
        awaiting_free=sum(bytes_in(segment, "active_awaiting_free") for segment in segments),
        not_returnable=sum(bytes_in(segment, "inactive") for segment in segments if not segment.is_free),
        returnable=sum(bytes_in(segment, "inactive") for segment in segments if segment.is_free),
        largest_free=max(
            (b.size for segment in segments for b in segment.blocks if b.state == "inactive"),
            default=0,
        ),
        uncovered=reserved - sum(block.size for segment in segments for block in segment.blocks),
    )


def pools_of(segments: Sequence[AllocatorSegment]) -> tuple[PoolUse, ...]:
    """Return the totals of each pool, size class and stream, most reserved memory first."""
    pools: dict[tuple[tuple[int, ...], str, int], list[AllocatorSegment]] = {}
    for segment in segments:
        pools.setdefault((segment.pool, segment.kind, segment.stream), []).append(segment)
    uses = [
        PoolUse(pool=pool, kind=kind, stream=stream, totals=totals_of(members))
        for (pool, kind, stream), members in pools.items()
    ]
    return tuple(sorted(uses, key=lambda use: -use.totals.reserved))


def bytes_in(segment: AllocatorSegment, state: State) -> int:
    """Return the bytes of a segment's blocks in one state."""
    return sum(block.size for block in segment.blocks if block.state == state)


def _allocated(segment: AllocatorSegment) -> int:
    return bytes_in(segment, "active_allocated") if segment.allocated is None else segment.allocated


def _active(segment: AllocatorSegment) -> int:
    if segment.active is not None:
        return segment.active
    return bytes_in(segment, "active_allocated") + bytes_in(segment, "active_awaiting_free")


def _requested(segment: AllocatorSegment) -> int | None:
    """Return the requested bytes of a segment; None if neither it nor all its blocks record them."""
    if segment.requested is not None:
        return segment.requested
    asked = [block.requested for block in segment.blocks if block.state != "inactive"]
    return None if None in asked else sum(size for size in asked if size is not None)
