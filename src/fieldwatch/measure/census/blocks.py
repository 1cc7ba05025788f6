"""The blocks of torch's CUDA allocator, as its snapshot lists them, and which of them hold given storages."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fieldwatch.measure.census.ledger import Claim
from fieldwatch.measure.census.reading import Placement, UnownedBlock

ALLOCATED_STATE = "active_allocated"
"""The state of a block that counts as allocated; freed blocks that a stream still uses do not."""


class AllocatedBlock(NamedTuple):
    """One allocated block.

    Attributes:
        address: where it begins.
        size: bytes, rounded up by the allocator.
        requested: bytes that were asked for; 0 where the snapshot does not say.
        site: the innermost line of Python that asked for it; empty without history.
    """

    address: int
    size: int
    requested: int
    site: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockReading:
    """The allocator's state, block by block.

    Attributes:
        allocated: bytes in use, by the allocator's own counter.
        reserved: bytes taken from the device.
        blocks: those in use, in order of their address.
        source: where this comes from.
    """

    allocated: int
    reserved: int
    blocks: Sequence[AllocatedBlock]
    source: str = "memory_snapshot"

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Find the block of each storage. A storage may begin inside a block (memory shared through dlpack)."""
        starts = [block.address for block in self.blocks]
        covered: dict[int, int] = {}
        found: list[int | None] = []
        for claim in claims:
            # The last block that begins at or before the storage is the only one that can hold it.
            i = bisect_right(starts, claim.address) - 1
            block = self.blocks[i] if i >= 0 else None
            if block is None or claim.address + claim.span > block.address + block.size:
                found.append(None)
                continue
            covered[i] = covered.get(i, 0) + claim.nbytes
            found.append(block.size)
        # Where the snapshot does not say what was requested (0), the storages in the block count as the request.
        rounding = sum(self.blocks[i].size - max(self.blocks[i].requested, n) for i, n in covered.items())
        unowned = {b.address: UnownedBlock(b.size, b.site) for i, b in enumerate(self.blocks) if i not in covered}
        return Placement(blocks=found, rounding=rounding, unowned=unowned)


def blocks_in_use(segments: Iterable[Mapping[str, Any]], device: int) -> list[AllocatedBlock]:
    """The allocated blocks of one device, in order of their address, private pools included.

    Args:
        segments: as ``torch.cuda.memory.memory_snapshot`` returns them, or the ``segments`` of a dumped snapshot.
        device: the number of the device.

    Returns:
        The blocks. Older snapshots give blocks no address: they lie one behind the other from the segment's start.
    """
    device_segments = [segment for segment in segments if segment.get("device", 0) == device]
    return sorted(block for segment in device_segments for block in _blocks_of(segment))


def _blocks_of(segment: Mapping[str, Any]) -> Iterator[AllocatedBlock]:
    address = segment["address"]
    for block in segment["blocks"]:
        address = block.get("address", address)
        size = block["size"]
        if block["state"] == ALLOCATED_STATE:
            yield AllocatedBlock(
                address, size, min(size, block.get("requested_size", 0)), site_of(block.get("frames", ()))
            )
        address += size


def site_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost line of a recorded stack that is Python outside torch, such as ``train.py:12 render``."""
    # Frames of C++ have no .py file; torch's own Python says less than the line that called it.
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")]
    device_segments = [frame for frame in python if "/torch/" not in str(frame["filename"]).replace("\\", "/")]
    for frame in (*device_segments, *python, *frames):
        return f"{frame['filename']}:{frame['line']} {frame['name']}"
    return ""
