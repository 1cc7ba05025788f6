"""Data of a snapshot's page as JSON, small enough that a browser opens it at once.

The largest allocations, blocks and stacks are kept exactly. Smaller allocations are added up, and drawn as 2,000 points
per layer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import moment, nbytes
from fieldwatch.report.snapshot.fields import sanitized
from fieldwatch.report.snapshot.model import DeviceSnapshot, SiteUse, Snapshot
from fieldwatch.report.snapshot.records import AllocatorBlock, AllocatorSegment
from fieldwatch.report.snapshot.sites import site_name
from fieldwatch.report.snapshot.stacks import BEFORE, Stack

LAYERS = 10
_ALLOCATIONS = 60_000
_POINTS = 2_000
_BLOCKS = 20_000
_SEGMENTS = 1_500
_SITES = 200
_MARKS = 500
_DEPTH = 24
_TEXT = 900_000
_STATES = {"active_allocated": 0, "active_awaiting_free": 1, "inactive": 2}
_Numbers = NDArray[np.int64]


def view_data(snapshot: Snapshot) -> dict[str, Any]:
    """Return everything that the page shows, as plain JSON values; all sizes are in bytes."""
    stacks = _PageStacks(snapshot)
    return {
        "file": sanitized(snapshot.path.name),
        "settings": dict(snapshot.settings),
        "layers": LAYERS,
        "devices": [_device(device, stacks) for device in snapshot.devices],
        "stacks": stacks.stacks,
        "frames": stacks.frames,
    }


class _PageStacks:
    """Stacks that the page can show: those with the most bytes, up to a total length of their text.

    Attributes:
        stacks: each stack as indices into ``frames``; the first is the empty stack.
        frames: distinct calls as text.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.stacks: list[list[int]] = [[]]
        self.frames: list[str] = []
        self._places = np.zeros(len(snapshot.stacks) + 1, dtype=np.int64)
        self._frame_places: dict[str, int] = {}
        self._left = _TEXT
        self._sites = [site_name(stack) for stack in snapshot.stacks]
        for stack in _by_bytes(snapshot):
            if self._left <= 0:
                break
            self._add(stack, snapshot.stacks[stack])

    def places(self, stacks: NDArray[np.int32] | list[int]) -> _Numbers:
        """Return the indices in ``stacks`` of stacks of the snapshot; 0 for stacks that were left out."""
        return self._places[np.asarray(stacks, dtype=np.int64)]

    def site(self, stack: int) -> str:
        """Return the site of a stack of the snapshot."""
        return self._sites[stack]

    def _add(self, number: int, stack: Stack) -> None:
        places: list[int] = []
        for frame in stack[:_DEPTH]:
            text = f"{frame.name}  {frame.filename}:{frame.line}"
            if text not in self._frame_places:
                self._frame_places[text] = len(self.frames)
                self.frames.append(text)
                self._left -= len(text)
            places.append(self._frame_places[text])
        self._left -= 5 * len(places)
        self._places[number] = len(self.stacks)
        self.stacks.append(places)


def _by_bytes(snapshot: Snapshot) -> list[int]:
    """Return the indices of the stacks that allocated memory, most bytes first."""
    sums = np.zeros(len(snapshot.stacks) + 1, dtype=np.int64)
    for device in snapshot.devices:
        np.add.at(sums, device.allocations.stack, device.allocations.size)
        for failed in device.out_of_memory:
            sums[failed.stack] = np.iinfo(np.int64).max
    sums[0] = sums[-1] = 0
    return np.flatnonzero(sums)[np.argsort(-sums[sums != 0], kind="stable")].tolist()


def _device(device: DeviceSnapshot, stacks: _PageStacks) -> dict[str, Any]:
    peak = device.timeline.peak
    totals = device.totals
    return {
        "device": device.device,
        "totals": {
            "reserved": totals.reserved,
            "allocated": totals.allocated,
            "requested": totals.requested,
            "awaiting_free": totals.awaiting_free,
            "not_returnable": totals.not_returnable,
            "returnable": totals.returnable,
            "largest_free": totals.largest_free,
            "fragmentation": totals.fragmentation,
        },
        "peak": None if peak is None else {"bytes": peak.requested, "event": peak.event, "phase": peak.phase},
        "sites": [_site(use) for use in device.sites[:_SITES]],
        "sites_left": max(0, len(device.sites) - _SITES),
        "timeline": _timeline(device, stacks) if len(device.trace) else None,
        "segments": _segments(device, stacks),
        "segments_left": max(0, len(device.segments) - _SEGMENTS),
        "notes": _notes(device),
    }


def _site(use: SiteUse) -> dict[str, Any]:
    return {
        "name": use.site,
        "now": use.now,
        "peak": use.at_peak,
        "churn": use.churn,
        "count": use.count,
        "stack": list(use.stack),
        "before": use.site == BEFORE,
    }


