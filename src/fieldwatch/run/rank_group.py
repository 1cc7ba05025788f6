"""Process group of one training: host collectives with a timeout, and diagnosis of the ranks that fail.

All communication uses ``torch.distributed``. torchrun's agent detects a worker that dies, gloo a connection that
closes, and the timeout a rank that hangs; ``monitored_barrier`` then identifies the rank.
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

# torch types these only partially: arguments are missing, results are unions, and some names are not exported.
_all_reduce = cast("Callable[..., dist.Work]", dist.all_reduce)  # pyright: ignore[reportUnknownMemberType]
_new_group = cast("Callable[..., dist.ProcessGroup]", dist.new_group)  # pyright: ignore[reportUnknownMemberType]  arguments
_monitored_barrier = cast("Callable[..., None]", dist.monitored_barrier)  # pyright: ignore[reportUnknownMemberType]
_rendezvous = cast("Callable[[str], Iterator[Any]]", dist.rendezvous)  # pyright: ignore[reportPrivateImportUsage, reportUnknownMemberType]
_PrefixStore = dist.PrefixStore  # pyright: ignore[reportPrivateImportUsage]  documented, not exported

EXIT_LOST_RANK = 3
"""Exit code of a process that lost another rank."""
PATIENCE_VARIABLE = "FIELDWATCH_RANK_PATIENCE"
"""Environment variable with the seconds to wait for an unresponsive rank."""
POLL_INTERVAL = timedelta(seconds=1)
"""Time that a rank waits in native code before it checks for signals and for failures of other ranks."""
STARTUP_COLLECTIVES = 16
"""Number of collectives with the longer startup timeout, during compilation and first allocations."""
ANSWER_SECONDS = 3.0
"""Seconds in which a rank must answer while it waits for a hanging one; it polls every second."""


class RankLost(RuntimeError):  # noqa: N818  named after the event
    """Raised if another rank died, hangs or failed, so that this one cannot continue.

    Attributes:
        rank: lost rank, the lowest if there are several; -1 if unknown.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True, kw_only=True)
class RankPatience:
    """Timeouts in seconds for one collective.

    Attributes:
        steady: timeout after the startup.
        startup: timeout of the first collectives, while kernels are compiled and data is loaded.
        busy: timeout while the first rank does announced work, such as an evaluation.
    """

    steady: float = 20.0
    startup: float = 600.0
    busy: float = 3600.0

    @classmethod
    def of_process(cls) -> "RankPatience":
        """Return the timeouts of this process, with ``steady`` from the environment variable if it is set.

        Raises:
            InputError: the variable is not a positive number.
        """
        value = os.environ.get(PATIENCE_VARIABLE)
        if value is None:
            return cls()
        # Digits and at most one point: no sign, no exponent, no "inf".
        seconds = float(value) if value.replace(".", "", 1).isdigit() else 0.0
        if seconds <= 0:
            raise InputError(
                f"{PATIENCE_VARIABLE}: expected a number of seconds greater than 0 (default 20), got {value!r}"
            )
        return cls(steady=seconds)


