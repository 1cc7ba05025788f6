"""The memory census: attribute every allocated byte to an owner and reconcile the sum with the allocator."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.measure.census.allocator import CudaAllocator, allocator_of
    from fieldwatch.measure.census.blocks import AllocatedBlock, BlockReading, blocks_in_use
    from fieldwatch.measure.census.census import LARGE, Census
    from fieldwatch.measure.census.entry import KINDS, CensusEntry, Kind
    from fieldwatch.measure.census.malloc import ProcessMemory, process_memory
    from fieldwatch.measure.census.owners import STALE
    from fieldwatch.measure.census.reading import Allocator, Placement, Reading, UnownedBlock
    from fieldwatch.measure.census.saved import SavedTensors
    from fieldwatch.measure.census.take import take_census

__all__ = [
    "KINDS",
    "LARGE",
    "STALE",
    "AllocatedBlock",
    "Allocator",
    "BlockReading",
    "Census",
    "CensusEntry",
    "CudaAllocator",
    "Kind",
    "Placement",
    "ProcessMemory",
    "Reading",
    "SavedTensors",
    "UnownedBlock",
    "allocator_of",
    "blocks_in_use",
    "process_memory",
    "take_census",
]

__getattr__, __dir__ = lazy_names(__name__)
