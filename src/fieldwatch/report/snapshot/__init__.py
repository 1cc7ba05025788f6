"""Memory snapshots: the pickles of ``torch.cuda.memory._dump_snapshot``, read without running their code."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.report.snapshot.as_json import snapshot_json
    from fieldwatch.report.snapshot.error import SnapshotError
    from fieldwatch.report.snapshot.model import (
        Allocations,
        DeviceSnapshot,
        Inconsistency,
        LabeledPhase,
        MemoryTotals,
        Peak,
        PoolUse,
        SiteUse,
        Snapshot,
        Timeline,
    )
    from fieldwatch.report.snapshot.page import snapshot_account, snapshot_panels
    from fieldwatch.report.snapshot.page_data import view_data
    from fieldwatch.report.snapshot.pickled import MAX_BYTES
    from fieldwatch.report.snapshot.read import read_snapshot
    from fieldwatch.report.snapshot.records import (
        ACTIONS,
        AllocatorBlock,
        AllocatorSegment,
        AllocatorTrace,
        FailedAllocation,
    )
    from fieldwatch.report.snapshot.stacks import Frame, Stack
    from fieldwatch.report.snapshot.table import snapshot_table

__all__ = [
    "ACTIONS",
    "MAX_BYTES",
    "Allocations",
    "AllocatorBlock",
    "AllocatorSegment",
    "AllocatorTrace",
    "DeviceSnapshot",
    "FailedAllocation",
    "Frame",
    "Inconsistency",
    "LabeledPhase",
    "MemoryTotals",
    "Peak",
    "PoolUse",
    "SiteUse",
    "Snapshot",
    "SnapshotError",
    "Stack",
    "Timeline",
    "read_snapshot",
    "snapshot_account",
    "snapshot_json",
    "snapshot_panels",
    "snapshot_table",
    "view_data",
]

__getattr__, __dir__ = lazy_names(__name__)
