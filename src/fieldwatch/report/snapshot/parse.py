"""Conversion of the plain data of a snapshot to validated records, for all versions of torch."""

from collections import Counter
from typing import Any, cast

import numpy as np

from fieldwatch.base import nbytes
from fieldwatch.report.snapshot.error import SnapshotError
from fieldwatch.report.snapshot.fields import (
    LARGEST_ADDRESS,
    MOST,
    KeyPath,
    RawDict,
    items,
    listed,
    mapping,
    number,
    sanitized,
    text,
    wrong,
)
from fieldwatch.report.snapshot.records import (
    ACTIONS,
    SEGMENT_UNMAP,
    UNKNOWN,
    AllocatorBlock,
    AllocatorSegment,
    AllocatorTrace,
    Annotation,
    DeviceRecord,
    FailedAllocation,
    State,
)
from fieldwatch.report.snapshot.stacks import Stack, StackTable

_STATES: dict[str, State] = {
    "active_allocated": "active_allocated",
    "active_awaiting_free": "active_awaiting_free",
    "active_pending_free": "active_awaiting_free",
    "inactive": "inactive",
}
_CODES = {action: code for code, action in enumerate(ACTIONS[:UNKNOWN])}
_OOM = _CODES["oom"]
_MOST_DEVICES = 1024
_MOST_SUM = 1 << 62
_SPARE = 4096


def parse_snapshot(root: Any, size: int) -> tuple[tuple[DeviceRecord, ...], tuple[Stack, ...], dict[str, str]]:
    """Validate the data of a snapshot, and return its devices, stacks and settings.

    Args:
        root: dict of ``_snapshot()`` or ``_dump_snapshot()``, or list of ``memory_snapshot()``.
        size: size of the file in bytes, which is an upper limit for its number of entries.

    Raises:
        SnapshotError: if a value is missing or wrong; the message contains its path.
    """
    whole = _whole(root)
    table = StackTable(size + _SPARE)
    segments = _segments(whole, table)
    traces = {device: _trace(whole, device, table) for device in range(_device_count(whole))}
    annotations = _annotations(whole, table)
    devices = sorted(segments.keys() | {device for device, (trace, _) in traces.items() if len(trace)})
    recorded = [
        _recorded(device, segments.get(device, []), traces.get(device) or (_empty_trace(), ()), annotations)
        for device in devices
    ]
    return tuple(recorded), tuple(table.stacks), _settings(whole)


def _whole(root: Any) -> RawDict:
    """Return the dict form of a snapshot."""
    if type(root) is list:
        return {"segments": root}
    if type(root) is dict and {"segments", "device_traces"} & cast("RawDict", root).keys():
        return cast("RawDict", root)
    kind = type(cast("object", root)).__name__
    raise SnapshotError(
        "expected a dict with 'segments' and 'device_traces' (_dump_snapshot) or a list of segments (memory_snapshot), "
        f"got a {kind} that is not a memory snapshot"
    )


def _recorded(
    device: int,
    segments: list[AllocatorSegment],
    history: tuple[AllocatorTrace, tuple[FailedAllocation, ...]],
    annotations: list[Annotation],
) -> DeviceRecord:
    total = sum(_bound(segment) for segment in segments) + float(history[0].size.sum(dtype=np.float64))
    if total > _MOST_SUM:
        raise SnapshotError(f"device {device}: expected sizes of a real device, got {nbytes(total)} in all")
    own = tuple(annotation for annotation in annotations if annotation.device == device)
    return DeviceRecord(
        device=device, segments=tuple(segments), trace=history[0], out_of_memory=history[1], annotations=own
    )


def _bound(segment: AllocatorSegment) -> int:
    """Return an upper limit for every sum of sizes in a segment."""
    own = segment.total + (segment.allocated or 0) + (segment.active or 0) + (segment.requested or 0)
    return own + sum(block.size + (block.requested or 0) for block in segment.blocks)


def _device_count(root: RawDict) -> int:
    count = len(items(root, "device_traces", ()))
    if count > _MOST_DEVICES:
        raise SnapshotError(
            f"expected device_traces to have one entry per device, at most {_MOST_DEVICES}, got {count:,}"
        )
    return count


def _segments(root: RawDict, table: StackTable) -> dict[int, list[AllocatorSegment]]:
    """Return the segments of each device."""
    found: dict[int, list[AllocatorSegment]] = {}
    given = items(root, "segments", ())
    table.spend(len(given), ("segments",))
    for at, value in enumerate(given):
        place = ("segments", at)
        segment = mapping(value, place)
        device = number(segment, "device", place, default=0, most=_MOST_DEVICES)
        found.setdefault(device, []).append(_segment(segment, place, table))
    return found


def _segment(given: RawDict, place: KeyPath, table: StackTable) -> AllocatorSegment:
    address = number(given, "address", place, most=LARGEST_ADDRESS)
    return AllocatorSegment(
        address=address,
        total=number(given, "total_size", place, most=_MOST_SUM),
        allocated=_optional(given, "allocated_size", place),
        active=_optional(given, "active_size", place),
        requested=_optional(given, "requested_size", place),
        stream=number(given, "stream", place, default=0, most=LARGEST_ADDRESS),
        kind=text(given, "segment_type", place, "unknown"),
        pool=_pool(given.get("segment_pool_id", (0, 0)), (*place, "segment_pool_id")),
        expandable=bool(given.get("is_expandable", False)),
        blocks=_blocks(given, address, place, table),
    )


def _optional(given: RawDict, key: str, place: KeyPath) -> int | None:
    return number(given, key, place) if key in given else None


