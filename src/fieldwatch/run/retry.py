"""Repeats work that ran out of memory, with the same random numbers, in more and smaller micro-batches."""

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
"""Bytes from which a request is a mistake (a corrupt count) and no shortage: no number of micro-batches would help."""


@runtime_checkable
class OpenStep(Protocol):
    """The part of a step that a retry needs: what it recorded can be forgotten, an update cannot."""

    @property
    def updated(self) -> bool:
        """Whether the optimizers have stepped."""
        ...

    def snapshot(self) -> Any:
        """Return what was recorded so far."""
        ...

    def restore(self, snapshot: Any, /) -> None:
        """Forget what was recorded since."""
        ...


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """What an out-of-memory error says, without the error: its frames would hold the memory.

    Attributes:
        text: the message.
        requested: bytes; None where the message does not say.
    """

    text: str
    requested: int | None


def shortage_of(error: BaseException) -> Shortage | None:
    """Return what an error says if memory ran out and less work may help; None for every other error.

    That is ``torch.OutOfMemoryError``, ``MemoryError`` (numpy's, too) and the text of torch's CPU allocator. A CUDA
    context that is lost (illegal access, device assert) is none of it, nor is a request of a petabyte.
    """
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    request = parse_out_of_memory(str(error))
    if request is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        return None
    size = None if request is None else request.size
    return None if size is not None and size >= CORRUPT else Shortage(text=str(error), requested=size)


def release_memory() -> None:
    """Free what nobody holds: reference cycles first, then the blocks that CUDA's allocator caches."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Retry:
    """Repeats work of a run that ran out of memory.

    Args:
        log: receives an event for each retry.
        memory: explains why memory ran out.
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
        """Return what ``work`` returns; see :meth:`Run.retry`.

        Args:
            work: all of it; it reads ``micro_batches.count``.
            micro_batches: doubled before each retry.
            step: the step that is under way; None between steps.
            undo: what else the work changes.
            most: micro-batches that the work can be divided into, where that is fewer than ``micro_batches.most``.
        """
        before = StateBackup(TorchGenerators(), undo)
        snapshot = None if step is None else step.snapshot()
        # Work between two steps may come after an update; only an update inside the work forbids a retry.
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
            # The retry begins outside of the except clause: here the error is gone, and with it the frames whose
            # tensors filled the memory.
            release_memory()
            # The same random numbers: the repeated work computes what the first try would have.
            before.restore()
            if step is not None:
                step.restore(snapshot)
            count = micro_batches.count
            micro_batches.double()
            facts = {"what": micro_batches.name, "requested": shortage.requested, "before": count}
            self._log.event("out_of_memory", **facts, after=micro_batches.count, why=why or shortage.text)


def _why_final(micro_batches: MicroBatches, limit: int, *, step_updated: bool) -> str:
    """Say why there can be no retry; empty if there can be one."""
    if step_updated:
        return (
            "memory ran out after step.update(...) had begun, so that this step cannot be repeated: call "
            "step.update(...) after the work that is retried, not inside of it"
        )
    if micro_batches.count < limit:
        return ""
    return (
        f"memory ran out with {micro_batches.name!r} in {micro_batches.count} micro-batches, the most that it can be "
        "divided into: lower the resolution or the model's size, or stop what else fills this memory (`fieldwatch gpu` "
        "lists it)"
    )
