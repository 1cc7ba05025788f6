"""Sums over ranks in the middle of a step, which any rank may have to give up because its memory ran out."""

from types import TracebackType
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.run import Ranks, shortage_of


class ShortElsewhereError(MemoryError):
    """Another rank ran out of memory, so that this one, too, has to do the step again, in as many parts."""


class Exchange:
    """Sums numbers over the ranks, inside of an attempt at a step (`Run.attempts`).

    A rank whose memory runs out is missing where the others meet next. So it comes there once more, from the end of
    this block, only to say so: then the attempts of all fail at the same place, and all begin anew in twice as many
    parts. For that every meeting takes the same shape, and the end of the block is one more.

    Args:
        ranks: who meets.
        numbers: that are summed at a time, at most.
        device: where they are.
    """

    def __init__(self, ranks: Ranks, numbers: int, device: torch.device) -> None:
        self.ranks = ranks
        self._buffer = torch.zeros(1 + numbers, dtype=torch.float64, device=device)

    def sum(self, numbers: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the sums over the ranks, float64; all ranks have to ask, each for as many numbers.

        Raises:
            ShortElsewhereError: another rank ran out of memory.
            RankLost: another rank was lost.
        """
        self._buffer.zero_()
        self._buffer[1 : 1 + len(numbers)] = numbers.detach()
        self.ranks.sum([self._buffer])
        if bool(self._buffer[0]):
            raise ShortElsewhereError("another rank ran out of memory: this one does the step again, too")
        return self._buffer[1 : 1 + len(numbers)].clone()

    def __enter__(self) -> Self:
        """Begin an attempt."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End an attempt, here and elsewhere; or tell the others that it failed here."""
        if error is None:
            self.sum(self._buffer[:0])
        elif not isinstance(error, ShortElsewhereError) and shortage_of(error) is not None:
            self._buffer.zero_()[0] = 1
            self.ranks.sum([self._buffer])
