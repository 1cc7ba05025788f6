"""The C library's heap, used by torch's CPU allocator: exact bytes in use, and the heap block size of each storage."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch

from fieldwatch.measure.census.ledger import Claim
from fieldwatch.measure.census.reading import Placement

PAGE = 4096
HEAD = 16
"""Bytes of the header that glibc keeps before each chunk: two words."""

# Size of the test allocation in bytes: large enough to stand out among allocations of other threads.
_PROBE = 4 * 2**20
_PROBES = 5


class _Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessMemory:
    """Memory of this process as reported by the operating system, in bytes.

    Attributes:
        resident: resident pages, including shared ones (RSS).
        unique: pages not shared with other processes (USS), which would be freed if the process ended.
    """

    resident: int
    unique: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeapReading:
    """State of the heap at one moment.

    Attributes:
        allocated: bytes in use by all threads; the process's unique pages (USS) if the C library cannot be queried.
        reserved: bytes obtained from the system; the resident memory if the C library cannot be queried.
        source: ``mallinfo2`` or ``uss``. With ``uss``, untouched memory is missing and the interpreter and libraries
            are included, so that the unattributed rest may have either sign.
        heap: the heap, used to look up blocks; None if it cannot be queried.
        trimmable: idle bytes at the top of the heap, which ``malloc_trim`` can return to the system.
    """

    allocated: int
    reserved: int
    source: str
    heap: "Heap | None"
    trimmable: int = 0

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Determine the heap block size of each storage. Mapped files and shared memory do not belong to the heap."""
        if self.heap is None:
            return Placement(blocks=[claim.nbytes for claim in claims], rounding=0, unowned=None)
        # Skip storages smaller than a page, which cannot be separate mappings: reading /proc/self/maps is slow.
        mapped = self.heap.mapped([c for c in claims if not c.from_torch and c.kind != "saved" and c.span >= PAGE])
        blocks = [None if claim.address in mapped else self.heap.block_size(claim) for claim in claims]
        extra = [block - claim.span for claim, block in zip(claims, blocks, strict=True) if block is not None]
        return Placement(blocks=blocks, rounding=sum(extra), unowned=None)


@dataclass(slots=True)
class Heap:
    """glibc's malloc, queried through its public functions ``mallinfo2`` and ``malloc_usable_size``.

    Args:
        libc: handle of the C library.
    """

    libc: Any
    _known: dict[tuple[int, int], bool] = field(default_factory=dict[tuple[int, int], bool])

    def __post_init__(self) -> None:
        """Declare the signatures of the C functions."""
        self.libc.mallinfo2.restype = _Mallinfo2
        self.libc.malloc_usable_size.restype = ctypes.c_size_t
        self.libc.malloc_usable_size.argtypes = [ctypes.c_void_p]

    def read(self) -> HeapReading:
        """Read used and reserved bytes of all arenas."""
        info = self.libc.mallinfo2()
        # Chunks with a separate mapping (hblkhd) are counted neither in uordblks nor in arena.
        return HeapReading(
            allocated=info.uordblks + info.hblkhd,
            reserved=info.arena + info.hblkhd,
            source="mallinfo2",
            heap=self,
            trimmable=info.keepcost,
        )

    def block_size(self, claim: Claim) -> int:
        """Return the heap bytes used by a storage, including header and rounding if torch allocated it with malloc.

        A chunk with a separate mapping ends at a page boundary, unlike any other chunk, and its mapping begins at the
        page of its header.
        """
        # malloc_usable_size crashes for memory that malloc does not own. Never call it for storages not allocated by
        # torch, for page-aligned addresses (pinned memory), or for storages saved by autograd: another thread may free
        # these at any time, whereas the ledger keeps the owners' tensors alive.
        if claim.kind == "saved" or not claim.from_torch or claim.address % PAGE == 0:
            return claim.span
        usable = int(self.libc.malloc_usable_size(claim.address))
        # `usable + HEAD // 2`: a chunk may use the first header word of the next chunk, so only one word is overhead.
        end = claim.address + usable
        spent = end - (claim.address - HEAD) // PAGE * PAGE if end % PAGE == 0 else usable + HEAD // 2
        return spent if claim.span <= usable < claim.span + 2 * PAGE else claim.span

    def mapped(self, candidates: Sequence[Claim]) -> set[int]:
        """Return the addresses of storages in mapped files or in memory shared with other processes."""
        # Cached by address and size: data sets are usually registered once and do not move.
        keys = {(claim.address, claim.span) for claim in candidates}
        if not keys <= self._known.keys():
            ranges = _mapped_ranges()
            self._known = {key: any(first <= key[0] < end for first, end in ranges) for key in keys}
        return {address for address, span in keys if self._known[address, span]}


class ProcessView:
    """Fallback if the C library cannot be queried: memory of the process as seen by the operating system."""

    def read(self) -> HeapReading:
        """Read unique and resident memory of the process."""
        memory = process_memory()
        return HeapReading(allocated=memory.unique, reserved=memory.resident, source="uss", heap=None)


@cache
def heap() -> Heap | ProcessView:
    """Return glibc's heap if torch allocates from it, else the operating system's view. The result is cached."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return ProcessView()
    glibc = Heap(ctypes.CDLL(None))
    # Other threads may allocate or free during a probe, so one success suffices. With jemalloc or tcmalloc all fail.
    return glibc if any(_torch_allocates_from(glibc) for _ in range(_PROBES)) else ProcessView()


def _torch_allocates_from(candidate: Heap) -> bool:
    """Allocate a tensor and check whether the heap grows by its size; another malloc may be preloaded."""
    before = candidate.read().allocated
    probe = torch.empty(_PROBE, dtype=torch.uint8, device="cpu")
    return probe.nbytes <= candidate.read().allocated - before < 2 * _PROBE


def process_memory() -> ProcessMemory:
    """Return resident and unique memory of this process. Walking its page tables may take milliseconds."""
    # smaps_rollup exists since Linux 4.14 and is much faster than summing smaps.
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        full = psutil.Process().memory_full_info()
        return ProcessMemory(resident=full.rss, unique=full.uss)
    # Skip the first line, which is the address range of the whole process.
    lines = [line.split() for line in rollup.read_text().splitlines()[1:]]
    kilobytes = {fields[0]: int(fields[1]) for fields in lines}
    unique = kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"] + kilobytes.get("Private_Hugetlb:", 0)
    return ProcessMemory(resident=kilobytes["Rss:"] * 1024, unique=unique * 1024)


def _mapped_ranges() -> list[tuple[int, int]]:
    """Return the address ranges of this process that map a file or memory shared between processes."""
    ranges: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        # Mappings of files and of shared memory have an inode; anonymous memory has inode 0.
        if inode != "0":
            first, end = addresses.split("-")
            ranges.append((int(first, 16), int(end, 16)))
    return ranges
