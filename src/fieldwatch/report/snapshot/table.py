"""Tables of a snapshot for the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fieldwatch.base import moment, nbytes, percent
from fieldwatch.report.snapshot.fields import sanitized
from fieldwatch.report.snapshot.model import DeviceSnapshot, Snapshot

_POOLS = 8
_FAILED = 5


def snapshot_table(snapshot: Snapshot, *, sites: int = 12) -> RenderableType:
    """Return the tables of a snapshot, for at least 80 columns.

    Args:
        snapshot: snapshot of the allocator.
        sites: maximum number of allocation sites per device.
    """
    count = len(snapshot.devices)
    devices = f"{count} device{'' if count == 1 else 's'}"
    head = Text(f"{sanitized(snapshot.path.name)}: {nbytes(snapshot.size_bytes)}, {devices}", style="bold")
    parts: list[RenderableType] = [head]
    if not snapshot.devices:
        parts.append(Text("No memory: the process had not used CUDA when the snapshot was taken."))
    for device in snapshot.devices:
        parts += _device(device, sites)
    return Group(*parts)


def _device(device: DeviceSnapshot, sites: int) -> list[RenderableType]:
    parts: list[RenderableType] = [Text(), _state(device), Text(), _history(device)]
    if len(device.pools) > 1:
        parts += [Text(), _pools(device)]
    if device.sites:
        parts += [Text(), _sites(device, sites)]
    if device.phases:
        parts += [Text(), _phases(device)]
    parts += [Text(f"Out of memory: {line}", style="red") for line in _failures(device)]
    parts += [Text(f"Inconsistent: {found.message}", style="yellow") for found in device.inconsistencies]
    return parts


def _state(device: DeviceSnapshot) -> Table:
    """Return the table of the reserved memory and its parts."""
    totals = device.totals
    table = _table(f"cuda:{device.device}", "bytes", "of reserved", "")
    rows = (
        ("reserved", totals.reserved, f"{totals.segments} segments, {totals.blocks} blocks"),
        ("allocated", totals.allocated, "of live tensors"),
        ("rounding", totals.rounding, "in excess of the requests"),
        ("awaiting free", totals.awaiting_free, "another stream still uses it"),
        ("not returnable", totals.not_returnable, "free pieces between live blocks"),
        ("returnable", totals.returnable, "completely free segments"),
        ("largest free block", totals.largest_free, f"fragmentation {percent(totals.fragmentation)}"),
    )
    for name, size, note in rows:
        share = None if size is None or not totals.reserved else size / totals.reserved
        table.add_row(name, nbytes(size), percent(share), note)
    if totals.uncovered:
        table.add_row("in no block", nbytes(totals.uncovered), percent(totals.uncovered / totals.reserved), "")
    return table


def _history(device: DeviceSnapshot) -> Text:
    """Describe the peak, and what the history covers."""
    peak = device.timeline.peak
    if peak is None:
        return Text("No history: call torch.cuda.memory._record_memory_history() before taking the snapshot.")
    where = "when the history began" if peak.event < 0 else f"after event {peak.event:,} of {len(device.trace):,}"
    phase = f", in {peak.phase}" if peak.phase else ""
    return Text(
        f"Peak of requested bytes: {nbytes(peak.requested)} {where}{phase} ({moment(peak.time / 1e6)}).\n"
        f"The history has {len(device.trace):,} events; {nbytes(device.timeline.before)} were allocated before it "
        "began. An earlier peak may have been higher."
    )


def _pools(device: DeviceSnapshot) -> Table:
    table = _table("pool", "segments", "reserved", "allocated", "free", "largest free")
    for use in device.pools[:_POOLS]:
        private = "" if not any(use.pool) else f" private {'.'.join(str(part) for part in use.pool)}"
        sizes = (use.totals.reserved, use.totals.allocated, use.totals.free, use.totals.largest_free)
        name = f"{use.kind}{private} stream {use.stream}"
        table.add_row(Text(name), str(use.totals.segments), *map(nbytes, sizes))
    return table


def _sites(device: DeviceSnapshot, most: int) -> Table:
    table = _table("allocation site", "now", "at peak", "churn", "count")
    for use in device.sites[:most]:
        name = Text(use.site, overflow="ellipsis", no_wrap=True)
        table.add_row(name, nbytes(use.now), nbytes(use.at_peak), nbytes(use.churn), f"{use.count:,}")
    left = device.sites[most:]
    if left:
        sums = (sum(u.now for u in left), sum(u.at_peak for u in left), sum(u.churn for u in left))
        table.add_row(f"{len(left):,} others", *(nbytes(size) for size in sums), f"{sum(u.count for u in left):,}")
    return table


def _phases(device: DeviceSnapshot) -> Table:
    table = _table("phase", "peak", "allocated in it", "events")
    for phase in device.phases[:_POOLS]:
        name = Text(phase.name, overflow="ellipsis", no_wrap=True)
        table.add_row(name, nbytes(phase.peak), nbytes(phase.churn), f"{phase.events:,}")
    return table


def _failures(device: DeviceSnapshot) -> list[str]:
    lines = [
        f"{nbytes(failed.requested)} requested, {nbytes(failed.device_free)} free on the device, event {failed.event:,}"
        for failed in device.out_of_memory[:_FAILED]
    ]
    left = len(device.out_of_memory) - _FAILED
    return [*lines, f"{left} more"] if left > 0 else lines


def _table(first: str, *others: str) -> Table:
    """Return an empty table: names to the left, numbers to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, ratio=None, min_width=18)
    for title in others:
        table.add_column(title, justify="right" if title else "left", no_wrap=bool(title))
    return table
