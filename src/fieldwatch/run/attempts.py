"""Another attempt at work that ran out of memory: the same step, the same random numbers, in more and smaller parts."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

import torch

from fieldwatch.checkpoint import Stateful
from fieldwatch.health import parse_out_of_memory

if TYPE_CHECKING:
    from fieldwatch.run.run import Run
    from fieldwatch.run.step import Step

Result = TypeVar("Result")

CORRUPT = 2**50
"""Bytes from which on a request is no shortage but a mistake (a corrupt count): no number of parts would serve it."""


class Parts:
    """In how many parts some work is done. Doubled when memory runs out; in a checkpoint, a resumed run keeps it.

    Args:
        name: what is divided, for events and findings: "batch", "rays", "evaluation".
        count: parts to begin with.
        most: as many as the work can be divided into; with them, out of memory ends the run.

    Attributes:
        name: as above.
        count: parts now.
        most: as above.

    Raises:
        ValueError: not 1 <= count <= most.
    """

    def __init__(self, name: str = "batch", *, count: int = 1, most: int = 64) -> None:
        if not 1 <= count <= most:
            raise ValueError(f"Parts({name!r}, count={count}, most={most}): wanted 1 <= count <= most")
        self.name, self.count, self.most = name, count, most

    def slices(self, size: int) -> list[slice]:
        """Divide so many things into parts of (nearly) equal length, none of them empty."""
        parts = max(min(self.count, size), 1)
        ends = [size * part // parts for part in range(parts + 1)]
        return [slice(first, last) for first, last in pairwise(ends)]

    def chunk(self, size: int, *, least: int = 1) -> int:
        """How many things at a time, where it would be ``size`` in one part; ``least`` is not gone below."""
        return max(size // self.count, min(least, size))

    def double(self) -> None:
        """Twice as many parts, ``most`` at most."""
        self.count = min(2 * self.count, self.most)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds: the count."""
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the count of a checkpoint."""
        self.count = max(min(int(state["count"]), self.most), 1)


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


class Attempt:
    """One attempt, for one ``with`` statement. :class:`Attempts` makes it.

    Attributes:
        shortage: what ran out of memory; None while nothing has.
        why: the reason, as far as it is known without a census.
    """

    __slots__ = ("_final", "_parts", "_reason", "shortage", "why")

    def __init__(self, parts: Parts, final: Callable[[], str], reason: Callable[[str], str]) -> None:
        self._parts, self._final, self._reason = parts, final, reason
        self.shortage: Shortage | None = None
        self.why = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """Take an out-of-memory error in, and let go of it; every other error goes on its way."""
        shortage = None if error is None else shortage_of(error)
        if error is None or shortage is None:
            return False
        if advice := self._final():
            error.add_note(advice)
            return False
        self.shortage, self.why = shortage, self._reason(shortage.text)
        return True


@final
class Attempts:
    """Lets a step be done again, in smaller parts, when memory runs out. Every run has one, as `run.attempts`.

    Args:
        run: the run.
        open_step: gives the step that is under way; None between steps.
    """

    def __init__(self, run: "Run", open_step: Callable[[], "Step | None"]) -> None:
        self._run, self._open_step = run, open_step

    def __call__(self, parts: Parts, *, undo: Sequence[Stateful] = ()) -> Iterator[Attempt]:
        """Give out attempts at the same work until one does not run out of memory.

        ``for attempt in run.attempts(parts): with attempt: ...`` does the work once, in ``parts.count`` parts. If
        memory runs out inside of the ``with``, the error is let go of, memory is given back, torch's global random
        states and what was recorded in the open step are put back, ``parts.count`` is doubled, the event
        ``out_of_memory`` is recorded, and the work is done again. What is done between two attempts is done here,
        outside of every ``except``: there the error is gone, and with it the frames that held the memory. Names of the
        loop's own frame are not: let go of what they hold (`drawn = None`) at the beginning of an attempt, or do the
        work in a function.

        Put ``zero_grad`` inside of the attempt, and ``step.update`` after it: an update is never done again.

        Args:
            parts: of the work; give it to ``run.keep``.
            undo: what else the work changes: own generators, running estimates; `RandomState()` for python's and
                numpy's global generators, whose states take long to copy. Copied at every call: small things.

        Raises:
            torch.OutOfMemoryError, MemoryError, RuntimeError: the last one, with advice as its note, when there are
                ``parts.most`` parts already, or when ``step.update`` had begun.
        """
        before = _Before(self._open_step(), undo)
        while True:
            attempt = Attempt(parts, lambda: before.why_final() or _no_more(parts), self._run.memory.why)
            yield attempt
            if attempt.shortage is None:
                return
            release_memory()
            before.put_back()
            old = parts.count
            parts.double()
            facts = {"what": parts.name, "requested": attempt.shortage.requested, "before": old, "after": parts.count}
            self._run.event("out_of_memory", **facts, why=attempt.why or attempt.shortage.text)

    def result(self, parts: Parts, work: Callable[[], Result], *, undo: Sequence[Stateful] = ()) -> Result:
        """Return what a function gives, however many attempts it takes: its frame, and what that holds, goes with each.

        Args:
            parts: of the work; the function asks them how many there are.
            work: the whole of it.
            undo: what else it changes.

        Raises:
            torch.OutOfMemoryError, MemoryError, RuntimeError: as a call does.
        """
        results: list[Result] = []
        for attempt in self(parts, undo=undo):
            with attempt:
                results.append(work())
        return results[0]


def release_memory() -> None:
    """Give back what nobody holds: reference cycles first, then what CUDA's allocator keeps for later."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class _Before:
    """What an attempt may have changed, as it was before: random states, the step's record, and what the loop names.

    Taken at every step, so it has to be quick: torch's generators only, of CUDA the current device's, and no copy of
    what is not named.
    """

    def __init__(self, step: "Step | None", undo: Sequence[Stateful]) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self._items = [(item, deepcopy(item.state_dict())) for item in undo]
        self._step, self._noted = step, None if step is None else step.noted()

    def why_final(self) -> str:
        """Say why there can be no other attempt; empty if there can be one."""
        if self._step is None or self._noted is None or self._step.updated == self._noted.updated:
            return ""
        return (
            "memory ran out after step.update(...) had begun, so that this step cannot be done again: call "
            "step.update(...) after the attempts, not inside of one"
        )

    def put_back(self) -> None:
        """Make it so again."""
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
        for item, state in self._items:
            item.load_state_dict(deepcopy(state))
        if self._step is not None and self._noted is not None:
            self._step.back_to(self._noted)


def _no_more(parts: Parts) -> str:
    if parts.count < parts.most:
        return ""
    return (
        f"memory ran out with {parts.name!r} in {parts.count} parts, the most that it can be divided into: lower the "
        "resolution or the model's size, or stop what else fills this memory (`fieldwatch gpu` lists it)"
    )
