"""The C library's heap, which torch's CPU allocator draws from: bytes in use, exactly, and the cost of each storage."""

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
"""What glibc keeps before each piece: two words."""

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
    """What the system says about this process, in bytes.

    Attributes:
        resident: pages in memory, shared ones included.
        unique: pages that nobody else has (USS): what would be free if the process ended.
    """

    resident: int
    unique: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeapReading:
    """The heap at one moment.

    Attributes:
        allocated: bytes in use, by all threads; where the C library does not say, the process's own pages (USS).
        reserved: bytes taken from the system; resident memory where the C library does not say.
        source: ``mallinfo2``, or ``uss``: then never-touched memory is missing and interpreter and libraries are
            included, so that the unattributed rest may be of either sign.
        heap: finds what is not malloc's; None where the heap cannot be asked.
        trimmable: idle bytes at the top of the heap, which go back to the system for the asking (``malloc_trim``).
    """

    allocated: int
    reserved: int
    source: str
    heap: "Heap | None"
    trimmable: int = 0

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Say what malloc spent on each storage. A mapped file or shared memory is none of its own."""
        if self.heap is None:
            return Placement(blocks=[claim.nbytes for claim in claims], rounding=0, unowned=None)
        # Smaller storages cannot be mappings of their own, and reading /proc/self/maps takes long.
        mapped = self.heap.mapped([c for c in claims if not c.from_torch and c.kind != "saved" and c.span >= PAGE])
        blocks = [None if claim.address in mapped else self.heap.block_size(claim) for claim in claims]
        extra = [block - claim.span for claim, block in zip(claims, blocks, strict=True) if block is not None]
        return Placement(blocks=blocks, rounding=sum(extra), unowned=None)


@dataclass(slots=True)
class Heap:
    """glibc's malloc, asked through its public functions ``mallinfo2`` and ``malloc_usable_size``.

    Args:
        libc: the C library.
    """

    libc: Any
    _known: dict[tuple[int, int], bool] = field(default_factory=dict[tuple[int, int], bool])

    def __post_init__(self) -> None:
        """Declare what the functions take and return."""
        self.libc.mallinfo2.restype = _Mallinfo2
        self.libc.malloc_usable_size.restype = ctypes.c_size_t
        self.libc.malloc_usable_size.argtypes = [ctypes.c_void_p]

    def read(self) -> HeapReading:
        """Bytes in use and bytes taken, over all arenas."""
        info = self.libc.mallinfo2()
        return HeapReading(
            allocated=info.uordblks + info.hblkhd,
            reserved=info.arena + info.hblkhd,
            source="mallinfo2",
            heap=self,
            trimmable=info.keepcost,
        )

    def block_size(self, claim: Claim) -> int:
        """What malloc spent on a storage: with its head and rounding where torch asked malloc, else the bare size.

        A piece of its own mapping ends at the end of a page, which no other piece does; its mapping begins at the page
        of its head. To ask about memory that malloc does not hold is a crash, so three are never asked about: what
        torch did not ask malloc for; page-aligned addresses, where pinned memory lies; and what autograd saved, which
        another thread may let go at any moment, while the owners' tensors are held by the ledger.
        """
        if claim.kind == "saved" or not claim.from_torch or claim.address % PAGE == 0:
            return claim.span
        usable = int(self.libc.malloc_usable_size(claim.address))
        # `usable + HEAD // 2`: malloc's chunk shares the last word of its head with the chunk before it.
        end = claim.address + usable
        spent = end - (claim.address - HEAD) // PAGE * PAGE if end % PAGE == 0 else usable + HEAD // 2
        return spent if claim.span <= usable < claim.span + 2 * PAGE else claim.span

    def mapped(self, candidates: Sequence[Claim]) -> set[int]:
        """Addresses of storages that lie in a mapped file or in memory shared with other processes."""
        keys = {(claim.address, claim.span) for claim in candidates}
        if not keys <= self._known.keys():
            ranges = _mapped_ranges()
            self._known = {key: any(first <= key[0] < end for first, end in ranges) for key in keys}
        return {address for address, span in keys if self._known[address, span]}


class ProcessView:
    """The system's view of the process, where the C library cannot be asked."""

    def read(self) -> HeapReading:
        """Unique and resident memory of the process."""
        memory = process_memory()
        return HeapReading(allocated=memory.unique, reserved=memory.resident, source="uss", heap=None)


@cache
def heap() -> Heap | ProcessView:
    """The process's heap: glibc's if torch allocates from it, else the system's view. The answer is kept."""
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return ProcessView()
    found = Heap(ctypes.CDLL(None))
    # Other threads allocate and free during a probe, so one that fits is enough. Under jemalloc or tcmalloc none does.
    return found if any(_torch_allocates_from(found) for _ in range(_PROBES)) else ProcessView()


def _torch_allocates_from(found: Heap) -> bool:
    """Allocate a tensor, and look whether the heap has grown by it: another malloc may be preloaded."""
    before = found.read().allocated
    probe = torch.empty(_PROBE, dtype=torch.uint8, device="cpu")
    return probe.nbytes <= found.read().allocated - before < 2 * _PROBE


def process_memory() -> ProcessMemory:
    """Resident and unique memory of this process: a walk through its page tables, up to milliseconds."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        full = psutil.Process().memory_full_info()
        return ProcessMemory(resident=full.rss, unique=full.uss)
    # The first line is the address range of the whole process.
    lines = [line.split() for line in rollup.read_text().splitlines()[1:]]
    kilobytes = {words[0]: int(words[1]) for words in lines}
    unique = kilobytes["Private_Clean:"] + kilobytes["Private_Dirty:"] + kilobytes.get("Private_Hugetlb:", 0)
    return ProcessMemory(resident=kilobytes["Rss:"] * 1024, unique=unique * 1024)


def _mapped_ranges() -> list[tuple[int, int]]:
    """Address ranges of this process that stand for a file, or for memory shared between processes."""
    found: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        # A mapping with an inode stands for a file, or for shared memory.
        if inode != "0":
            first, end = addresses.split("-")
            found.append((int(first, 16), int(end, 16)))
    return found
