"""The processes of one training, as torchrun starts them: who this one is, its part of a batch, and how all meet."""

import atexit
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from fieldwatch.run.rank_watch import RankLost, RankPatience, RankWatch

Result = TypeVar("Result")
dist: Any = torch.distributed
"""Torch states few of its types."""

FAILED = 3
"""Exit code of a process that lost another one."""
FOLDER = "ranks"
"""Folder, in the run folder, of the records of the ranks after the first."""
SLICE = timedelta(seconds=1)
"""How long a meeting waits before it looks whether the others still live."""
SECOND_LINE = timedelta(minutes=10)
"""When torch itself gives a meeting up, should the watch have failed."""


class Will(NamedTuple):
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
class Share:
    """What one rank has of a batch.

    Attributes:
        first: its first entry.
        last: the entry after its last one.
        whole: entries of the batch.
    """

    first: int
    last: int
    whole: int

    @property
    def weight(self) -> float:
        """What a mean over this part counts in the mean over the batch."""
        return (self.last - self.first) / self.whole

    @property
    def drawn(self) -> slice:
        """What the rank works on: its part; where that is empty the batch's first entry, which then counts nothing."""
        return slice(self.first, self.last) if self.last > self.first else slice(0, 1)


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
        ValueError: not 0 <= rank < world.
    """

    _joined: ClassVar[int] = 0  # meetings of this process so far: each has keys of its own in the store
    _store: ClassVar[Any] = None  # the connection that torchrun's variables name; it can be made once

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}: wanted 0 <= rank < world; torchrun sets RANK and WORLD_SIZE")
        self.rank, self.world = rank, world
        self._watch: RankWatch | None = None
        self._board: Any = None
        self._own_group, self._hosts = False, None
        self._meeting, self._step = 0, 0
        self._folder = Path()

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

    def share(self, whole: int) -> Share:
        """This rank's part of a batch of so many entries: parts differ by one entry at most, and may be empty."""
        return Share(first=whole * self.rank // self.world, last=whole * (self.rank + 1) // self.world, whole=whole)

    def refuse_small(self, batch: int, flag: str) -> None:
        """Refuse a batch that has no part for every rank.

        Args:
            batch: its entries.
            flag: what sets it, for the message.

        Raises:
            ValueError: some ranks would have nothing to do.
        """
        if batch < self.world:
            raise ValueError(
                f"{flag} {batch} is shared by {self.world} processes, and some get nothing: use {flag} {self.world} or "
                f"a multiple of it, or --nproc-per-node {max(batch, 1)}"
            )

    def join(self, folder: Path) -> None:
        """Meet the others for the first time.

        Args:
            folder: where this rank writes, should it have to be ended from outside.

        Raises:
            RuntimeError: they do not come within 10 minutes.
        """
        if self.alone:
            return
        self._folder = folder
        if Ranks._store is None:
            Ranks._store = next(dist.rendezvous("env://"))[0]
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._board = dist.PrefixStore(f"fieldwatch/{attempt}/{Ranks._joined}", Ranks._store.clone())
        Ranks._joined += 1
        self._own_group = not dist.is_initialized()
        if self._own_group:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                store=dist.PrefixStore("group", self._board.clone()),
                rank=self.rank,
                world_size=self.world,
                timeout=SECOND_LINE,
            )
        else:  # somebody else's group may know no other place than the device
            self._hosts = dist.new_group(backend="gloo", timeout=SECOND_LINE)
        self._watch = RankWatch(
            self._board.clone(), self.rank, self.world, patience=RankPatience.of_process(), end_now=self._end_now
        )
        self.largest([0.0])  # every rank has shown itself
        self._watch.start()

    def leave(self, error: BaseException | None) -> None:
        """Part from the others, and tell them why.

        Args:
            error: what ended the training here; None if it is finished.
        """
        watch, self._watch = self._watch, None
        if watch is None:
            return
        watch.leave(_how(error))
        if isinstance(watch.lost, RankLost):  # torch would wait for the lost one, at the end of the process too
            atexit.register(_end)
        elif self._own_group and watch.lost is None and (error is None or isinstance(error, SystemExit)):
            dist.destroy_process_group()

    def at_step(self, step: int) -> None:
        """Say which step this rank is in, for the others' messages."""
        self._step = step

    def about(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add to what a run says about itself which rank this is."""
        return own if self.alone else {**own, "rank": self.rank, "ranks": self.world}

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over the ranks, in place; of the same shapes everywhere, all on one device and of one type.

        For statistics that every rank collects of its part, such as those that growth is decided by.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone or not tensors:
            return
        flat = tensors[0].reshape(-1) if len(tensors) == 1 else torch.cat([one.reshape(-1) for one in tensors])
        flat = flat.contiguous()
        self._meet(dist.all_reduce(flat, async_op=True), on_device=flat.is_cuda)
        parts = torch.split(flat, [one.numel() for one in tensors])
        with torch.no_grad():
            for one, part in zip(tensors, parts, strict=True):
                if one.data_ptr() != part.data_ptr():
                    one.copy_(part.view_as(one))

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """Return the largest of each number over the ranks. They meet on the host: the device is not waited for.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        self._meet(dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._hosts, async_op=True))
        return [float(value) for value in values]

    def agree(self, will: Will) -> Will:
        """Make one will of all: a signal or a divergence of any rank counts for all, the rest is the first one's.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return will
        cap = -1.0 if will.growth_cap is None or not self.is_first else will.growth_cap
        wishes = (will.signal, will.save and self.is_first, will.diverged, cap)
        number, save, diverged, cap = self.largest([float(wish) for wish in wishes])
        return Will(int(number), save > 0, diverged > 0, None if cap < 0 else cap)

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
        if self._watch is None:
            return work() if self.is_first else None
        if not self.is_first:
            self.told(None)
            return None
        with self.announced(what):
            result = work()
        self.told(None)
        return result

    @contextmanager
    def announced(self, what: str) -> Generator[None]:
        """Say that this rank does something inside for which the others are to wait longer than usual."""
        if self._watch is not None:
            self._watch.at(self._meeting, self._step, what)
        yield
        if self._watch is not None:
            self._watch.at(self._meeting, self._step)

    def told(self, value: Any) -> Any:
        """Tell the first rank's value (numbers, texts, lists, None) to all, and return it.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return value
        key = f"told/{self._next()}"
        if self.is_first:
            self._board.set(key, json.dumps(value))
            return value
        return json.loads(self._wait_for(key))

    def gathered(self, value: Any) -> list[Any]:
        """Return every rank's value (numbers, texts, lists, None), by rank; for what is small and rare.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.alone:
            return [value]
        key = f"gathered/{self._next()}"
        self._board.set(f"{key}/{self.rank}", json.dumps(value))
        found = [json.loads(self._wait_for(f"{key}/{rank}")) for rank in range(self.world)]
        self.largest([0.0])  # all have read it
        self._board.delete_key(f"{key}/{self.rank}")
        return found

    def _next(self) -> int:
        self._meeting += 1
        if self._watch is not None:
            self._watch.at(self._meeting, self._step)
            self._watch.check()
        return self._meeting

    def _meet(self, work: Any, *, on_device: bool = False) -> None:
        """Wait until a collective is done; where the device does it, until it is queued."""
        self._next()
        if on_device:
            work.wait()  # a time limit would make the host wait for the device
            return
        while True:
            try:
                if work.wait(SLICE):
                    return
            except RuntimeError as error:
                if self._watch is None:
                    raise
                self._watch.check()
                if work.is_completed() or "Operation timed out" not in str(error):
                    self._watch.explain(error)

    def _wait_for(self, key: str) -> bytes:
        pause = 1e-3
        while not self._board.check([key]):
            if self._watch is not None:
                self._watch.check()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return self._board.get(key)

    def _end_now(self, lost: BaseException) -> None:
        """End this process although its training thread waits inside of native code; from the watching thread."""
        place = self._folder / "crash" / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        place.mkdir(parents=True)
        report = {"error": f"{type(lost).__name__}: {lost}", "step": self._step, "rank": self.rank}
        report["resume"] = "start the same torchrun command again: it continues from the last checkpoint"
        (place / "crash.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
        with (place / "stacks.txt").open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        sys.stderr.write(f"{type(lost).__name__}: {lost}\nwhat was recorded up to here: {place}\n")
        sys.stderr.flush()
        os._exit(FAILED)


def _how(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"interrupted {getattr(error, 'code', None) or 128 + signal.SIGINT}"
    text = str(error).splitlines()
    return f"failed {type(error).__name__}: {text[0] if text else 'no message'}"


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)
