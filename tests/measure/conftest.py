"""Shared fixtures: a simulation of the counters of torch's CUDA allocator, for tests without a GPU."""

from typing import Any

import pytest
import torch

from fieldwatch.measure import AllocatorCounters
from fieldwatch.measure.gauge import CudaGauge


class SimulatedAllocator:
    """Counts like torch's caching allocator: current and peak values in torch's nested dictionary format."""

    def __init__(self) -> None:
        self.allocated = self.peak = 0
        self.retries = self.resets = 0
        self.reserved = 0
        self.in_use = True

    def hold(self, nbytes: int) -> None:
        """Allocate some bytes, or free them if the number is negative."""
        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)

    def touch(self, nbytes: int) -> None:
        """Allocate some bytes and free them immediately."""
        self.hold(nbytes)
        self.hold(-nbytes)

    def stats(self, index: int) -> dict[str, Any]:
        assert index == 0
        if not self.in_use:
            return {}
        return {
            "allocated_bytes": kinds(self.allocated, self.peak),
            "reserved_bytes": kinds(self.reserved, self.reserved),
            "num_alloc_retries": self.retries,
        }

    def reset(self, index: int) -> None:
        assert index == 0
        assert self.in_use, "torch raises when CUDA was not used yet"
        self.resets += 1
        self.peak = self.allocated

    def counters(self) -> AllocatorCounters:
        """Return the toolkit's counters, reading from this allocator."""
        return AllocatorCounters(torch.device("cuda:0"), gauge=CudaGauge(0, stats=self.stats, reset=self.reset))


def kinds(current: int, peak: int) -> dict[str, dict[str, int]]:
    one = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
    return {"all": one, "small_pool": dict.fromkeys(one, 0), "large_pool": one}


@pytest.fixture
def simulated() -> SimulatedAllocator:
    return SimulatedAllocator()


@pytest.fixture(scope="session")
def new_simulated() -> type[SimulatedAllocator]:
    """Return the class, for tests that need a new instance for each example."""
    return SimulatedAllocator
