"""The process group of one training: host collectives with a time limit, and who is missing when one of them fails.

Everything that travels goes through ``torch.distributed``. torchrun's agent notices a worker that dies; gloo notices a
connection that closes; a time limit notices a rank that hangs; ``monitored_barrier`` then says which one it is.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor

from fieldwatch.base import InputError
from fieldwatch.run.ending import Interrupted

# torch states the types of these in part only: arguments are missing, results are unions, and some are not exported.
_all_reduce = cast("Callable[..., dist.Work]", dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
_new_group = cast("Callable[..., dist.ProcessGroup]", dist.new_group)  # pyright: ignore[reportUnknownMemberType]  arguments
_monitored_barrier = cast("Callable[..., None]", dist.monitored_barrier)  # pyright: ignore[reportUnknownMemberType]
_rendezvous = cast("Callable[[str], Iterator[Any]]", dist.rendezvous)  # pyright: ignore[reportPrivateImportUsage, reportUnknownMemberType]
_PrefixStore = dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]  documented, not exported

EXIT_LOST_RANK = 3
"""Exit code of a process that lost another one."""
PATIENCE_VARIABLE = "FIELDWATCH_RANK_PATIENCE"
"""Environment variable: seconds to wait for a rank that does not answer."""
POLL_INTERVAL = timedelta(seconds=1)
"""How long a rank waits in native code before it checks for news from the others, and for signals."""
STARTUP_COLLECTIVES = 16
"""Collectives after which a training has found its pace: compilation and first allocations are over."""
ANSWER_SECONDS = 3.0
"""Seconds in which a rank that waits for a hanging one must answer: it polls every second."""


class RankLost(RuntimeError):  # noqa: N818  it says what happened to the training
    """Another process of the training died, hangs or failed: this one cannot go on without it.

    Attributes:
        rank: the process that was lost, the first one if several were; -1 if unknown.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True, kw_only=True)
class RankPatience:
    """How long a rank waits for the others in one collective, in seconds.

    Attributes:
        steady: once the training has found its pace.
        startup: in the first collectives, while kernels are compiled and data is loaded.
        busy: while the first rank does work that it announced, such as an evaluation.
    """

    steady: float = 20.0
    startup: float = 600.0
    busy: float = 3600.0

    @classmethod
    def of_process(cls) -> "RankPatience":
        """Read the environment variable, or return the default.

        Raises:
            InputError: it is not a positive number.
        """
        value = os.environ.get(PATIENCE_VARIABLE)
        if value is None:
            return cls()
        # Digits and at most one point: no sign, no exponent, no "inf".
        seconds = float(value) if value.replace(".", "", 1).isdigit() else 0.0
        if seconds <= 0:
            raise InputError(f"{PATIENCE_VARIABLE}: expected a number of seconds above 0 (default 20), got {value!r}")
        return cls(steady=seconds)


