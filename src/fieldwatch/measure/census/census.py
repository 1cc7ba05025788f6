"""Where every byte is: the owners, what autograd keeps, and a rest that is printed and never guessed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from fieldwatch.measure.census.entry import KINDS, CensusEntry, Kind
from fieldwatch.measure.census.reading import UnownedBlock

LARGE = 100 * 2**20
"""Bytes from which on a storage is listed by itself: 100 MiB."""


@dataclass(frozen=True, kw_only=True)
class Census:
    """One device's memory at one moment, in bytes.

    ``owned + saved + rounding + workspace + unattributed == allocated``, to the byte.

    Attributes:
        device: whose memory.
        allocated: bytes in use: torch's CUDA allocator, or the C library's heap.
        reserved: bytes taken from the device or the system, idle ones included.
        source: where ``allocated`` comes from: ``memory_snapshot``, ``memory_stats``, ``mallinfo2`` or ``uss``. With
            ``uss`` the unattributed rest may be negative, because memory that was never touched is not counted.
        owned_entries: what the owners hold, each storage once.
        saved_entries: what autograd keeps for backward and no owner holds, by the span that saved it.
        saved_peak: the most that was saved at once since :meth:`SavedTensors.push`.
        rounding: what the allocator spent beyond what was asked for, on owned and saved entries.
        workspace: memory of nobody that came within this step; 0 where no earlier census was given.
        foreign: storages of owners that are not in the allocator's memory (a mapped file, shared memory, another
            library's); in no sum.
        elsewhere: bytes of owners on other devices; in no sum.
        sites: unattributed bytes by the line that asked for them, the most first; empty without allocator history.
        truncated: registered data that is too large to be walked to its end.
        unowned: the blocks of nobody, by address; None where blocks cannot be listed.
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
        """Bytes that autograd keeps, by the span that saved them."""
        return _summed(self.saved_entries, lambda entry: entry.component)

    @property
    def unattributed(self) -> int:
        """Bytes that are allocated and that nobody owns, older than this step."""
        return self.remainder - self.workspace

    @property
    def remainder(self) -> int:
        """All bytes that nobody owns: workspace and unattributed."""
        # What is left is nobody's: computed, never guessed, so it may be negative where `source` is ``uss``.
        return self.allocated - self.owned - sum(entry.nbytes for entry in self.saved_entries) - self.rounding

    def by_kind(self) -> dict[str, int]:
        """Owners' bytes by kind; every kind is there."""
        return dict.fromkeys(KINDS, 0) | _summed(self.owned_entries, lambda entry: entry.kind)

    def by_component(self) -> dict[str, int]:
        """Owners' bytes by watched group (with its gradients, optimizer state and buffers) or registered data."""
        return _summed(self.owned_entries, lambda entry: entry.component)

    def by_kind_and_component(self) -> dict[Kind, dict[str, int]]:
        """Owners' bytes by kind, then by component."""
        return {
            kind: _summed((entry for entry in self.owned_entries if entry.kind == kind), lambda entry: entry.component)
            for kind in KINDS
        }

    def by_dtype(self) -> dict[str, int]:
        """Owners' bytes by type of their entries."""
        return _summed(self.owned_entries, lambda entry: entry.dtype)

    def large(self, threshold: int = LARGE) -> list[CensusEntry]:
        """Owned storages of at least ``threshold`` bytes, the largest first."""
        return sorted(
            (entry for entry in self.owned_entries if entry.nbytes >= threshold),
            key=lambda entry: entry.nbytes,
            reverse=True,
        )

    def addresses(self) -> frozenset[int]:
        """Where the owners' storages begin."""
        return frozenset(entry.address for entry in (*self.owned_entries, *self.foreign))

    def as_json(self, step: int, moment: str, *, threshold: int = LARGE, **more: Any) -> dict[str, Any]:
        """One line of ``memory.jsonl``.

        Args:
            step: of the run, from 0.
            moment: when in the step, such as ``update``.
            threshold: bytes from which on a storage is listed by itself.
            more: what else the line says or says otherwise: ``peaks``, ``fragmentation``, ``time``.
        """
        line: dict[str, Any] = {"step": step, "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        line |= {"moment": moment, "device": str(self.device), "source": self.source}
        line |= {"allocated": self.allocated, "reserved": self.reserved, "owners": self.by_kind_and_component()}
        line |= {"saved": self.saved, "saved_peak": self.saved_peak, "rounding": self.rounding}
        line |= {"workspace": self.workspace, "unattributed": self.unattributed}
        line |= {"tensors": len(self.owned_entries) + len(self.saved_entries), "dtypes": self.by_dtype()}
        line |= {"large": [_as_json(entry) for entry in self.large(threshold)], "fragmentation": {}, "peaks": {}}
        line |= {"foreign": sum(entry.nbytes for entry in self.foreign), "elsewhere": dict(self.elsewhere)}
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
