"""When memory runs out: what filled it, looked at before anything is let go, and a verdict with its remedy."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import torch

from fieldwatch.base import output_path
from fieldwatch.health import AllocationRequest, DeviceMemory, OutOfMemoryDiagnosis, parse_out_of_memory, triage
from fieldwatch.measure import AllocatorCounters, AllocatorHistory, FailedAllocation, fragmentation_of, on_out_of_memory
from fieldwatch.measure.census import Census

SNAPSHOT = "out_of_memory.pickle"
RESERVE = (2 * 2**20, 30 * 2**20)
"""Bytes of address space that are kept, unwritten, for saying why there is no more of it: to look, and to report."""


@dataclass(frozen=True, kw_only=True)
class FailedRequest:
    """The state of the device at the failed request.

    Attributes:
        requested: bytes; None where only the error's text says it.
        memory: the device.
        census: who owned what.
    """

    requested: int | None
    memory: DeviceMemory
    census: Census


class OutOfMemoryTriage:
    """Watches for requests that cannot be served.

    On CUDA it looks before the error unwinds what holds the memory, also where somebody catches the error. On a CPU it
    looks when the error reaches the run.

    Args:
        folder: the run folder; the allocator's snapshot goes into its ``crash/``.
        counters: the device.
        history: writes the allocator's snapshot.
        census: accounts for every byte at the moment of the call.
    """

    def __init__(
        self, folder: Path, counters: AllocatorCounters, history: AllocatorHistory, census: Callable[[], Census]
    ) -> None:
        self._folder = folder
        self._counters = counters
        self._history = history
        self._census = census
        self._failed_request: FailedRequest | None = None
        self.steady_bytes = 0
        """Bytes that were allocated at the end of the last step: what stays from step to step."""
        self._memory_at_error: DeviceMemory | None = None
        self._reserve = [mmap.mmap(-1, size) for size in RESERVE]
        self._watch = on_out_of_memory(self._at_failure) if counters.device.type == "cuda" else None

    def begin(self) -> None:
        """Begin a step: what failed in an earlier one, and was caught, is past."""
        self._failed_request = None

    def make_room(self, error: BaseException) -> None:
        """If memory ran out, look at what there is and give back what was kept for writing down why."""
        if _request_of(error) is None:
            return
        # One part is given back for reading the memory, the other for writing the report about it.
        self._reserve[0].close()
        self._memory_at_error = self._memory()
        self._reserve[1].close()

    def explain(self, error: BaseException, crash_folder: Path, step: int) -> OutOfMemoryDiagnosis | None:
        """Say why memory ran out, if that is what the error says: on the error, and in ``memory.json``.

        Args:
            error: what ended the run.
            crash_folder: the crash folder.
            step: in which step.
        """
        request = _request_of(error)
        if request is None:
            return None
        failed = self._failed_request or self._examine(None)
        requested = failed.requested if failed.requested is not None else request.size
        memory = _with_others(failed.memory, request)
        verdict = triage(requested, memory) if requested is not None else None
        report: dict[str, Any] = {
            "verdict": None if verdict is None else vars(verdict),
            "requested": requested,
            "device": {**vars(memory), "peaks": dict(memory.peaks)},
            "census": failed.census.as_json(max(step, 0), "failure"),
        }
        (crash_folder / "memory.json").write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
        if verdict is not None:
            error.add_note(f"why memory ran out: {verdict}")
        return verdict

    def why(self, text: str) -> str:
        """Say why memory ran out while the error is still there, without a census; empty where the text says no size.

        Args:
            text: of the error.
        """
        request = parse_out_of_memory(text)
        if request is None or request.size is None:
            return ""
        if self._counters.device.type == "cuda":
            # On CUDA the device was examined when the request failed; by now part of its memory is free again.
            memory = None if self._failed_request is None else _with_others(self._failed_request.memory, request)
        else:
            memory = self._memory()
        return "" if memory is None else str(triage(request.size, memory))

    def close(self) -> None:
        """Stop watching."""
        for part in self._reserve:
            part.close()
        if self._watch is not None:
            self._watch.detach()

    def _at_failure(self, event: FailedAllocation) -> None:
        first_in_step = self._failed_request is None
        self._failed_request = self._examine(event.requested)
        if first_in_step:  # whoever catches the error and tries again should not wait for a file each time
            self._history.dump(output_path(self._folder, "crash", SNAPSHOT))

    def _examine(self, requested: int | None) -> FailedRequest:
        memory = self._memory_at_error or self._memory()
        census = self._census()
        return FailedRequest(requested=requested, memory=replace(memory, peaks=census.by_component()), census=census)

    def _memory(self) -> DeviceMemory:
        if self._counters.device.type == "cuda":
            return _cuda_memory(self._counters, self.steady_bytes)
        given_back = sum(size for size, part in zip(RESERVE, self._reserve, strict=True) if part.closed)
        return _process_memory(self._counters, self.steady_bytes, given_back)


def _request_of(error: BaseException) -> AllocationRequest | None:
    """What was asked for; Python's own error says nothing but its name."""
    said = parse_out_of_memory(str(error))
    return AllocationRequest(size=None, device="cpu") if said is None and isinstance(error, MemoryError) else said


def _cuda_memory(counters: AllocatorCounters, steady_bytes: int) -> DeviceMemory:
    free, total = torch.cuda.mem_get_info(counters.device)
    parts = fragmentation_of(counters.device)
    native = torch.cuda.get_allocator_backend() == "native"
    share = torch.cuda.get_per_process_memory_fraction(counters.device) if native else 1.0
    return DeviceMemory(
        total=total,
        free=free,
        allocated=parts.allocated,
        reserved=parts.reserved,
        not_returnable=parts.not_returnable,
        returnable=parts.returnable,
        largest_free=parts.largest_free or 0,
        allowed=int(total * share),
        persistent=steady_bytes or None,
    )


def _process_memory(counters: AllocatorCounters, steady_bytes: int, given_back: int) -> DeviceMemory:
    """A CPU's memory as a device's: what the process has is both allocated and reserved."""
    capacity = counters.capacity()
    machine = psutil.virtual_memory()
    resident = psutil.Process().memory_info().rss
    return DeviceMemory(
        total=machine.total,
        free=machine.available,
        allocated=resident,
        reserved=resident,
        # What `make_room` gave back was not there for the request that failed.
        allowed=None if capacity is None else capacity - given_back,
        persistent=steady_bytes or None,
    )


def _with_others(memory: DeviceMemory, request: AllocationRequest) -> DeviceMemory:
    """The device, with what the error's text says of other processes."""
    return memory if request.others is None else replace(memory, others=request.others)
