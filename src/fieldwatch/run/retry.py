"""Retry work that ran out of memory, with the same random numbers and more, smaller micro-batches."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from fieldwatch.checkpoint import Stateful
from fieldwatch.health import parse_out_of_memory
from fieldwatch.run.log import RunLog
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.micro_batches import MicroBatches
from fieldwatch.run.state_backup import StateBackup, TorchGenerators

Result = TypeVar("Result")

CORRUPT = 2**50
"""Request size in bytes that indicates a corrupt count and not a shortage, so that retrying cannot help."""


@runtime_checkable
class OpenStep(Protocol):
    """Interface of a step that a retry needs: recorded values can be restored, an update cannot be undone."""

    @property
    def updated(self) -> bool:
        """Whether the optimizers have been stepped."""
        ...

    def snapshot(self) -> Any:
        """Return a copy of the values recorded so far."""
        ...

    def restore(self, snapshot: Any, /) -> None:
        """Discard everything recorded since the snapshot was taken."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """Content of an out-of-memory error, without the exception itself, whose frames would keep the memory alive.

    Attributes:
        text: error message.
        requested: requested bytes; None if the message does not contain them.
    """

    text: str
    requested: int | None


def shortage_of(error: BaseException) -> Shortage | None:
    """Parse an out-of-memory error; return None for other errors, and for requests that retrying cannot help.

    Recognized are ``torch.OutOfMemoryError``, ``MemoryError`` (including NumPy's) and the message of torch's CPU
    allocator. A lost CUDA context (illegal access, device assert) and a request of a petabyte are not recognized.
    """
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    request = parse_out_of_memory(str(error))
    if request is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        return None
    size = None if request is None else request.size
    return None if size is not None and size >= CORRUPT else Shortage(text=str(error), requested=size)


def release_memory() -> None:
    """Collect reference cycles, then release the unused blocks of CUDA's caching allocator."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Retry:
    """Retries work of a run that ran out of memory.

    Args:
        log: event log, which receives an event for each retry.
        memory: memory measurement of the run, which diagnoses the failure.
    """

    def __init__(self, log: RunLog, memory: RunMemory) -> None:
        self._log = log
        self._memory = memory

    def __call__(
        self,
        work: Callable[[], Result],
        micro_batches: MicroBatches,
        *,
        step: OpenStep | None,
        undo: Sequence[Stateful] = (),
        most: int | None = None,
    ) -> Result:
        """Call ``work`` and return its result, see :meth:`Run.retry`.

        Args:
            work: complete computation; it reads ``micro_batches.count``.
            micro_batches: micro-batch count, doubled before each retry.
            step: open step; None between steps.
            undo: other state that the work changes.
            most: limit for the number of micro-batches, in addition to ``micro_batches.most``.
        """
        # The generators of Python and NumPy are too slow to copy at every step: work that uses them passes
        # `RandomState()` in `undo`.
        before = StateBackup(TorchGenerators(), undo)
        snapshot = None if step is None else step.snapshot()
        # Work that starts after the step's update can be retried; only an update inside the work forbids it.
        updated = step is not None and step.updated
        limit = micro_batches.most if most is None else min(most, micro_batches.most)
        while True:
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                advice = _why_final(micro_batches, limit, step_updated=step is not None and step.updated != updated)
                if advice:
                    error.add_note(advice)
                    raise
                why = self._memory.why(shortage.text)
            # Retry outside of the except clause: only here is the exception gone, and with it the frames whose tensors
            # filled the memory.
            release_memory()
            # With the same random numbers, the retry computes what the first attempt would have.
            before.restore()
            if step is not None:
                step.restore(snapshot)
            count = micro_batches.count
            micro_batches.double()
            facts = {"what": micro_batches.name, "requested": shortage.requested, "before": count}
            self._log.event("out_of_memory", **facts, after=micro_batches.count, why=why or shortage.text)


def _why_final(micro_batches: MicroBatches, limit: int, *, step_updated: bool) -> str:
    """Return the reason why no retry is possible; empty if one is possible."""
    if step_updated:
        return (
            "memory ran out after step.update(...) had begun, so the step cannot be retried: call step.update(...) "
            "after the retried work, not inside of it"
        )
    if micro_batches.count < limit:
        return ""
    return (
        f"memory ran out with {micro_batches.name!r} divided into {micro_batches.count} micro-batches, the maximum: "
        "reduce the resolution or the size of the model, or stop other processes that use this memory (`fieldwatch "
        "gpu` lists them)"
    )
