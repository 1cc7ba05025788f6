"""Sums over ranks in the middle of a step, which any rank may have to repeat because its memory ran out."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Ranks


class ShortElsewhereError(MemoryError):
    """Another rank ran out of memory, so that this one has to repeat the step, too, in as many micro-batches."""


class RankExchange:
    """Sums numbers over the ranks between the forward and the backward pass of a step.

    A rank whose memory runs out is missing where the others meet next. So it meets them once more, in `repeat`, only to
    say so: their attempts end there, and all ranks begin anew in twice as many micro-batches. For that every meeting
    has the same shape, and the end of an attempt, `finish`, is one more.

    Args:
        ranks: who meets.
        numbers: how many are summed at a time, at most.
        device: where they are.
    """

    def __init__(self, ranks: Ranks, numbers: int, device: torch.device) -> None:
        self.ranks = ranks
        self._buffer = torch.zeros(1 + numbers, dtype=torch.float64, device=device)
        self._short_elsewhere = False

    def sum(self, numbers: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the sums over the ranks, float64; all ranks have to ask, each for as many numbers.

        Raises:
            ShortElsewhereError: another rank ran out of memory.
            RankLost: another rank was lost.
        """
        self._buffer.zero_()
        # The first number stays 0: it counts the ranks that came from `repeat`.
        self._buffer[1 : 1 + len(numbers)] = numbers.detach()
        self.ranks.sum([self._buffer])
        if bool(self._buffer[0]):
            self._short_elsewhere = True
            raise ShortElsewhereError("another rank ran out of memory: this one repeats the step, too")
        # A copy, because the next meeting writes into the same buffer.
        return self._buffer[1 : 1 + len(numbers)].clone()

    def finish(self) -> None:
        """End an attempt, after the last backward pass.

        Raises:
            ShortElsewhereError: another rank ran out of memory.
            RankLost: another rank was lost.
        """
        self.sum(self._buffer[:0])

    def repeat(self) -> None:
        """Make the other ranks repeat the step, unless it was one of them that made this rank repeat it.

        Raises:
            RankLost: another rank was lost.
        """
        # This rank was told in the very meeting that the failed one came for: one more would pair with an attempt.
        if self._short_elsewhere:
            self._short_elsewhere = False
            return
        self._buffer.zero_()
        self._buffer[0] = 1
        self.ranks.sum([self._buffer])
