"""`Ranks`: the processes of one training as started by torchrun, their shards and their collective operations."""

import json
import os
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fieldwatch.base import InputError
from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.run.rank_group import RankGroup

__getattr__, _ = lazy_names(__name__)  # resolves the quoted annotation at run time

Result = TypeVar("Result")
FOLDER = "ranks"
"""Subfolder of the run folder for the records of all ranks but the first."""


class RankVote(NamedTuple):
    """Actions at the end of a step: a rank's proposal, or the result that all ranks have agreed on.

    Attributes:
        signal: number of the signal that stops the training; 0 for none.
        save: whether to save a checkpoint; decided by the first rank.
        diverged: whether the run has diverged.
        growth_cap: upper limit for the size of the model, decided by the first rank; None for no limit.
    """

    signal: int = 0
    save: bool = False
    diverged: bool = False
    growth_cap: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Range of a batch that one rank processes.

    Attributes:
        first: index of the first entry.
        stop: index after the last entry.
        batch_size: number of entries in the whole batch.
    """

    first: int
    stop: int
    batch_size: int

    @property
    def weight(self) -> float:
        """Weight of a mean over the shard in the mean over the batch."""
        return (self.stop - self.first) / self.batch_size

    @property
    def padded(self) -> slice:
        """Slice to process: the shard, or the first entry of the batch (with weight 0) if the shard is empty."""
        return slice(self.first, self.stop) if self.stop > self.first else slice(0, 1)


class Ranks:
    """The processes of one training. Without torchrun there is only one.

    All ranks run the same program with the same random seeds and draw the same batches; each processes its shard of
    them. Gradients are averaged before the update, so parameters, optimizers, data order and random states are equal on
    all ranks, bit for bit, at the end of every step. The state of the first rank is therefore the state of the run,
    and only the first rank writes to the run folder; the others write a small record to ``ranks/<rank>``.

    Collective methods must be called by all ranks in the same order.

    Args:
        rank: rank of this process, from 0.
        world: number of processes.

    Attributes:
        alone: whether there is no other rank.

    Raises:
        InputError: not 0 <= rank < world.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise InputError(f"expected 0 <= rank < world, got rank {rank} of {world}; torchrun sets RANK, WORLD_SIZE")
        self.rank = rank
        self.world = world
        self.alone = world == 1
        self._group: RankGroup | None = None

    @classmethod
    def of_process(cls) -> "Ranks":
        """Return the ranks from torchrun's environment variables; a single rank if they are not set."""
        # RANK alone may be set by another launcher; torch's rendezvous needs both.
        if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
            return cls()
        return cls(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run folder."""
        return self.rank == 0

    def folder(self, run: str | Path) -> Path:
        """Return the folder that this rank writes to: the run folder, or ``ranks/<rank>`` in it."""
        return Path(run) if self.is_first else Path(run) / FOLDER / str(self.rank)

    def shard_of(self, batch_size: int) -> Shard:
        """Return this rank's shard of a batch; the sizes of shards differ by at most one entry, and may be 0."""
        # Rounded ends cover any batch size without gaps or overlaps.
        first = batch_size * self.rank // self.world
        stop = batch_size * (self.rank + 1) // self.world
        return Shard(first=first, stop=stop, batch_size=batch_size)

    def refuse_small(self, batch: int, flag: str) -> None:
        """Refuse a batch with fewer entries than ranks.

        Args:
            batch: number of entries.
            flag: flag that sets the batch size, for the message.

        Raises:
            InputError: some ranks would have an empty shard.
        """
        if batch < self.world:
            raise InputError(
                f"{flag} {batch} is too small for {self.world} processes: use {flag} {self.world} or a multiple of "
                f"it, or --nproc-per-node {max(batch, 1)}"
            )

    def join(self, folder: Path) -> None:
        """Connect to the other ranks.

        Args:
            folder: folder that this rank writes to, for messages.

        Raises:
            RuntimeError: the other ranks did not join within 10 minutes.
        """
        if self.alone:
            return
        from fieldwatch.run.rank_group import RankGroup, RankPatience  # noqa: PLC0415  at first use: with several processes

        try:
            self._group = RankGroup(self.rank, self.world, RankPatience.of_process())
        except RuntimeError as error:
            error.add_note(f"rank {self.rank} of {self.world} could not join the others; its folder is {folder}")
            raise
        # Exchange names while all ranks respond: later, messages have to name a lost one.
        self._group.names = self.all_gather(f"rank {self.rank} on host {socket.gethostname()} (pid {os.getpid()})")

    def leave(self, error: BaseException | None) -> None:
        """Leave the group, and tell the other ranks why; no collective method may be called afterwards.

        Args:
            error: exception that ended the training on this rank; None if it finished.
        """
        group = self._group
        self._group = None
        if group is not None:
            group.leave(error)

    def at_step(self, step: int) -> None:
        """Set the current step of this rank, for messages."""
        if self._group is not None:
            self._group.step = step

    def about(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entries for ``run.json``, extended by rank and number of ranks if there are several."""
        return facts if self.alone else {**facts, "rank": self.rank, "ranks": self.world}

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over the ranks, in place.

        Use it for statistics that each rank collects on its shard, such as those that control densification.

        Args:
            tensors: tensors on one device and of one dtype, with the same shapes on all ranks.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone or not tensors:
            return
        # A single tensor is reduced in place, which avoids copying a large one.
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self._all_reduce(tensors[0].detach())
            return
        # One collective for all tensors, since each costs a round trip whatever its size.
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._all_reduce(flat)
        chunks = torch.split(flat, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, chunk in zip(tensors, chunks, strict=True):
                tensor.copy_(chunk.view_as(tensor))

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """Return the maximum of each number over the ranks. Runs on the host, without synchronizing the device.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return list(numbers)
        # float64 represents step numbers and 32-bit checksums exactly.
        values = torch.tensor(numbers, dtype=torch.float64)
        self._joined().reduce(values, dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def agree(self, vote: RankVote) -> RankVote:
        """Combine the votes: a signal or divergence on any rank counts for all, the rest is decided by the first rank.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return vote
        # To let the first rank decide, the other ranks send values that never win the maximum.
        cap = -1.0 if vote.growth_cap is None or not self.is_first else vote.growth_cap
        values = (vote.signal, vote.save and self.is_first, vote.diverged, cap)
        number, save, diverged, cap = self.largest([float(value) for value in values])
        return RankVote(int(number), save > 0, diverged > 0, None if cap < 0 else cap)

    def only_first(self, work: Callable[[], Result], what: str) -> Result | None:
        """Call a function on the first rank while the others wait.

        Args:
            work: function to call; it must not call collective operations.
            what: name of the work, for messages of waiting ranks.

        Returns:
            The result of ``work``; None on the other ranks.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self._group is None:
            return work() if self.is_first else None
        with self.announced(what):
            result = work() if self.is_first else None
        # The others wait here until the first rank has done its work.
        self.largest([0.0])
        return result

    @contextmanager
    def announced(self, what: str) -> Generator[None]:
        """Extend the timeout of the others while the first rank works inside the block; no effect on other ranks."""
        group = self._group if self.is_first else None
        if group is not None:
            group.announce(what)
        try:
            yield
        finally:
            if group is not None:
                group.announce("")

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value on all ranks.

        Args:
            value: JSON value (numbers, strings, lists, None); ignored on other ranks.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        # A gather suffices, since values are small and rare.
        return self.all_gather(value if self.is_first else None)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank. Meant for small values and rare calls.

        Args:
            value: JSON value (numbers, strings, lists, None).

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return [value]
        text = json.dumps(value).encode()
        # Pad the rows to one length, so that a sum can gather them; JSON contains no NUL, which marks the padding.
        rows = torch.zeros(self.world, int(self.largest([len(text)])[0]), dtype=torch.uint8)
        rows[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        # All other ranks have zeros in this rank's row, so the sum gathers the rows.
        self._joined().reduce(rows)
        return [json.loads(row.numpy().tobytes().rstrip(b"\0")) for row in rows]

    def _all_reduce(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self._joined().reduce_on_device(tensor)
        else:
            self._joined().reduce(tensor)

    def _joined(self) -> "RankGroup":
        if self._group is None:
            raise RuntimeError(f"rank {self.rank} of {self.world} has not joined the group, or has left it")
        return self._group