def _pool(value: Any, place: KeyPath) -> tuple[int, ...]:
    if type(value) not in {list, tuple} or len(value) > 4 or not all(_is_id(part) for part in value):
        raise wrong(place, value, "two integers")
    return tuple(value)


def _is_id(part: Any) -> bool:
    return type(part) is int and 0 <= part <= LARGEST_ADDRESS


def _blocks(given: RawDict, address: int, place: KeyPath, table: StackTable) -> tuple[AllocatorBlock, ...]:
    blocks: list[AllocatorBlock] = []
    values = items(given, "blocks", place)
    table.spend(len(values), place)
    for at, value in enumerate(values):
        block = _block(mapping(value, (*place, "blocks", at)), address, (*place, "blocks", at), table)
        address = min(
            block.address + block.size, LARGEST_ADDRESS
        )  # without addresses, in early versions, blocks are contiguous
        blocks.append(block)
    return tuple(blocks)


def _block(given: RawDict, follows: int, place: KeyPath, table: StackTable) -> AllocatorBlock:
    size = number(given, "size", place)
    state = _STATES.get(text(given, "state", place))
    if state is None:
        raise wrong((*place, "state"), given["state"], f"one of {', '.join(_STATES)}")
    made = _allocation_of(given, place)
    requested = number(made, "requested_size", place, default=-1) if "requested_size" in made else None
    if requested is None and "real_size" in made:
        requested = number(made, "real_size", (*place, "history", 0))
    return AllocatorBlock(
        address=number(given, "address", place, default=follows, most=LARGEST_ADDRESS),
        size=size,
        requested=0 if state == "inactive" else requested,
        state=state,
        stack=table.number(made["frames"], (*place, "frames")) if "frames" in made else 0,
    )


def _allocation_of(given: RawDict, place: KeyPath) -> RawDict:
    """Return the dict that describes the allocation: the block itself, in torch 1.13 the first entry of its history."""
    history = items(given, "history", place)
    return mapping(history[0], (*place, "history", 0)) if history and "requested_size" not in given else given


class _Columns:
    """Columns of the history of one device, while they are read."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.phases: dict[str, int] = {}
        self.unknown: Counter[str] = Counter()
        self.out_of_memory: list[FailedAllocation] = []

    def add(self, event: RawDict, place: KeyPath, table: StackTable) -> None:
        """Validate and add an event."""
        action = event.get("action")
        code = _CODES.get(action, UNKNOWN) if type(action) is str else UNKNOWN
        if code == UNKNOWN:
            self.unknown[text(event, "action", place)] += 1
        failed = code == _OOM
        missing = None if code <= SEGMENT_UNMAP else 0
        size = number(event, "size", place, default=missing, most=LARGEST_ADDRESS)
        time = number(event, "time_us", place, default=0)
        stack = table.number(event["frames"], (*place, "frames")) if "frames" in event else 0
        address = 0 if failed else number(event, "addr", place, default=missing, most=LARGEST_ADDRESS)
        if failed:
            free = _optional(event, "device_free", place)
            self.out_of_memory.append(
                FailedAllocation(event=len(self.rows), time=time, requested=size, device_free=free, stack=stack)
            )
        label = event.get("user_metadata", "")
        phase = self._phase(text(event, "user_metadata", place)) if label != "" else -1
        self.rows.append((code, address, 0 if failed else min(size, MOST), time, stack, phase))

    def _phase(self, label: str) -> int:
        return self.phases.setdefault(label, len(self.phases))

    def finish(self) -> AllocatorTrace:
        """Return the columns."""
        action, address, size, time, stack, phase = zip(*self.rows, strict=True) if self.rows else [()] * 6
        return AllocatorTrace(
            action=np.array(action, dtype=np.uint8),
            address=np.array(address, dtype=np.uint64),
            size=np.array(size, dtype=np.int64),
            time=np.array(time, dtype=np.int64),
            stack=np.array(stack, dtype=np.int32),
            phase=np.array(phase, dtype=np.int32),
            phases=tuple(self.phases),
            unknown=dict(self.unknown),
        )


def _empty_trace() -> AllocatorTrace:
    return _Columns().finish()


def _trace(root: RawDict, device: int, table: StackTable) -> tuple[AllocatorTrace, tuple[FailedAllocation, ...]]:
    """Return the history of one device and its failed requests."""
    events = listed(items(root, "device_traces", ())[device], ("device_traces", device))
    table.spend(len(events), ("device_traces", device))
    columns = _Columns()
    for at, event in enumerate(events):
        place = ("device_traces", device, at)
        columns.add(mapping(event, place), place, table)
    return columns.finish(), tuple(columns.out_of_memory)


def _annotations(root: RawDict, table: StackTable) -> list[Annotation]:
    """Return the annotations in the order of the file."""
    found: list[Annotation] = []
    given = items(root, "external_annotations", ())
    table.spend(len(given), ("external_annotations",))
    for at, value in enumerate(given):
        place = ("external_annotations", at)
        mark = mapping(value, place)
        found.append(
            Annotation(
                name=text(mark, "name", place, ""),
                begins=text(mark, "stage", place, "START") == "START",
                time=number(mark, "time_us", place, default=0),
                device=number(mark, "device", place, default=0, most=_MOST_DEVICES),
            )
        )
    return found


def _settings(root: RawDict) -> dict[str, str]:
    """Return the scalar settings of the allocator as text."""
    given = mapping(root.get("allocator_settings", {}), ("allocator_settings",))
    plain = {key: value for key, value in given.items() if type(key) is str and type(value) in {str, int, bool, float}}
    return {sanitized(key): sanitized(str(value)) for key, value in plain.items()}
