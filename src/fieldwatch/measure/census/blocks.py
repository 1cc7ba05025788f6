"""Blocks of torch's CUDA allocator, as listed by its snapshot, and their assignment to storages."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fieldwatch.measure.census.ledger import Claim
from fieldwatch.measure.census.reading import Placement, UnownedBlock

ALLOCATED_STATE = "active_allocated"
"""State of a block that counts as allocated; freed blocks that a stream still uses do not count."""


class AllocatedBlock(NamedTuple):
    """One allocated block.

    Attributes:
        address: start address.
        size: size in bytes, as rounded up by the allocator.
        requested: requested size in bytes; 0 if the snapshot does not record it.
        site: innermost line of Python that requested the block; empty without history.
    """

    address: int
    size: int
    requested: int
    site: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockReading:
    """State of the allocator, block by block.

    Attributes:
        allocated: bytes in use, according to the allocator's counter.
        reserved: bytes reserved on the device.
        blocks: blocks in use, in order of address.
        source: origin of the numbers.
    """

    allocated: int
    reserved: int
    blocks: Sequence[AllocatedBlock]
    source: str = "memory_snapshot"

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Find the block of each storage. A storage may begin inside a block, for example if shared through DLPack."""
        starts = [block.address for block in self.blocks]
        covered: dict[int, int] = {}
        sizes: list[int | None] = []
        for claim in claims:
            # Only the last block that begins at or before the storage can contain it.
            i = bisect_right(starts, claim.address) - 1
            block = self.blocks[i] if i >= 0 else None
            if block is None or claim.address + claim.span > block.address + block.size:
                sizes.append(None)
                continue
            covered[i] = covered.get(i, 0) + claim.nbytes
            sizes.append(block.size)
        # If the snapshot does not record the requested size (0), use the total size of the storages in the block.
        rounding = sum(self.blocks[i].size - max(self.blocks[i].requested, n) for i, n in covered.items())
        unowned = {b.address: UnownedBlock(b.size, b.site) for i, b in enumerate(self.blocks) if i not in covered}
        return Placement(blocks=sizes, rounding=rounding, unowned=unowned)


def blocks_in_use(segments: Iterable[Mapping[str, Any]], device: int) -> list[AllocatedBlock]:
    """Return the allocated blocks of one device in order of address, including those of private pools.

    Args:
        segments: segments as returned by ``torch.cuda.memory.memory_snapshot``, or ``segments`` of a dumped snapshot.
        device: index of the device.
    """
    device_segments = [segment for segment in segments if segment.get("device", 0) == device]
    return sorted(block for segment in device_segments for block in _blocks_of(segment))


def _blocks_of(segment: Mapping[str, Any]) -> Iterator[AllocatedBlock]:
    address = segment["address"]
    for block in segment["blocks"]:
        # Older snapshots do not record block addresses: blocks are contiguous from the start of the segment.
        address = block.get("address", address)
        size = block["size"]
        # Clamp the requested size: rounding must not become negative.
        if block["state"] == ALLOCATED_STATE:
            yield AllocatedBlock(
                address, size, min(size, block.get("requested_size", 0)), site_of(block.get("frames", ()))
            )
        address += size


def site_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost Python frame outside torch of a recorded stack, such as ``train.py:12 render``.

    If there is none, fall back to the innermost Python frame, then to the innermost frame of any kind.
    """
    # C++ frames have no .py file. Python frames inside torch are less informative than the line that called torch.
    python = [frame for frame in frames if str(frame["filename"]).endswith(".py")]
    outside_torch = [frame for frame in python if "/torch/" not in str(frame["filename"]).replace("\\", "/")]
    for frame in (*outside_torch, *python, *frames):
        return f"{frame['filename']}:{frame['line']} {frame['name']}"
    return ""
