"""What every allocator answers: how much is allocated, and what it spent on given storages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from fieldwatch.measure.census.ledger import Claim


class UnownedBlock(NamedTuple):
    """An allocated block that nobody owns.

    Attributes:
        nbytes: its size.
        site: the line of code that asked for it; empty without the allocator's history.
    """

    nbytes: int
    site: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Storages found in an allocator's memory.

    Attributes:
        blocks: bytes the allocator spent on each storage, in the order asked; None for one that is not its own
            (another allocator, a mapped file, another process).
        rounding: bytes spent beyond what was asked for.
        unowned: the blocks that hold none of the storages, by address; None where blocks cannot be listed.
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
        """Bytes taken from the device or the system, idle ones included."""
        ...

    @property
    def source(self) -> str:
        """Where the numbers come from, such as ``mallinfo2``."""
        ...

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Find storages among the allocated memory."""
        ...


@runtime_checkable
class Allocator(Protocol):
    """Whose bytes are reconciled with the owners'."""

    def read(self) -> Reading:
        """Read the state of this moment, without waiting for a device."""
        ...
