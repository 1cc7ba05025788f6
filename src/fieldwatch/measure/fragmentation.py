"""Reserved memory that no tensor uses: where it is, and whether anything can be done about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fieldwatch.measure.census.allocator import current_segments, numbered
from fieldwatch.measure.census.malloc import heap

IDLE = "inactive"
"""The state of a block that can be given to the next one who asks."""


@dataclass(frozen=True, kw_only=True)
class Fragmentation:
    """What an allocator has taken from the device, byte by byte.

    ``allocated + awaiting_stream + not_returnable + returnable = reserved``, exactly.

    Attributes:
        allocated: used by tensors, or by others who asked the allocator; ``rounding`` included.
        awaiting_stream: freed, but a stream may still use it; comes back by itself.
        not_returnable: idle pieces of segments that are in use elsewhere: the true fragmentation. They serve smaller
            requests, and cannot go back to the device, whatever is called.
        returnable: idle whole segments; ``torch.cuda.empty_cache()`` gives them back, which helps other processes
            and nobody else: torch would use them again anyway.
        rounding: what was added to the requests; None where the allocator does not count them.
        largest_free: the largest request that idle memory can serve; None where pieces are not listed.
        retries: how often the cache had to be emptied to serve a request, so far; each one stops the device.
        syncs: how often all streams had to be waited for, so far.
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
        """Bytes taken from the device."""
        return self.allocated + self.awaiting_stream + self.not_returnable + self.returnable

    @property
    def free(self) -> int:
        """Idle bytes, in pieces or whole segments."""
        return self.not_returnable + self.returnable

    @property
    def index(self) -> float | None:
        """1 - largest free piece / all that is free: 0 is one piece, near 1 is dust. None where pieces are unknown."""
        if self.largest_free is None:
            return None
        return max(0.0, 1 - self.largest_free / self.free) if self.free else 0.0

    @property
    def percent(self) -> float:
        """``(reserved - allocated) / reserved * 100``: what the original profiler calls fragmentation.

        It is the cache's idle share: most of it is used again by the next step. Memory is lost to fragmentation only
        as far as ``not_returnable`` cannot serve the requests that come.
        """
        return (self.reserved - self.allocated) / self.reserved * 100 if self.reserved else 0.0

    def parts(self) -> dict[str, int]:
        """Bytes by name: rounding, awaiting_stream, not_returnable, returnable, largest_free; unknown ones absent."""
        names = ("rounding", "awaiting_stream", "not_returnable", "returnable", "largest_free")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def fragmentation(
    stats: Mapping[str, Any], segments: Sequence[Mapping[str, Any]], *, device: int | None = None
) -> Fragmentation:
    """Take a CUDA allocator's memory apart, from numbers it keeps on the host.

    Args:
        stats: one device's counters, as ``torch.cuda.memory_stats_as_nested_dict`` gives them, or flattened as
            ``memory_stats`` does; empty before CUDA is used.
        segments: as ``torch.cuda.memory_snapshot`` lists them, or the ``segments`` of a dump; empty where the backend
            lists none (``cudaMallocAsync``).
        device: which device's segments to look at; None: all are the device's own.

    Returns:
        The parts. What a backend does not count (it stays 0 there) is left out of the sum's parts, not guessed.
    """
    allocated = _current(stats, "allocated_bytes")
    reserved = _current(stats, "reserved_bytes")
    # Backends that do not count a figure report 0: each figure is raised to what it must include at least.
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
    """Take the memory of a device's allocator apart at this moment; on a CPU, that of the C library's heap.

    The heap knows neither requests nor waiting streams, and lists no pieces: these parts are None or 0. What it can
    give back is the top of the heap.

    Args:
        device: whose memory.
        known: allocated and reserved bytes of a CPU's heap that were read at this moment already, so that the parts
            add up to them. On CUDA the allocator's own books say the same again.
    """
    if device.type == "cuda":
        index = numbered(device).index
        native = torch.cuda.get_allocator_backend() == "native"
        stats = torch.cuda.memory_stats_as_nested_dict(index)
        return fragmentation(stats, current_segments() if native else (), device=index)
    reading = heap().read()
    allocated, reserved = known or (reading.allocated, reading.reserved)
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
    # Flattened statistics (of a dump) have dotted keys, nested ones (of the allocator) do not.
    flat = stats.get(f"{name}.all.current")
    return int(flat if flat is not None else stats.get(name, {}).get("all", {}).get("current", 0))


def _largest_free(segments: Sequence[Mapping[str, Any]], device: int | None) -> int | None:
    if not segments:
        return None
    device_segments = [segment for segment in segments if device is None or segment.get("device", 0) == device]
    return max(
        (block["size"] for segment in device_segments for block in segment["blocks"] if block["state"] == IDLE),
        default=0,
    )