def _timeline(device: DeviceSnapshot, stacks: _PageStacks) -> dict[str, Any]:
    """Return the allocations with their first and last events; the page adds them up."""
    known = device.allocations
    events = len(device.trace)
    largest = np.sort(np.argsort(-known.size, kind="stable")[:_ALLOCATIONS])
    start = known.start[largest]
    end = known.end[largest]
    at = np.unique(np.concatenate([start[start >= 0], end[end < events], [0, events - 1]]))
    time = device.trace.time[at]
    return {
        "events": events,
        "begin": moment(int(device.trace.time[0]) / 1e6),
        "at": np.diff(at, prepend=0).tolist(),
        "time": np.diff(time, prepend=time[0]).tolist() if time.any() else None,
        "size": known.size[largest].tolist(),
        "start": np.where(start < 0, -1, np.searchsorted(at, start)).tolist(),
        "end": np.searchsorted(at, end).tolist(),
        "layer": np.minimum(device.site_of[largest], LAYERS).tolist(),
        "stack": np.where(known.stack[largest] < 0, 0, stacks.places(known.stack[largest])).tolist(),
        "rest": _rest(device, largest),
        "reserved": _steps(device.timeline.reserved),
        "failed": [
            {
                "event": failed.event,
                "requested": str(failed.requested),
                "free": failed.device_free,
                "stack": int(stacks.places([failed.stack])[0]),
            }
            for failed in device.out_of_memory[:_MARKS]
        ],
    }


def _rest(device: DeviceSnapshot, kept: NDArray[np.intp]) -> dict[str, Any] | None:
    """Return the sum of the allocations that are not kept exactly, as points of each layer; None without any."""
    known = device.allocations
    events = len(device.trace)
    left = np.ones(len(known), dtype=np.bool_)
    left[kept] = False
    if not left.any():
        return None
    edges = np.linspace(0, events - 1, min(_POINTS, events)).astype(np.int64)
    layers = np.minimum(device.site_of, LAYERS)
    rows: list[list[int]] = []
    for layer in range(LAYERS + 1):
        changes = np.zeros(events + 1, dtype=np.int64)
        chosen = left & (layers == layer)
        np.add.at(changes, np.maximum(known.start[chosen], 0), known.size[chosen])
        np.add.at(changes, known.end[chosen], -known.size[chosen])
        rows.append(np.cumsum(changes)[edges].tolist())
    return {"count": int(left.sum()), "rows": rows}


def _steps(values: _Numbers) -> dict[str, list[int]]:
    """Return the events at which a column changes, and its new values; at most 2,000, evenly chosen."""
    changed = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    if len(changed) > _POINTS:
        changed = changed[np.linspace(0, len(changed) - 1, _POINTS).astype(np.int64)]
    return {"at": changed.tolist(), "bytes": values[changed].tolist()}


def _segments(device: DeviceSnapshot, stacks: _PageStacks) -> list[dict[str, Any]]:
    """Return the largest segments with their largest blocks, and the number of blocks that were left out."""
    segments = sorted(device.segments, key=lambda segment: -segment.total)[:_SEGMENTS]
    sizes = sorted((block.size for segment in segments for block in segment.blocks), reverse=True)
    smallest = sizes[_BLOCKS] + 1 if len(sizes) > _BLOCKS else 0
    names = {use.site: place for place, use in reversed(list(enumerate(device.sites[:LAYERS])))}
    return [_segment(segment, smallest, stacks, names) for segment in segments]


def _segment(segment: AllocatorSegment, smallest: int, stacks: _PageStacks, names: dict[str, int]) -> dict[str, Any]:
    blocks = [block for block in segment.blocks if block.size >= smallest]
    return {
        "address": f"0x{segment.address:x}",
        "total": segment.total,
        "kind": segment.kind,
        "pool": ".".join(str(part) for part in segment.pool) if any(segment.pool) else "",
        "stream": str(segment.stream),
        "expandable": segment.expandable,
        "hidden": len(segment.blocks) - len(blocks),
        "blocks": [_block(block, segment, stacks, names) for block in blocks],
    }


def _block(block: AllocatorBlock, segment: AllocatorSegment, stacks: _PageStacks, names: dict[str, int]) -> list[int]:
    """Return offset, size, requested size (-1 if unknown), state, stack and layer of a block."""
    requested = -1 if block.requested is None else block.requested
    layer = names.get(stacks.site(block.stack), LAYERS)
    stack = int(stacks.places([block.stack])[0])
    offset = min(max(block.address - segment.address, -1), segment.total)
    return [offset, block.size, requested, _STATES[block.state], stack, layer]


def _notes(device: DeviceSnapshot) -> list[dict[str, str]]:
    failed = [
        {
            "kind": "Out of memory",
            "text": f"{nbytes(f.requested)} requested, {nbytes(f.device_free)} free, event {f.event:,}",
        }
        for f in device.out_of_memory[:50]
    ]
    phases = [
        {"kind": "Phase", "text": f"{phase.name}: peak {nbytes(phase.peak)}, {nbytes(phase.churn)} allocated"}
        for phase in device.phases[:50]
    ]
    odd = [{"kind": "Inconsistent", "text": found.message} for found in device.inconsistencies]
    return [*failed, *odd, *phases]
