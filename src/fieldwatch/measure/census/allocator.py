"""Which allocator serves a device, and how it is read."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fieldwatch.base import InputError
from fieldwatch.measure.census.blocks import BlockReading, blocks_in_use
from fieldwatch.measure.census.ledger import Claim
from fieldwatch.measure.census.malloc import heap
from fieldwatch.measure.census.reading import Allocator, Placement

_memory: Any = torch.cuda.memory
_memory_snapshot: Callable[..., Any] = _memory.memory_snapshot


@dataclass(frozen=True, slots=True)
class CudaAllocator:
    """torch's caching allocator on one CUDA device. Reading it asks the host's books and waits for no kernel.

    Attributes:
        index: the number of the device.
    """

    index: int

    def read(self) -> "BlockReading | CountedReading":
        """The counters, and the blocks where the backend can list them (``cudaMallocAsync`` cannot)."""
        counters = torch.cuda.memory.memory_stats_as_nested_dict(self.index)
        allocated = _current(counters, "allocated_bytes")
        reserved = _current(counters, "reserved_bytes")
        if torch.cuda.memory.get_allocator_backend() != "native":
            return CountedReading(allocated=allocated, reserved=reserved)
        blocks = blocks_in_use(current_segments(), self.index)
        return BlockReading(allocated=allocated, reserved=reserved, blocks=blocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedReading:
    """An allocator that counts, but lists no blocks: what is rounded stays in the rest.

    Attributes:
        allocated: bytes in use.
        reserved: bytes taken from the device.
        source: where this comes from.
    """

    allocated: int
    reserved: int
    source: str = "memory_stats"

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Take every storage at its own size."""
        return Placement(blocks=[claim.nbytes for claim in claims], rounding=0, unowned=None)


def allocator_of(device: torch.device) -> Allocator:
    """The allocator that serves a device.

    Raises:
        InputError: the device is neither a CPU nor a CUDA device.
    """
    if device.type == "cuda":
        return CudaAllocator(numbered(device).index)
    if device.type != "cpu":
        raise InputError(f"a memory census on {device} is not possible: wanted a CPU or a CUDA (ROCm) device")
    return heap()


def current_segments() -> Sequence[Mapping[str, Any]]:
    """The segments of all CUDA devices with their blocks, and without the allocator's history."""
    return _memory_snapshot(**_without_traces())


def numbered(device: torch.device) -> torch.device:
    """The device with its number: ``cuda`` means the current one."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _current(counters: dict[str, Any], name: str) -> int:
    return int(counters.get(name, {}).get("all", {}).get("current", 0))  # empty before CUDA is first used


@cache
def _without_traces() -> dict[str, Any]:
    """The argument that leaves the history out of a snapshot; torch before 2.11 does not know it."""
    known = inspect.signature(_memory_snapshot).parameters
    return {"include_traces": False} if "include_traces" in known else {}
