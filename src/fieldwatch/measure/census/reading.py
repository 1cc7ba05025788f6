"""Interface of allocators: allocated memory, and the blocks of given storages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from fieldwatch.measure.census.ledger import Claim


class UnownedBlock(NamedTuple):
    """An allocated block without an owner.

    Attributes:
        nbytes: size of the block in bytes.
        site: line of code that requested the block; empty without the allocator's history.
    """

    nbytes: int
    site: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """The assignment of storages to blocks of an allocator.

    Attributes:
        blocks: block size of each storage in bytes, in input order; None if the storage does not belong to the
            allocator (another allocator, a mapped file, another process).
        rounding: bytes that the allocator added to the requests.
        unowned: blocks that contain none of the storages, by address; None if blocks cannot be listed.
    """

    blocks: Sequence[int | None]
    rounding: int
    unowned: Mapping[int, UnownedBlock] | None


@runtime_checkable
class Reading(Protocol):
    """An allocator's state at one moment."""

    @property
    def allocated(self) -> int:
        """Bytes in use."""
        ...

    @property
    def reserved(self) -> int:
        """Bytes reserved on the device or from the system, including idle ones."""
        ...

    @property
    def source(self) -> str:
        """Origin of the numbers, such as ``mallinfo2``."""
        ...

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Find the blocks of the claimed storages."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """An allocator whose memory is reconciled with the memory of the owners."""

    def read(self) -> Reading:
        """Read the current state without synchronization."""
        ...
