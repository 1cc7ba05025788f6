"""The processes of one training, as torchrun starts them: who this one is, its part of a batch, and how all meet."""

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
"""Folder, in the run folder, of the records of the ranks after the first."""


class RankVote(NamedTuple):
    """What is to happen at the end of a step; the same on all ranks once they have agreed.

    Attributes:
        signal: number of the signal that stops the training; 0 for none.
        save: whether a checkpoint is due; the first rank decides.
        diverged: whether updates were refused too often.
        growth_cap: the size that the model must not outgrow; None for no limit. The first rank decides.
    """

    signal: int = 0
    save: bool = False
    diverged: bool = False
    growth_cap: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one rank has of a batch.

    Attributes:
        first: its first entry.
        stop: the entry after its last one.
        batch_size: entries of the batch.
    """

    first: int
    stop: int
    batch_size: int

    @property
    def weight(self) -> float:
        """What a mean over this part counts in the mean over the batch."""
        return (self.stop - self.first) / self.batch_size

    @property
    def padded(self) -> slice:
        """What the rank works on: its part; where that is empty the batch's first entry, which then counts nothing."""
        return slice(self.first, self.stop) if self.stop > self.first else slice(0, 1)


class Ranks:
    """The processes of one training, and this one's place among them; without torchrun it is the only one.

    All run the same program with the same seeds, draw the same batches, and each works on its part of them. Gradients
    are averaged before the update: parameters, optimizers, order and random states are the same everywhere, bit for
    bit, at the end of every step. So the first rank's state is the state of the run, and it alone writes the run
    folder; the others keep a small record of their own in ``ranks/<rank>``.

    Every method that lets ranks meet has to be called by all of them, in the same order.

    Args:
        rank: of this process, from 0.
        world: how many there are.

    Raises:
        InputError: not 0 <= rank < world.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise InputError(f"expected 0 <= rank < world, got rank {rank} of {world}; torchrun sets RANK, WORLD_SIZE")
        self.rank = rank
        self.world = world
        self._group: RankGroup | None = None

    @classmethod
    def of_process(cls) -> "Ranks":
        """The ranks that this process was started as: by torchrun's variables, or it is alone."""
        if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
            return cls()
        return cls(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes: 0."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world == 1

    def folder(self, run: str | Path) -> Path:
        """Where this rank writes: the run folder, or ``ranks/<rank>`` in it."""
        return Path(run) if self.is_first else Path(run) / FOLDER / str(self.rank)

    def shard_of(self, batch_size: int) -> Shard:
        """This rank's part of a batch of so many entries: parts differ by one entry at most, and may be empty."""
        first = batch_size * self.rank // self.world
        stop = batch_size * (self.rank + 1) // self.world
        return Shard(first=first, stop=stop, batch_size=batch_size)

    def refuse_small(self, batch: int, flag: str) -> None:
        """Refuse a batch that has no part for every rank.

        Args:
            batch: its entries.
            flag: what sets it, for the message.

        Raises:
            InputError: some ranks would have nothing to do.
        """
        if batch < self.world:
            raise InputError(
                f"{flag} {batch} is shared by {self.world} processes, and some get nothing: use {flag} {self.world} or "
                f"a multiple of it, or --nproc-per-node {max(batch, 1)}"
            )

    def join(self, folder: Path) -> None:
        """Connect to the other ranks.

        Args:
            folder: where this rank writes, for messages.

        Raises:
            RuntimeError: they do not join within 10 minutes.
        """
        if self.alone:
            return
        from fieldwatch.run.rank_group import RankGroup, RankPatience  # noqa: PLC0415  at first use: with several processes

        try:
            self._group = RankGroup(self.rank, self.world, RankPatience.of_process())
        except RuntimeError as error:
            error.add_note(f"rank {self.rank} of {self.world} could not join the others; it writes {folder}")
            raise
        self._group.names = self.all_gather(f"rank {self.rank} on host {socket.gethostname()} (pid {os.getpid()})")

    def leave(self, error: BaseException | None) -> None:
        """Part from the others, and tell them why; they must not call anything that meets afterwards.

        Args:
            error: what ended the training here; None if it finished.
        """
        group = self._group
        self._group = None
        if group is not None:
            group.leave(error)

    def at_step(self, step: int) -> None:
        """Say which step this rank is in, for messages."""
        if self._group is not None:
            self._group.step = step

    def about(self, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add to what a run says about itself which rank this is."""
        return facts if self.alone else {**facts, "rank": self.rank, "ranks": self.world}

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over the ranks, in place; of the same shapes everywhere, all on one device and of one type.

        For statistics that every rank collects of its part, such as those that growth is decided by.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone or not tensors:
            return
        if len(tensors) == 1 and tensors[0].is_contiguous():  # a large one needs no room for a copy
            self._all_reduce(tensors[0].detach())
            return
        # One collective for all: each costs a round trip, whatever its size.
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._all_reduce(flat)
        chunks = torch.split(flat, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, chunk in zip(tensors, chunks, strict=True):
                tensor.copy_(chunk.view_as(tensor))

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """Return the largest of each number over the ranks. They meet on the host: the device is not waited for.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        self._joined().reduce(values, dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def agree(self, vote: RankVote) -> RankVote:
        """Combine the votes: a signal or a divergence of any rank counts for all, the rest is the first rank's.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return vote
        # The maximum over ranks picks the first rank's numbers where the others send what never wins.
        cap = -1.0 if vote.growth_cap is None or not self.is_first else vote.growth_cap
        wishes = (vote.signal, vote.save and self.is_first, vote.diverged, cap)
        number, save, diverged, cap = self.largest([float(wish) for wish in wishes])
        return RankVote(int(number), save > 0, diverged > 0, None if cap < 0 else cap)

    def only_first(self, work: Callable[[], Result], what: str) -> Result | None:
        """Let the first rank do something while the others wait.

        Args:
            work: what it does; it must not let ranks meet.
            what: what that is, for the message should it never end.

        Returns:
            What came of it; None on the other ranks.

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
        """Let the others wait longer than usual for the first rank, which works inside; for other ranks, do nothing."""
        group = self._group if self.is_first else None
        if group is not None:
            group.announce(what)
        try:
            yield
        finally:
            if group is not None:
                group.announce("")

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value (numbers, texts, lists, None) on all ranks.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        return self.all_gather(value if self.is_first else None)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value (numbers, texts, lists, None), by rank; for what is small and rare.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return [value]
        text = json.dumps(value).encode()
        # Rows of one length, so that a sum can gather them; JSON has no NUL, which marks the padding.
        rows = torch.zeros(self.world, int(self.largest([len(text)])[0]), dtype=torch.uint8)
        rows[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._joined().reduce(rows)  # every other rank has zeros in this row
        return [json.loads(row.numpy().tobytes().rstrip(b"\0")) for row in rows]

    def _all_reduce(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self._joined().reduce_on_device(tensor)
        else:
            self._joined().reduce(tensor)

    def _joined(self) -> "RankGroup":
        if self._group is None:
            raise RuntimeError(f"rank {self.rank} of {self.world} has not joined the others, or has left them")
        return self._group