class RankGroup:
    """Gloo connections between the hosts of all ranks, closed again when the run ends.

    Four keys in the group's store carry what a broken connection cannot: ``failure`` (the first one that any rank
    noticed), ``busy`` (what the first rank does alone), ``left/<rank>`` (how a rank ended) and ``missing`` (who does
    not answer).

    Args:
        rank: of this process.
        world: number of processes.
        patience: time limits of collectives.

    Attributes:
        names: rank, host and pid of each process, for messages; set once all have joined.
        step: this rank's step, for messages.

    Raises:
        RuntimeError: the other ranks do not join within 10 minutes.
    """

    def __init__(self, rank: int, world: int, patience: RankPatience) -> None:
        self.names: list[str] = []
        self.step = 0
        self._rank = rank
        self._patience = patience
        self._collectives = 0
        self._lost = False
        self._owns_default = not dist.is_initialized()
        if self._owns_default:
            _open_default()
        # The group's own limit comes last: `wait` measures a shorter one, which work on the first rank extends.
        longest = timedelta(seconds=patience.startup + patience.busy)
        self._hosts = _new_group(backend="gloo", timeout=longest)
        self._store = self._hosts.get_group_store()
        if rank == 0:
            self._store.set("failure", "")
            self._store.set("busy", "")
        # In one monitored barrier of all, torch names no rank whose connection is known to be closed. A barrier of two
        # needs no name: who fails it is missing.
        pairs = {other: _new_group([0, other], backend="gloo") for other in range(1, world)}
        self._pairs = pairs if rank == 0 else {0: pairs[rank]}

    def reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        """Reduce a tensor in host memory over all ranks, in place, and wait for them.

        Raises:
            RankLost: another rank died, hangs or failed.
            Interrupted: another rank was stopped by a signal.
        """
        self._wait(_all_reduce(tensor, operation, group=self._hosts, async_op=True))

    def reduce_on_device(self, tensor: Tensor) -> None:
        """Queue the sum of a CUDA tensor over all ranks on its device, in place; the host does not wait."""
        _all_reduce(tensor)

    def announce(self, work: str) -> None:
        """Tell the others that the first rank works alone; empty when it is done.

        Raises:
            RankLost: nobody serves the store any more.
        """
        try:
            self._store.set("busy", work)
        except RuntimeError as store_error:
            self._fail(self._store_gone(store_error), store_error)

    def leave(self, error: BaseException | None) -> None:
        """Tell the others how this rank ends, and close the connections.

        Args:
            error: what ended the training here; None if it finished.
        """
        if self._lost:
            return
        try:
            self._store.set(f"left/{self._rank}", _describe_ending(error))
            if error is not None:
                self._store.compare_set("failure", "", f"left {self._rank}")
        except RuntimeError as store_error:  # torchrun ended, which does not undo what this rank has trained
            sys.stderr.write(f"fieldwatch: the other ranks cannot be told how rank {self._rank} ended: {store_error}\n")
        # Closed connections end the others' collectives at once. After an error the key above ends them: closing would
        # wait for a rank that hangs.
        if error is None or isinstance(error, SystemExit):
            for group in (*self._pairs.values(), self._hosts):
                dist.destroy_process_group(group)
            if self._owns_default:
                atexit.register(_close_default)

    def _wait(self, work: dist.Work) -> None:
        self._collectives += 1
        limit = self._patience.steady if self._collectives > STARTUP_COLLECTIVES else self._patience.startup
        began = time.monotonic()
        last_busy = began
        while True:
            try:
                work.wait(POLL_INTERVAL)
            except RuntimeError as error:
                if "timed out" not in str(error):
                    self._give_up("died", error)
            else:
                return
            if work.is_completed():  # just now: the next call returns, or raises the reason
                continue
            failure, busy = self._read_news()
            now = time.monotonic()
            if busy and now - began < self._patience.busy:
                # The limit counts from when the first rank was last known to work alone.
                last_busy = now
            if failure or now - last_busy > limit:
                self._give_up("hangs")

    def _read_news(self) -> tuple[bytes, bytes]:
        try:
            failure, busy = self._store.multi_get(["failure", "busy"])
        except RuntimeError as store_error:
            self._fail(self._store_gone(store_error), store_error)
        return failure, busy

    def _give_up(self, how: str, error: RuntimeError | None = None) -> NoReturn:
        """End the training here: a rank "died" (its connection closed), or it "hangs" (the time limit passed)."""
        try:
            reason = self._reason(how, error)
        except RuntimeError as store_error:
            reason = self._store_gone(store_error)
        self._fail(reason, error)

    def _fail(self, reason: RankLost | Interrupted, cause: RuntimeError | None) -> NoReturn:
        if isinstance(reason, RankLost) and not self._lost:
            self._lost = True
            # Only at exit: the exception still has to leave its crash folder.
            atexit.register(_exit_without_closing)
        raise reason from cause

    def _store_gone(self, error: RuntimeError) -> RankLost:
        text = f"the store of the ranks is gone at step {self.step}: torchrun ended, or the process that served it"
        return RankLost(f"{text} ({error})")

    def _reason(self, how: str, error: RuntimeError | None) -> RankLost | Interrupted:
        """Find out which ranks are missing and why, together with the ranks that are left."""
        # The first rank that notices something sets the key; all others look into the same failure.
        noticed = self._store.compare_set("failure", "", how).decode()
        kind, _, left = noticed.partition(" ")
        missing = [int(left)] if left else self._missing(kind)
        endings = [self._ending(rank) for rank in missing]
        for ending in endings:
            if ending.startswith("interrupted"):
                return Interrupted(int(ending.split()[1]))
        if not missing:
            return RankLost(f"a collective failed at step {self.step}, and all ranks answer: {error}")
        why = "its connection closed" if kind == "died" else "it is stopped or stuck, or its machine is out of reach"
        messages = [
            f"{self.names[rank]} {ending or kind} at step {self.step}" + ("" if ending else f": {why}")
            for rank, ending in zip(missing, endings, strict=True)
        ]
        return RankLost("; ".join(messages), missing[0])

    def _missing(self, how: str) -> list[int]:
        """Return the ranks that do not answer; the first rank asks, and tells all others."""
        # A rank that hangs has kept all others waiting: they answer at once. When a rank dies, others may be in the
        # middle of a step.
        limit = ANSWER_SECONDS if how == "hangs" else self._patience.steady
        if self._rank != 0:
            limit += ANSWER_SECONDS  # for the first rank to end first
            return self._missing_by_first_rank(limit)
        missing = self._unresponsive(limit)
        self._store.set("missing", json.dumps(missing))
        return missing

    def _unresponsive(self, limit: float) -> list[int]:
        """Return the connected ranks that do not come to a barrier within some seconds."""
        answered: set[int] = set()

        def meet(rank: int) -> None:
            with suppress(RuntimeError):  # the connection closed, or the time limit passed: no answer
                _monitored_barrier(group=self._pairs[rank], timeout=timedelta(seconds=limit))
                answered.add(rank)

        # Threads, because torch enforces the time limit on the first rank of a barrier only.
        threads = [threading.Thread(target=meet, args=(rank,), daemon=True) for rank in self._pairs]
        for thread in threads:
            thread.start()
        until = time.monotonic() + limit
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return [rank for rank in self._pairs if rank not in answered]

    def _missing_by_first_rank(self, limit: float) -> list[int]:
        """Return the ranks that the first one misses; the first one if it does not answer itself."""
        silent = self._unresponsive(limit)
        try:
            if silent and not self._store.check(["missing"]):
                return silent
            self._store.wait(["missing"], timedelta(seconds=limit))
        except dist.DistStoreError:  # the first rank was lost in between
            return [0]
        return [rank for rank in json.loads(self._store.get("missing")) if rank != self._rank]

    def _ending(self, rank: int) -> str:
        key = f"left/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _describe_ending(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    # 130 is the exit code of a process that SIGINT ended.
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"interrupted {getattr(error, 'code', None) or 130}"
    lines = str(error).splitlines()
    return f"failed with {type(error).__name__} ({lines[0] if lines else 'no message'})"


def _open_default() -> None:
    store, rank, world = next(_rendezvous("env://"))
    # torchrun serves one store for all attempts: after a restart it still holds the addresses of the processes before.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=_PrefixStore(f"fieldwatch/{attempt}", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=10),  # NCCL's watchdog ends a process whose device waits that long for a lost rank
    )


def _close_default() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _exit_without_closing() -> None:
    """End the process: gloo's destructors wait for a rank that is stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_LOST_RANK)
