"""Contradictions within a snapshot: they are reported with numbers, neither hidden nor a reason to refuse the file."""

from collections.abc import Iterator

import numpy as np

from fieldwatch.report.snapshot.allocations import Mismatches
from fieldwatch.report.snapshot.model import Inconsistency, Timeline
from fieldwatch.report.snapshot.records import FREE_REQUESTED, AllocatorSegment, DeviceRecord
from fieldwatch.report.snapshot.timeline import MOST_SPANS
from fieldwatch.report.snapshot.totals import bytes_in


def inconsistencies_of(recorded: DeviceRecord, oddities: Mismatches, timeline: Timeline) -> tuple[Inconsistency, ...]:
    """Return each kind of contradiction once, with its number of occurrences."""
    found = [*_state(recorded.segments), *_odd_events(recorded, oddities), *_order(recorded, timeline)]
    return tuple(found)


def _state(segments: tuple[AllocatorSegment, ...]) -> Iterator[Inconsistency]:
    """Compare the sizes that the segments record with the sums of their blocks."""
    sums = [(s, sum(b.size for b in s.blocks), bytes_in(s, "active_allocated")) for s in segments]
    gaps = [(s.total, covered) for s, covered, _ in sums if covered != s.total]
    if gaps:
        yield _found(
            "blocks do not fill their segment",
            len(gaps),
            f"in {len(gaps)} of {len(segments)} segments, expected the blocks to add up to "
            f"{sum(t for t, _ in gaps):,} B, got {sum(c for _, c in gaps):,} B",
        )
    other = [(s.allocated, taken) for s, _, taken in sums if s.allocated not in {None, taken}]
    if other:
        yield _found(
            "allocated_size is not the sum of the blocks",
            len(other),
            f"{len(other)} of {len(segments)} segments record {sum(a or 0 for a, _ in other):,} B as allocated, "
            f"but their blocks in use add up to {sum(t for _, t in other):,} B",
        )
    yield from _places(segments)


def _places(segments: tuple[AllocatorSegment, ...]) -> Iterator[Inconsistency]:
    """Find blocks that are outside their segment or overlap, and blocks that are smaller than their request."""
    apart = small = 0
    for segment in segments:
        at = segment.address
        for block in segment.blocks:
            apart += block.address < at or block.address + block.size > segment.address + segment.total
            small += (block.requested or 0) > block.size
            at = block.address + block.size
    if apart:
        yield _found(
            "blocks are outside their segment or overlap",
            apart,
            f"{apart} blocks are outside their segment or overlap another block",
        )
    if small:
        yield _found("blocks are smaller than their request", small, f"{small} blocks are smaller than their request")


def _odd_events(recorded: DeviceRecord, oddities: Mismatches) -> Iterator[Inconsistency]:
    """Report contradictions found while following allocations, and unknown actions."""
    for what, count in oddities.count.items():
        reason = ""
        if what == "free_completed without free_requested" and not (recorded.trace.action == FREE_REQUESTED).any():
            reason = ": the history contains no free_requested at all (recorded with skip_actions?)"
        yield _found(what, count, f"{count:,} events, {oddities.size[what]:,} B: {what}{reason}")
    for action, count in recorded.trace.unknown.items():
        yield _found("unknown action", count, f"{count:,} events have the unknown action {action!r}")


def _order(recorded: DeviceRecord, timeline: Timeline) -> Iterator[Inconsistency]:
    """Report times that go backwards and impossible amounts of memory."""
    names = len({mark.name for mark in recorded.annotations})
    if names > MOST_SPANS:
        yield _found("too many spans", names, f"only the first {MOST_SPANS:,} of {names:,} annotated spans are shown")
    back = int((np.diff(recorded.trace.time) < 0).sum())
    if back:
        yield _found("time runs backwards", back, f"{back:,} events are earlier than the event before them")
    over = int((timeline.requested - timeline.reserved).max(initial=0))
    if over > 0:
        yield _found(
            "more was requested than reserved",
            int((timeline.requested > timeline.reserved).sum()),
            f"at its worst, the history has {over:,} B more in use than the segments have",
        )
    low = int(timeline.reserved.min(initial=timeline.reserved_before))
    if low < 0:
        yield _found(
            "more was released than reserved",
            1,
            f"counted back from the end, the reserved memory would have been {low:,} B: segments are missing",
        )


def _found(what: str, count: int, message: str) -> Inconsistency:
    return Inconsistency(what=what, count=count, message=message)
