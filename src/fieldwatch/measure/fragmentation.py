"""Break down reserved memory that no tensor uses, by whether and how it can be reclaimed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fieldwatch.measure.census.allocator import current_segments, numbered
from fieldwatch.measure.census.malloc import heap

IDLE = "inactive"
"""State of a block that is free for the next request."""


@dataclass(frozen=True, kw_only=True)
class Fragmentation:
    """Breakdown of the memory that an allocator has reserved on the device, in bytes.

    ``allocated + awaiting_stream + not_returnable + returnable == reserved``, exactly.

    Attributes:
        allocated: memory in use by tensors and other clients of the allocator, including ``rounding``.
        awaiting_stream: freed memory that a stream may still use; it becomes available automatically.
        not_returnable: idle blocks in segments that are partly in use, which is the actual fragmentation. They can
            serve smaller requests but cannot be returned to the device.
        returnable: entirely idle segments. ``torch.cuda.empty_cache()`` returns them to the device, which only helps
            other processes, since torch reuses them anyway.
        rounding: memory added to requests by rounding; None if the allocator does not count requests.
        largest_free: size of the largest idle block; None if blocks are not listed.
        retries: cumulative number of requests for which the cache had to be emptied; each one synchronizes the device.
        syncs: cumulative number of synchronizations of all streams.
    """

    allocated: int
    awaiting_stream: int
    not_returnable: int
    returnable: int
    rounding: int | None
    largest_free: int | None
    retries: int = 0
    syncs: int = 0

    @property
    def reserved(self) -> int:
        """Bytes reserved on the device."""
        return self.allocated + self.awaiting_stream + self.not_returnable + self.returnable

    @property
    def free(self) -> int:
        """Idle bytes, in partly used and in idle segments."""
        return self.not_returnable + self.returnable

    @property
    def index(self) -> float | None:
        """Fragmentation index, 1 - largest free block / free memory: 0 if it is one block, near 1 if it is scattered.

        None if blocks are not listed.
        """
        if self.largest_free is None:
            return None
        return max(0.0, 1 - self.largest_free / self.free) if self.free else 0.0

    @property
    def percent(self) -> float:
        """``(reserved - allocated) / reserved * 100``, which the original profiler calls fragmentation.

        This is the idle fraction of the cache, and the next step reuses most of it. Memory is lost to fragmentation
        only to the extent that ``not_returnable`` cannot serve later requests.
        """
        # Kept for comparison with logs of the original profiler, which uses the same formula.
        return (self.reserved - self.allocated) / self.reserved * 100 if self.reserved else 0.0

    def parts(self) -> dict[str, int]:
        """Return bytes by part, from ``rounding`` to ``returnable``, and ``largest_free``; unknown parts are absent."""
        names = ("rounding", "awaiting_stream", "not_returnable", "returnable", "largest_free")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def fragmentation(
    stats: Mapping[str, Any], segments: Sequence[Mapping[str, Any]], *, device: int | None = None
) -> Fragmentation:
    """Break down the memory of a CUDA allocator from its counters on the host.

    Args:
        stats: counters of one device, nested as returned by ``torch.cuda.memory_stats_as_nested_dict`` or flattened as
            by ``memory_stats``; empty before CUDA is initialized.
        segments: segments as returned by ``torch.cuda.memory_snapshot``, or ``segments`` of a dump; empty if the
            backend lists none (``cudaMallocAsync``).
        device: index of the device whose segments to use; None if all segments belong to it.

    Returns:
        The breakdown. Parts that a backend does not count are 0 or None, never estimated.
    """
    allocated = _current(stats, "allocated_bytes")
    reserved = _current(stats, "reserved_bytes")
    # Backends report 0 for counters that they do not support, so raise each value to its known lower bound.
    active = max(_current(stats, "active_bytes"), allocated)
    reserved = max(reserved, active)
    not_returnable = min(_current(stats, "inactive_split_bytes"), reserved - active)
    requested = _current(stats, "requested_bytes")
    return Fragmentation(
        allocated=allocated,
        awaiting_stream=active - allocated,
        not_returnable=not_returnable,
        returnable=reserved - active - not_returnable,
        rounding=max(0, allocated - requested) if requested or not allocated else None,
        largest_free=_largest_free(segments, device),
        retries=stats.get("num_alloc_retries", 0),
        syncs=stats.get("num_sync_all_streams", 0),
    )


def fragmentation_of(device: torch.device, *, known: tuple[int, int] | None = None) -> Fragmentation:
    """Break down the current memory of a device's allocator; on a CPU, that of the C library's heap.

    The heap does not track requests or streams and does not list blocks, so these parts are None or 0. Its returnable
    part is the top of the heap.

    Args:
        device: device to inspect.
        known: allocated and reserved bytes of a CPU's heap, if already read, so that the parts add up to these values.
            Ignored on CUDA, where the allocator's counters do not change in between.
    """
    if device.type == "cuda":
        index = numbered(device).index
        native = torch.cuda.get_allocator_backend() == "native"
        stats = torch.cuda.memory_stats_as_nested_dict(index)
        return fragmentation(stats, current_segments() if native else (), device=index)
    reading = heap().read()
    allocated, reserved = known or (reading.allocated, reading.reserved)
    # Other threads may allocate between the two readings, so clamp the difference.
    idle = max(0, reserved - allocated)
    return Fragmentation(
        allocated=allocated,
        awaiting_stream=0,
        not_returnable=idle - min(idle, reading.trimmable),
        returnable=min(idle, reading.trimmable),
        rounding=None,
        largest_free=None,
    )


def _current(stats: Mapping[str, Any], name: str) -> int:
    # Flattened statistics (from a dump) have dotted keys; those of the allocator are nested.
    flat = stats.get(f"{name}.all.current")
    return int(flat if flat is not None else stats.get(name, {}).get("all", {}).get("current", 0))


def _largest_free(segments: Sequence[Mapping[str, Any]], device: int | None) -> int | None:
    if not segments:
        return None
    # Segments of a dump made by one process may omit the device: then it is device 0.
    device_segments = [segment for segment in segments if device is None or segment.get("device", 0) == device]
    return max(
        (block["size"] for segment in device_segments for block in segment["blocks"] if block["state"] == IDLE),
        default=0,
    )
