"""Access to the allocator of a device."""

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
    """torch's caching allocator on one CUDA device. It is read on the host, without synchronization.

    Attributes:
        index: index of the device.
    """

    index: int

    def read(self) -> "BlockReading | CountedReading":
        """Read the counters and, if the backend can list them, the blocks (``cudaMallocAsync`` cannot)."""
        counters = torch.cuda.memory.memory_stats_as_nested_dict(self.index)
        allocated = _current(counters, "allocated_bytes")
        reserved = _current(counters, "reserved_bytes")
        if torch.cuda.memory.get_allocator_backend() != "native":
            return CountedReading(allocated=allocated, reserved=reserved)
        blocks = blocks_in_use(current_segments(), self.index)
        return BlockReading(allocated=allocated, reserved=reserved, blocks=blocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedReading:
    """State of an allocator that has counters but lists no blocks; rounding is then part of the unattributed rest.

    Attributes:
        allocated: bytes in use.
        reserved: bytes reserved on the device.
        source: origin of the numbers.
    """

    allocated: int
    reserved: int
    source: str = "memory_stats"

    def place(self, claims: Sequence[Claim]) -> Placement:
        """Use the size of each storage as the size of its block."""
        return Placement(blocks=[claim.nbytes for claim in claims], rounding=0, unowned=None)


def allocator_of(device: torch.device) -> Allocator:
    """Return the allocator of a device.

    Raises:
        InputError: if the device is neither a CPU nor a CUDA device.
    """
    if device.type == "cuda":
        return CudaAllocator(numbered(device).index)
    if device.type != "cpu":
        raise InputError(f"a memory census requires a CPU or a CUDA (ROCm) device, got {device}")
    return heap()


def current_segments() -> Sequence[Mapping[str, Any]]:
    """Return the segments of all CUDA devices with their blocks, without the allocator's history."""
    return _memory_snapshot(**_without_traces())


def numbered(device: torch.device) -> torch.device:
    """Return the device with an explicit index; ``cuda`` means the current device."""
    if str(device) != "cuda":
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _current(counters: dict[str, Any], name: str) -> int:
    # The counters are empty before CUDA is initialized.
    return int(counters.get(name, {}).get("all", {}).get("current", 0))


@cache
def _without_traces() -> dict[str, Any]:
    """Return the argument that excludes the history from a snapshot; torch before 2.11 does not support it."""
    known = inspect.signature(_memory_snapshot).parameters
    return {"include_traces": False} if "include_traces" in known else {}
