"""Memory after each event of the history, its peak, and the labeled phases."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.snapshot.model import Allocations, LabeledPhase, Peak, Timeline
from fieldwatch.report.snapshot.records import (
    ALLOC,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    AllocatorTrace,
    Annotation,
    DeviceRecord,
)

MOST_SPANS = 1_000
_GROWS = {SEGMENT_ALLOC: 1, SEGMENT_MAP: 1, SEGMENT_FREE: -1, SEGMENT_UNMAP: -1}


def timeline_of(recorded: DeviceRecord, allocations: Allocations) -> Timeline:
    """Return the timeline of one device; by construction, it ends with the memory in use in the final state."""
    events = len(recorded.trace)
    before = int(allocations.size[allocations.start < 0].sum())
    requested = before + np.cumsum(_changes(allocations, events))
    grown = _grown(recorded.trace)
    reserved_before = sum(segment.total for segment in recorded.segments) - int(grown.sum())
    peak = _peak(recorded, requested, before) if events else None
    return Timeline(
        requested=requested,
        reserved=reserved_before + np.cumsum(grown),
        reserved_before=reserved_before,
        before=before,
        peak=peak,
    )


def phases_of(recorded: DeviceRecord, timeline: Timeline) -> tuple[LabeledPhase, ...]:
    """Return the memory use under each label and within each annotated span, highest peak first."""
    found = [*_labeled(recorded.trace, timeline), *_annotated(recorded, timeline)]
    return tuple(sorted(found, key=lambda phase: (-phase.peak, phase.name)))


def _labeled(trace: AllocatorTrace, timeline: Timeline) -> Iterator[LabeledPhase]:
    """Yield the phases of the labels on events."""
    chosen = trace.phase >= 0
    code = trace.phase[chosen]
    count = len(trace.phases)
    churn = np.zeros(count, dtype=np.int64)
    peak = np.zeros(count, dtype=np.int64)
    np.add.at(churn, code, np.where(trace.action == ALLOC, trace.size, 0)[chosen])
    np.maximum.at(peak, code, timeline.requested[chosen])
    numbers = np.stack([np.bincount(code, minlength=count), churn, peak], axis=1).tolist()
    for name, (events, size, most) in zip(trace.phases, numbers, strict=True):
        yield LabeledPhase(name=name, source="metadata", events=events, churn=size, peak=most)


def _annotated(recorded: DeviceRecord, timeline: Timeline) -> Iterator[LabeledPhase]:
    """Yield the phases of the annotated spans."""
    trace = recorded.trace
    for name, within in _spans(recorded).items():
        churn = int(trace.size[within & (trace.action == ALLOC)].sum())
        peak = int(timeline.requested[within].max(initial=0))
        yield LabeledPhase(name=name, source="annotation", events=int(within.sum()), churn=churn, peak=peak)


def _changes(allocations: Allocations, events: int) -> NDArray[np.int64]:
    """Return the change of the requested bytes by each event, ``[events]``."""
    changes = np.zeros(events, dtype=np.int64)
    made = allocations.start >= 0
    ended = allocations.end < events
    np.add.at(changes, allocations.start[made], allocations.size[made])
    np.add.at(changes, allocations.end[ended], -allocations.size[ended])
    return changes


def _grown(trace: AllocatorTrace) -> NDArray[np.int64]:
    """Return the change of the bytes reserved from CUDA by each event, ``[events]``."""
    signs = np.zeros(256, dtype=np.int64)
    for action, sign in _GROWS.items():
        signs[action] = sign
    return signs[trace.action] * trace.size


def _peak(recorded: DeviceRecord, requested: NDArray[np.int64], before: int) -> Peak:
    at = int(requested.argmax())
    # The peak is before the first event.
    if requested[at] < before:
        return Peak(requested=before, event=-1, time=int(recorded.trace.time[0]), phase="")
    return Peak(
        requested=int(requested[at]), event=at, time=int(recorded.trace.time[at]), phase=_phase_at(recorded, at)
    )


def _phase_at(recorded: DeviceRecord, at: int) -> str:
    """Return the label of an event, else the names of the spans that contain it."""
    trace: AllocatorTrace = recorded.trace
    if trace.phase[at] >= 0:
        return trace.phases[int(trace.phase[at])]
    return ", ".join(name for name, within in _spans(recorded).items() if within[at])


def _spans(recorded: DeviceRecord) -> dict[str, NDArray[np.bool_]]:
    """Return the events within the spans of each name; a span without an end lasts to the end of the history.

    Only the first 1,000 names are used, because each of them is compared with all events.
    """
    time = recorded.trace.time
    marks: dict[str, list[Annotation]] = {}
    for mark in recorded.annotations:
        marks.setdefault(mark.name, []).append(mark)
    return {name: _inside(time, own) for name, own in islice(marks.items(), MOST_SPANS)} if time.any() else {}


def _inside(time: NDArray[np.int64], marks: list[Annotation]) -> NDArray[np.bool_]:
    """Return for each event whether a span is open; an end without a begin is ignored."""
    ordered = sorted(marks, key=lambda mark: mark.time)
    depth = 0
    depths = [0]
    for mark in ordered:
        depth = depth + 1 if mark.begins else max(0, depth - 1)
        depths.append(depth)
    at = np.searchsorted(np.array([mark.time for mark in ordered], dtype=np.int64), time, side="right")
    return np.array([depth > 0 for depth in depths], dtype=np.bool_)[at]
