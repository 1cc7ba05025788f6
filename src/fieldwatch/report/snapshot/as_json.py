"""JSON of a snapshot: its numbers, without the history."""

from dataclasses import asdict
from typing import Any

from fieldwatch.report.snapshot.fields import sanitized
from fieldwatch.report.snapshot.model import DeviceSnapshot, MemoryTotals, Snapshot
from fieldwatch.report.snapshot.records import FailedAllocation
from fieldwatch.report.snapshot.sites import site_name


def snapshot_json(snapshot: Snapshot, *, sites: int = 50) -> dict[str, Any]:
    """Return the numbers of a snapshot as a JSON object; all sizes are in bytes.

    Args:
        snapshot: the snapshot.
        sites: maximum number of allocation sites per device; ``sites_total`` is the number of all.
    """
    return {
        "file": sanitized(str(snapshot.path)),
        "size_bytes": snapshot.size_bytes,
        "settings": dict(snapshot.settings),
        "devices": [_device(snapshot, device, sites) for device in snapshot.devices],
    }


def _device(snapshot: Snapshot, device: DeviceSnapshot, sites: int) -> dict[str, Any]:
    return {
        "device": device.device,
        **_totals(device.totals),
        "pools": [
            {"pool": list(use.pool), "kind": use.kind, "stream": use.stream, **_totals(use.totals)}
            for use in device.pools
        ],
        "history": _history(device),
        "sites_total": len(device.sites),
        "sites": [asdict(use) | {"stack": list(use.stack)} for use in device.sites[:sites]],
        "out_of_memory": [_failure(snapshot, failed) for failed in device.out_of_memory],
        "phases": [asdict(phase) for phase in device.phases],
        "inconsistencies": [asdict(found) for found in device.inconsistencies],
    }


def _totals(totals: MemoryTotals) -> dict[str, Any]:
    return {**asdict(totals), "free": totals.free, "fragmentation": totals.fragmentation}


def _history(device: DeviceSnapshot) -> dict[str, Any]:
    peak = device.timeline.peak
    return {
        "events": len(device.trace),
        "first_time_us": int(device.trace.time[0]) if len(device.trace) else None,
        "last_time_us": int(device.trace.time[-1]) if len(device.trace) else None,
        "requested_before": device.timeline.before,
        "peak": None if peak is None else asdict(peak),
    }


def _failure(snapshot: Snapshot, failed: FailedAllocation) -> dict[str, Any]:
    return asdict(failed) | {"site": site_name(snapshot.stacks[failed.stack])}
