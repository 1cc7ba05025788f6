"""Sums over ranks in the middle of a step, any of which may be retried because a rank ran out of memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import Ranks


class ShortElsewhereError(MemoryError):
    """Another rank ran out of memory, so this rank has to retry the step in as many micro-batches as that one."""


class RankExchange:
    """Sums numbers over the ranks between the forward and the backward pass of a step.

    A rank that runs out of memory would be missing from the next all-reduce and the other ranks would wait forever. So
    it joins once more, in `repeat`, to report the failure: the other ranks then abort their attempt, and all ranks
    retry with twice as many micro-batches. Therefore every all-reduce has the same shape, and `finish`, the end of an
    attempt, is one as well.

    Args:
        ranks: ranks to sum over.
        numbers: maximum number of values per sum.
        device: device of the values.
    """

    def __init__(self, ranks: Ranks, numbers: int, device: torch.device) -> None:
        self.ranks = ranks
        # Float64, so that sums of counts are exact.
        self._buffer = torch.zeros(1 + numbers, dtype=torch.float64, device=device)
        self._short_elsewhere = False

    def sum(self, numbers: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the sums over the ranks, float64. All ranks must call this with equally many numbers.

        Raises:
            ShortElsewhereError: another rank ran out of memory.
            RankLost: another rank was lost.
        """
        self._buffer.zero_()
        # The first entry counts the ranks that joined from `repeat`; here it stays 0.
        self._buffer[1 : 1 + len(numbers)] = numbers.detach()
        self.ranks.sum([self._buffer])
        if bool(self._buffer[0]):
            self._short_elsewhere = True
            raise ShortElsewhereError("another rank ran out of memory: this rank retries the step, too")
        # A copy, because the next all-reduce overwrites the buffer.
        return self._buffer[1 : 1 + len(numbers)].clone()

    def finish(self) -> None:
        """End an attempt, after the last backward pass.

        Raises:
            ShortElsewhereError: another rank ran out of memory.
            RankLost: another rank was lost.
        """
        self.sum(self._buffer[:0])

    def repeat(self) -> None:
        """Make the other ranks retry the step, unless this rank retries because of one of them.

        Raises:
            RankLost: another rank was lost.
        """
        # This rank already shared the failing rank's all-reduce; another one would pair with the next attempt.
        if self._short_elsewhere:
            self._short_elsewhere = False
            return
        self._buffer.zero_()
        self._buffer[0] = 1
        self.ranks.sum([self._buffer])