class RankGroup:
    """Gloo connections between all ranks, closed when the run ends.

    Four keys in the group's store hold information that must survive a broken connection: ``failure`` (the first
    failure noticed by any rank), ``busy`` (work that the first rank does alone), ``left/<rank>`` (how a rank ended)
    and ``missing`` (unresponsive ranks).

    Args:
        rank: rank of this process.
        world: number of processes.
        patience: timeouts of collectives.

    Attributes:
        names: rank, host and pid of each process, for messages; set once all have joined.
        step: current step of this rank, for messages.

    Raises:
        RuntimeError: the other ranks did not join within 10 minutes.
    """

    def __init__(self, rank: int, world: int, patience: RankPatience) -> None:
        self.names: list[str] = []
        self.step = 0
        self._rank = rank
        self._patience = patience
        self._collectives = 0
        self._lost = False
        # A loop may have initialized torch.distributed itself, and then closes it itself.
        self._owns_default = not dist.is_initialized()
        if self._owns_default:
            _open_default()
        # gloo's timeout is only the last resort: `_wait` uses a shorter one, extended while the first rank is busy.
        longest = timedelta(seconds=patience.startup + patience.busy)
        self._hosts = _new_group(backend="gloo", timeout=longest)
        self._store = self._hosts.get_group_store()
        if rank == 0:
            self._store.set("failure", "")
            self._store.set("busy", "")
        # A monitored barrier of all ranks does not name a rank whose connection is known to be closed. So use one
        # barrier per pair of ranks: if it fails, the other rank is missing.
        pairs = {other: _new_group([0, other], backend="gloo") for other in range(1, world)}
        self._pairs = pairs if rank == 0 else {0: pairs[rank]}

    def reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        """All-reduce a tensor in host memory, in place, and wait for the result.

        Args:
            tensor: CPU tensor of the same shape on all ranks.
            operation: reduction.

        Raises:
            RankLost: another rank died, hangs or failed.
            Interrupted: another rank was stopped by a signal.
        """
        self._wait(_all_reduce(tensor, operation, group=self._hosts, async_op=True))

    def reduce_on_device(self, tensor: Tensor) -> None:
        """Queue an all-reduce (sum) of a CUDA tensor on its device, in place; the host does not wait."""
        _all_reduce(tensor)

    def announce(self, work: str) -> None:
        """Announce to the other ranks that the first rank works alone.

        Args:
            work: name of the work; empty once it is done.

        Raises:
            RankLost: the store is unreachable.
        """
        try:
            self._store.set("busy", work)
        except RuntimeError as store_error:
            self._fail(self._store_gone(store_error), store_error)

    def leave(self, error: BaseException | None) -> None:
        """Tell the other ranks how this one ended, and close the connections.

        Args:
            error: exception that ended the training on this rank; None if it finished.
        """
        if self._lost:
            return
        try:
            self._store.set(f"left/{self._rank}", _describe_ending(error))
            if error is not None:
                # Keep the first failure: later ones are its consequences.
                self._store.compare_set("failure", "", f"left {self._rank}")
        except RuntimeError as store_error:  # torchrun has ended: no reason to lose this rank's training
            sys.stderr.write(
                f"fieldwatch: rank {self._rank} could not tell the other ranks how it ended: {store_error}\n"
            )
        # Closing a connection ends the others' collectives at once. After an error the key above ends them instead,
        # since closing would wait for a hanging rank.
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
                    self._fail_collective("died", error)
            else:
                return
            if work.is_completed():  # completed just now: the next call to `wait` returns, or raises its error
                continue
            failure, busy = self._read_announcements()
            now = time.monotonic()
            if busy and now - began < self._patience.busy:
                # The timeout starts when the first rank was last known to be busy.
                last_busy = now
            if failure or now - last_busy > limit:
                self._fail_collective("hangs")

    def _read_announcements(self) -> tuple[bytes, bytes]:
        try:
            failure, busy = self._store.multi_get(["failure", "busy"])
        except RuntimeError as store_error:
            self._fail(self._store_gone(store_error), store_error)
        return failure, busy

    def _fail_collective(self, how: str, error: RuntimeError | None = None) -> NoReturn:
        """Raise the error for a rank that "died" (its connection closed) or "hangs" (the timeout expired)."""
        try:
            reason = self._reason(how, error)
        except RuntimeError as store_error:
            reason = self._store_gone(store_error)
        self._fail(reason, error)

    def _fail(self, reason: RankLost | Interrupted, cause: RuntimeError | None) -> NoReturn:
        if isinstance(reason, RankLost) and not self._lost:
            self._lost = True
            # Exit hard only at the end of the process, so that the exception can still write its crash folder.
            atexit.register(_exit_without_closing)
        raise reason from cause

    def _store_gone(self, error: RuntimeError) -> RankLost:
        text = f"the ranks' store is unreachable at step {self.step}: torchrun or the process serving it has ended"
        return RankLost(f"{text} ({error})")

    def _reason(self, how: str, error: RuntimeError | None) -> RankLost | Interrupted:
        """Return the error that names the missing ranks and the reason, found together with the remaining ranks."""
        # The first rank that notices a failure sets the key; all others then investigate the same failure.
        noticed = self._store.compare_set("failure", "", how).decode()
        kind, _, left = noticed.partition(" ")
        missing = [int(left)] if left else self._missing(kind)
        endings = [self._ending(rank) for rank in missing]
        for ending in endings:
            if ending.startswith("interrupted"):
                return Interrupted(int(ending.split()[1]))
        if not missing:
            return RankLost(f"a collective failed at step {self.step}, although all ranks respond: {error}")
        why = "its connection closed" if kind == "died" else "it is stopped or stuck, or its machine is unreachable"
        messages = [
            f"{self.names[rank]} {ending or kind} at step {self.step}" + ("" if ending else f": {why}")
            for rank, ending in zip(missing, endings, strict=True)
        ]
        return RankLost("; ".join(messages), missing[0])

    def _missing(self, how: str) -> list[int]:
        """Return the unresponsive ranks; the first rank finds them, and publishes them to the others."""
        # While a rank hangs, all others wait in a collective and answer at once. When a rank dies, others may still be
        # in the middle of a step.
        limit = ANSWER_SECONDS if how == "hangs" else self._patience.steady
        if self._rank != 0:
            # Wait longer than the first rank, which publishes its result.
            limit += ANSWER_SECONDS
            return self._missing_by_first_rank(limit)
        missing = self._unresponsive(limit)
        self._store.set("missing", json.dumps(missing))
        return missing

    def _unresponsive(self, limit: float) -> list[int]:
        """Return the connected ranks that do not reach a barrier within ``limit`` seconds."""
        answered: set[int] = set()

        def wait_at_barrier(rank: int) -> None:
            # Raised if the connection closed or the timeout expired: no answer in either case.
            with suppress(RuntimeError):
                _monitored_barrier(group=self._pairs[rank], timeout=timedelta(seconds=limit))
                answered.add(rank)

        # Use threads, because torch enforces the timeout only on the first rank of a barrier.
        threads = [threading.Thread(target=wait_at_barrier, args=(rank,), daemon=True) for rank in self._pairs]
        for thread in threads:
            thread.start()
        until = time.monotonic() + limit
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return [rank for rank in self._pairs if rank not in answered]

    def _missing_by_first_rank(self, limit: float) -> list[int]:
        """Return the missing ranks that the first rank published; [0] if the first rank itself does not respond."""
        silent = self._unresponsive(limit)
        try:
            if silent and not self._store.check(["missing"]):
                return silent
            self._store.wait(["missing"], timedelta(seconds=limit))
        except dist.DistStoreError:  # the first rank was lost meanwhile
            return [0]
        return [rank for rank in json.loads(self._store.get("missing")) if rank != self._rank]

    def _ending(self, rank: int) -> str:
        key = f"left/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""


def _describe_ending(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    # 130 is the exit code of a process ended by SIGINT (128 + 2).
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return f"interrupted {getattr(error, 'code', None) or 130}"
    lines = str(error).splitlines()
    return f"failed with {type(error).__name__} ({lines[0] if lines else 'no message'})"


def _open_default() -> None:
    store, rank, world = next(_rendezvous("env://"))
    # torchrun serves one store for all attempts: after a restart it still contains the addresses of the old processes.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=_PrefixStore(f"fieldwatch/{attempt}", store),
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=10),  # NCCL's watchdog ends a process whose device waits longer
    )


def _close_default() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _exit_without_closing() -> None:
    """End the process without destructors, since those of gloo would wait for a stopped rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_LOST_RANK)
