"""Out-of-memory reports: a census of the memory at the moment of failure, and a diagnosis with a remedy."""

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
"""Address space in bytes, reserved so that an out-of-memory report can still allocate: for the census, the report."""


@dataclass(frozen=True, kw_only=True)
class FailedRequest:
    """State of the device at the failed request.

    Attributes:
        requested: requested bytes; None if only the error message contains them.
        memory: memory of the device.
        census: memory by owner.
    """

    requested: int | None
    memory: DeviceMemory
    census: Census


class OutOfMemoryTriage:
    """Diagnoses failed allocations.

    On CUDA the memory is examined before the error unwinds the frames that hold it, even if the error is caught. On a
    CPU it is examined when the error reaches the run.

    Args:
        folder: run folder; the allocator snapshot is written to its ``crash/``.
        counters: allocator counters of the device.
        history: allocator history, which writes the snapshot.
        census: function that attributes every allocated byte at the moment of the call.
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
        """Bytes allocated at the end of the latest step: memory that persists between steps."""
        self._memory_at_error: DeviceMemory | None = None
        # These pages are never written, so they use address space but no memory.
        self._reserve = [mmap.mmap(-1, size) for size in RESERVE]
        self._watch = on_out_of_memory(self._at_failure) if counters.device.type == "cuda" else None

    def begin(self) -> None:
        """Begin a step: discard a failed request of an earlier one, whose error was caught."""
        self._failed_request = None

    def make_room(self, error: BaseException) -> None:
        """If memory ran out, examine it and release the reserve, so that the report can allocate."""
        # The first block makes room for examining the error and the memory: without it, even a regular expression can
        # fail. The second one makes room for writing the report.
        self._reserve[0].close()
        if _request_of(error) is None:
            return
        self._memory_at_error = self._memory()
        self._reserve[1].close()

    def explain(self, error: BaseException, crash_folder: Path, step: int) -> OutOfMemoryDiagnosis | None:
        """Diagnose an out-of-memory error: add a note to it, and write ``memory.json``.

        Args:
            error: error that ended the run.
            crash_folder: folder for ``memory.json``.
            step: step in which the error occurred.

        Returns:
            The diagnosis; None if memory did not run out, or the size of the request is unknown.
        """
        request = _request_of(error)
        if request is None:
            return None
        failed = self._failed_request or self._examine(None)
        # The allocator's hook has the exact size; the error message rounds it.
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
        """Return the reason why memory ran out, without a census; empty if the message contains no size.

        Call it while the exception is still alive, and with it the tensors that filled the memory.

        Args:
            text: error message.
        """
        request = parse_out_of_memory(text)
        if request is None or request.size is None:
            return ""
        if self._counters.device.type == "cuda":
            # On CUDA the memory was examined when the request failed; by now, part of it is free again.
            memory = None if self._failed_request is None else _with_others(self._failed_request.memory, request)
        else:
            memory = self._memory()
        return "" if memory is None else str(triage(request.size, memory))

    def close(self) -> None:
        """Remove the allocator hook, and release the reserve."""
        for part in self._reserve:
            part.close()
        if self._watch is not None:
            self._watch.detach()

    def _at_failure(self, event: FailedAllocation) -> None:
        first_in_step = self._failed_request is None
        self._failed_request = self._examine(event.requested)
        # A snapshot takes seconds: write one per step, and not one per retry.
        if first_in_step:
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
    """Return the failed request; None for other errors. Python's ``MemoryError`` contains no size."""
    # If memory ran out on the writer thread, its error is the cause of the one raised in the training thread.
    cause = error.__cause__
    for raised in (error,) if cause is None else (error, cause):
        if request := parse_out_of_memory(str(raised)):
            return request
        if isinstance(raised, MemoryError):
            return AllocationRequest(size=None, device="cpu")
    return None


def _cuda_memory(counters: AllocatorCounters, steady_bytes: int) -> DeviceMemory:
    free, total = torch.cuda.mem_get_info(counters.device)
    parts = fragmentation_of(counters.device)
    # Other backends, such as cudaMallocAsync, have no memory fraction.
    native = torch.cuda.get_allocator_backend() == "native"
    fraction = torch.cuda.get_per_process_memory_fraction(counters.device) if native else 1.0
    return DeviceMemory(
        total=total,
        free=free,
        allocated=parts.allocated,
        reserved=parts.reserved,
        not_returnable=parts.not_returnable,
        returnable=parts.returnable,
        largest_free=parts.largest_free or 0,
        allowed=int(total * fraction),
        persistent=steady_bytes or None,
    )


def _process_memory(counters: AllocatorCounters, steady_bytes: int, given_back: int) -> DeviceMemory:
    """Return the host memory as device memory: the resident set is both allocated and reserved."""
    capacity = counters.capacity()
    machine = psutil.virtual_memory()
    resident = psutil.Process().memory_info().rss
    return DeviceMemory(
        total=machine.total,
        free=machine.available,
        # It is unknown which part of the resident memory is in use.
        allocated=resident,
        reserved=resident,
        # The reserve that `make_room` released was not available to the failed request.
        allowed=None if capacity is None else capacity - given_back,
        persistent=steady_bytes or None,
    )


def _with_others(memory: DeviceMemory, request: AllocationRequest) -> DeviceMemory:
    """Return the device memory, with the usage of other processes if the error message contains it."""
    return memory if request.others is None else replace(memory, others=request.others)
