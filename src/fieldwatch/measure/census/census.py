"""The result of a memory census: bytes by owner, bytes saved by autograd, and an explicit unattributed rest."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from fieldwatch.measure.census.entry import KINDS, CensusEntry, Kind
from fieldwatch.measure.census.reading import UnownedBlock

LARGE = 100 * 2**20
"""Default threshold in bytes for large storages, which are listed individually: 100 MiB."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """The memory of one device at one moment, in bytes.

    ``owned + saved + rounding + workspace + unattributed == allocated``, to the byte.

    Attributes:
        device: device of the census.
        allocated: bytes in use in torch's CUDA allocator or in the C library's heap.
        reserved: bytes reserved on the device or from the operating system, including idle ones.
        source: origin of ``allocated``: ``memory_snapshot``, ``memory_stats``, ``mallinfo2`` or ``uss``. With ``uss``
            the unattributed rest may be negative, because memory that was never touched is not counted.
        owned_entries: storages of all owners, each counted once.
        saved_entries: storages that autograd keeps for backward and no owner holds, by the span that saved them.
        saved_peak: peak of the saved bytes since :meth:`SavedTensors.push`.
        rounding: bytes that the allocator added to the requests of owned and saved entries.
        workspace: bytes without an owner that were allocated within this step; 0 without an earlier census.
        foreign: storages of owners outside the allocator's memory (mapped files, shared memory, other libraries); not
            included in any sum.
        elsewhere: bytes of owners on other devices, by device; not included in any sum.
        sites: unattributed bytes by the line that requested them, in descending order; empty without allocator history.
        truncated: names of registered data objects that are too large to be searched completely.
        unowned: blocks without an owner, by address; None if blocks cannot be listed.
    """

    device: torch.device
    allocated: int
    reserved: int
    source: str
    owned_entries: tuple[CensusEntry, ...]
    saved_entries: tuple[CensusEntry, ...] = ()
    saved_peak: int = 0
    rounding: int = 0
    workspace: int = 0
    foreign: tuple[CensusEntry, ...] = ()
    elsewhere: Mapping[str, int] = field(default_factory=dict[str, int])
    sites: Mapping[str, int] = field(default_factory=dict[str, int])
    truncated: tuple[str, ...] = ()
    unowned: Mapping[int, UnownedBlock] | None = field(default=None, repr=False)

    @property
    def owned(self) -> int:
        """Bytes of all owners."""
        return sum(entry.nbytes for entry in self.owned_entries)

    @property
    def saved(self) -> dict[str, int]:
        """Bytes saved by autograd, by the span that saved them."""
        return _summed(self.saved_entries, lambda entry: entry.component)

    @property
    def unattributed(self) -> int:
        """Bytes without an owner that were allocated before this step."""
        return self.remainder - self.workspace

    @property
    def remainder(self) -> int:
        """All bytes without an owner: workspace and unattributed."""
        # Computed as a difference, never estimated. It may be negative if `source` is ``uss``.
        return self.allocated - self.owned - sum(entry.nbytes for entry in self.saved_entries) - self.rounding

    def by_kind(self) -> dict[str, int]:
        """Return owned bytes by kind; every kind is present."""
        # Zeros keep the chart of a kind continuous while it has no memory.
        return dict.fromkeys(KINDS, 0) | _summed(self.owned_entries, lambda entry: entry.kind)

    def by_component(self) -> dict[str, int]:
        """Return owned bytes by watched group (with gradients, optimizer state and buffers) or registered data."""
        return _summed(self.owned_entries, lambda entry: entry.component)

    def by_kind_and_component(self) -> dict[Kind, dict[str, int]]:
        """Return owned bytes by kind, then by component."""
        return {
            kind: _summed((entry for entry in self.owned_entries if entry.kind == kind), lambda entry: entry.component)
            for kind in KINDS
        }

    def by_dtype(self) -> dict[str, int]:
        """Return owned bytes by dtype."""
        return _summed(self.owned_entries, lambda entry: entry.dtype)

    def large(self, threshold: int = LARGE) -> list[CensusEntry]:
        """Return owned storages of at least ``threshold`` bytes, in descending order of size."""
        return sorted(
            (entry for entry in self.owned_entries if entry.nbytes >= threshold),
            key=lambda entry: entry.nbytes,
            reverse=True,
        )

    def addresses(self) -> frozenset[int]:
        """Return the start addresses of the owners' storages."""
        return frozenset(entry.address for entry in (*self.owned_entries, *self.foreign))

    def as_json(self, step: int, moment: str, *, threshold: int = LARGE, **more: Any) -> dict[str, Any]:
        """Return the census as one line of ``memory.jsonl``.

        Args:
            step: 0-based step of the run.
            moment: moment within the step, such as ``update``.
            threshold: minimum size in bytes of the storages that are listed individually.
            more: additional or replacement fields, such as ``peaks``, ``fragmentation`` and ``time``.
        """
        line: dict[str, Any] = {"step": step, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line |= {"moment": moment, "device": str(self.device), "source": self.source}
        line |= {"allocated": self.allocated, "reserved": self.reserved, "owners": self.by_kind_and_component()}
        line |= {"saved": self.saved, "saved_peak": self.saved_peak, "rounding": self.rounding}
        line |= {"workspace": self.workspace, "unattributed": self.unattributed}
        line |= {"tensors": len(self.owned_entries) + len(self.saved_entries), "dtypes": self.by_dtype()}
        line |= {"large": [_as_json(entry) for entry in self.large(threshold)], "fragmentation": {}, "peaks": {}}
        line |= {"foreign": sum(entry.nbytes for entry in self.foreign), "elsewhere": dict(self.elsewhere)}
        # Fields in `more` come last and therefore replace defaults such as the empty `peaks`.
        line |= {"sites": dict(self.sites), "cut": list(self.truncated)}
        return line | more


def _summed(entries: Iterable[CensusEntry], key: Callable[[CensusEntry], str]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for entry in entries:
        sums[key(entry)] += entry.nbytes
    return dict(sums)


def _as_json(entry: CensusEntry) -> dict[str, Any]:
    return {
        "owner": entry.component,
        "kind": entry.kind,
        "name": entry.name,
        "bytes": entry.nbytes,
        "shape": list(entry.shape),
        "dtype": entry.dtype,
        "views": entry.views,
    }
