"""Shuffled batches of indices whose position can be saved and restored exactly."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fieldwatch.checkpoint.data_orders import note_used
from fieldwatch.checkpoint.incident import StoredStateError


class Shuffled(Iterator[Tensor]):
    """Endless iterator over batches of indices, with a new permutation in every epoch.

    The state is complete (permutation, cursor, epoch, generator), so a resumed run draws the same batches as an
    uninterrupted one. This would not hold for a ``DataLoader`` with workers, which prefetch: the state of its sampler
    is that of the last batch requested, not of the last one trained on.

    Args:
        length: number of samples.
        batch: number of indices per batch.
        seed: seed of the generator.
        drop_last: whether to drop the smaller batch at the end of an epoch.

    Raises:
        ValueError: if there is no complete batch.
    """

    def __init__(self, length: int, batch: int, seed: int = 0, *, drop_last: bool = False) -> None:
        if length < 1 or batch < 1:
            raise ValueError(f"Shuffled(length={length}, batch={batch}): both must be 1 or more")
        if drop_last and batch > length:
            raise ValueError(
                f"Shuffled(length={length}, batch={batch}, drop_last=True) has no complete batch: lower batch"
            )
        self.length = length
        self.batch = batch
        self.drop_last = drop_last
        self._generator = torch.Generator().manual_seed(seed)
        self._epoch = 0
        self._cursor = 0
        self._order = self._permute()

    @property
    def epoch(self) -> int:
        """0-based epoch of the last batch."""
        return self._epoch

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches per epoch."""
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def __next__(self) -> Int64[Tensor, " batch"]:
        note_used(self)
        # The next epoch starts when it is needed, so `epoch` is that of the last batch.
        left = self.length - self._cursor
        if left < (self.batch if self.drop_last else 1):
            self._epoch += 1
            self._cursor = 0
            self._order = self._permute()
        start = self._cursor
        self._cursor = min(start + self.batch, self.length)
        # A copy, because the caller may change its batch in place.
        return self._order[start : self._cursor].clone()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state that the next batches depend on."""
        return {
            "shape": (self.length, self.batch, self.drop_last),
            "order": self._order,
            "cursor": self._cursor,
            "epoch": self._epoch,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from a stored state.

        Raises:
            CheckpointError: if it was stored with another length, batch or drop_last.
        """
        current = (self.length, self.batch, self.drop_last)
        if state_dict["shape"] != current:
            raise StoredStateError(
                f"Shuffled(length, batch, drop_last) is {current}, but the position was stored with "
                f"{state_dict['shape']}: use the same data and batch size, or start a new run"
            )
        self._order = state_dict["order"].clone()
        self._cursor = state_dict["cursor"]
        self._epoch = state_dict["epoch"]
        self._generator.set_state(state_dict["generator"])

    def _permute(self) -> Int64[Tensor, " length"]:
        return torch.randperm(self.length, generator=self._generator)
