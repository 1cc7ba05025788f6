"""Reader for snapshot files of the CUDA allocator."""

from os import PathLike
from pathlib import Path

from fieldwatch.report.snapshot.allocations import follow
from fieldwatch.report.snapshot.consistency import inconsistencies_of
from fieldwatch.report.snapshot.error import SnapshotError
from fieldwatch.report.snapshot.model import DeviceSnapshot, Snapshot
from fieldwatch.report.snapshot.parse import parse_snapshot
from fieldwatch.report.snapshot.pickled import MAX_BYTES, read_plain_pickle
from fieldwatch.report.snapshot.records import DeviceRecord
from fieldwatch.report.snapshot.sites import sites_of
from fieldwatch.report.snapshot.stacks import Stack
from fieldwatch.report.snapshot.timeline import phases_of, timeline_of
from fieldwatch.report.snapshot.totals import pools_of, totals_of


def read_snapshot(path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Read a pickle of ``torch.cuda.memory._dump_snapshot``, ``_snapshot`` or ``memory_snapshot`` without running it.

    The opcodes of the pickle are checked first: files that would import, call or load anything are refused before any
    object is built.

    Args:
        path: snapshot file.
        max_bytes: maximum size of the file, 512 MiB by default; reading needs about ten times the file size in memory.

    Returns:
        The state of each device, its history, and derived values.

    Raises:
        SnapshotError: if the file is missing, too large, empty, truncated, not a pickle, not a snapshot, or would run
            code.
    """
    file = Path(path)
    root, size = read_plain_pickle(file, max_bytes)
    try:
        recorded, stacks, settings = parse_snapshot(root, size)
    except SnapshotError as error:
        raise SnapshotError(f"{file}: not a sound memory snapshot: {error}") from None
    devices = tuple(_device(one, stacks) for one in recorded)
    return Snapshot(path=file, size_bytes=size, devices=devices, stacks=stacks, settings=settings)


def _device(recorded: DeviceRecord, stacks: tuple[Stack, ...]) -> DeviceSnapshot:
    allocations, oddities = follow(recorded)
    timeline = timeline_of(recorded, allocations)
    sites, site_of = sites_of(allocations, timeline, stacks)
    return DeviceSnapshot(
        device=recorded.device,
        segments=recorded.segments,
        trace=recorded.trace,
        totals=totals_of(recorded.segments),
        pools=pools_of(recorded.segments),
        allocations=allocations,
        timeline=timeline,
        sites=sites,
        site_of=site_of,
        out_of_memory=recorded.out_of_memory,
        phases=phases_of(recorded, timeline),
        inconsistencies=inconsistencies_of(recorded, oddities, timeline),
    )
