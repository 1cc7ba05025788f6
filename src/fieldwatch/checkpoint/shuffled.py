"""Where a run stands in its data: shuffled epochs that go on exactly where they stopped."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fieldwatch.checkpoint.data_orders import note_used
from fieldwatch.checkpoint.incident import StoredStateError


class Shuffled(Iterator[Tensor]):
    """Batches of indices for ever: every epoch a new permutation, from a generator of its own.

    The state is complete (permutation, cursor, epoch, generator), so a resumed run draws the very batches that the
    uninterrupted one would have drawn. A ``DataLoader`` with workers draws ahead of the loop: its sampler's state is
    that of the last batch asked for, not of the last one trained on.

    Args:
        length: number of samples.
        batch: indices per batch.
        seed: of its generator.
        drop_last: leave out the smaller batch at the end of an epoch.

    Raises:
        ValueError: no whole batch could be drawn.
    """

    def __init__(self, length: int, batch: int, seed: int = 0, *, drop_last: bool = False) -> None:
        if length < 1 or batch < 1:
            raise ValueError(f"Shuffled(length={length}, batch={batch}): both must be 1 or more")
        if drop_last and batch > length:
            raise ValueError(
                f"Shuffled(length={length}, batch={batch}, drop_last=True) never has a whole batch: lower batch"
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
        """The 0-based epoch that the last batch came from."""
        return self._epoch

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one epoch."""
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def __next__(self) -> Int64[Tensor, " batch"]:
        note_used(self)
        left = self.length - self._cursor
        if left < (self.batch if self.drop_last else 1):
            self._epoch += 1
            self._cursor = 0
            self._order = self._permute()
        start = self._cursor
        self._cursor = min(start + self.batch, self.length)
        # A copy: the caller may change its batch in place.
        return self._order[start : self._cursor].clone()

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next batches depend on."""
        return {
            "shape": (self.length, self.batch, self.drop_last),
            "order": self._order,
            "cursor": self._cursor,
            "epoch": self._epoch,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on where the state was taken.

        Raises:
            CheckpointError: it was taken with another length, batch or drop_last.
        """
        current = (self.length, self.batch, self.drop_last)
        if state_dict["shape"] != current:
            raise StoredStateError(
                f"Shuffled(length, batch, drop_last) is {current}, the stored position was taken with "
                f"{state_dict['shape']}: use the same data and batch size, or start the position anew"
            )
        self._order = state_dict["order"].clone()
        self._cursor = state_dict["cursor"]
        self._epoch = state_dict["epoch"]
        self._generator.set_state(state_dict["generator"])

    def _permute(self) -> Int64[Tensor, " length"]:
        return torch.randperm(self.length, generator=self._generator)
