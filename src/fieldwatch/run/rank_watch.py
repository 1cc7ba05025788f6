"""Signs of life between the processes of one training: who is there, who is behind, who is gone, and where it was."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from fieldwatch.run.start import Interrupted

BEAT = 1.0
"""Seconds between two signs of life."""
GRACE = 5.0
"""Seconds after a loss in which the training thread should have noticed; then the process is ended from outside."""
SETTLED = 16
"""Meetings after which a training has found its pace: compilation and first allocations are over."""
PATIENCE = "FIELDWATCH_RANK_PATIENCE"
"""Environment variable: seconds that the others wait for a rank that is silent or behind."""


class RankLost(RuntimeError):  # noqa: N818  it says what happened to the training
    """Another process of the training died, hangs or failed: this one cannot go on without it.

    Attributes:
        rank: the process that was lost; -1 where that is not known.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True, kw_only=True)
class RankPatience:
    """How long the others wait for a rank, in seconds.

    Attributes:
        silent: without any sign of life from its process.
        behind: while it does not come to where they are.
        first: the same, at the beginning, when things are compiled and loaded.
        alone: while it does work that it announced, such as an evaluation.
    """

    silent: float = 20.0
    behind: float = 20.0
    first: float = 600.0
    alone: float = 3600.0

    @classmethod
    def of_process(cls) -> "RankPatience":
        """What the environment says, or the default.

        Raises:
            ValueError: it says no positive number.
        """
        said = os.environ.get(PATIENCE)
        if said is None:
            return cls()
        seconds = float(said) if said.replace(".", "", 1).isdigit() else 0.0
        if seconds <= 0:
            raise ValueError(f"{PATIENCE}={said!r}: wanted seconds, a number above 0 (the default is 20)")
        return cls(silent=seconds, behind=seconds)


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a rank says about itself.

    Attributes:
        host: its machine.
        pid: its process.
        machine: tells whether that process can be looked at from here: boot and process namespace.
        born: start of the process in the kernel's ticks: a number that is used again is another process.
        count: of its signs of life.
        step: the one it is in.
        meeting: how many times it has met the others.
        doing: what it does alone; empty for nothing.
        left: how it ended: "", "finished", "interrupted 143", or "failed ...".
    """

    host: str
    pid: int
    machine: str
    born: int
    count: int = 0
    step: int = 0
    meeting: int = 0
    doing: str = ""
    left: str = ""

    @classmethod
    def of_process(cls) -> "Beat":
        """The first one of this process."""
        return cls(host=socket.gethostname(), pid=os.getpid(), machine=_machine(), born=_born(os.getpid()) or 0)

    def encode(self) -> str:
        """As the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, stored: bytes) -> "Beat":
        """Of the store."""
        return cls(**json.loads(stored))

    @property
    def gone(self) -> bool:
        """Whether its process is on this machine and is no more."""
        return bool(self.machine) and self.machine == _machine() and _born(self.pid) != self.born


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A rank as another one sees it, by that one's own clock.

    Attributes:
        beat: the last one.
        heard: when it came.
        moved: when the rank last came to another meeting or step.
    """

    beat: Beat
    heard: float
    moved: float

    def then(self, beat: Beat, now: float) -> "Seen":
        """After another look."""
        if beat.count == self.beat.count and beat.left == self.beat.left:
            return self
        moved = (beat.meeting, beat.step, beat.doing) != (self.beat.meeting, self.beat.step, self.beat.doing)
        return Seen(beat=beat, heard=now, moved=now if moved else self.moved)


@runtime_checkable
class Board(Protocol):
    """Where ranks leave messages for each other: a torch store."""

    def set(self, key: str, value: str, /) -> None:
        """Leave one."""
        ...

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Read some; they are there."""
        ...


class RankWatch:
    """A thread that shows this process's signs of life, and looks for those of the others.

    Args:
        board: where they are left; a connection that nobody else uses, since a thread may wait in one.
        rank: of this process.
        world: how many there are.
        patience: how long the others are waited for.
        end_now: called where the training thread cannot be reached (it waits for the lost one inside of native code).
    """

    def __init__(
        self,
        board: Board,
        rank: int,
        world: int,
        *,
        patience: RankPatience,
        end_now: Callable[[BaseException], None],
    ) -> None:
        self._board, self._rank, self._patience, self._end_now = board, rank, patience, end_now
        self._others = [other for other in range(world) if other != rank]
        self._own = Beat.of_process()
        self._moved = time.monotonic()
        self._seen: dict[int, Seen] = {}
        self._suspects: set[int] = set()
        self._closing, self._noticed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.lost: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="fieldwatch-ranks", daemon=True)
        self._show()

    def start(self) -> None:
        """Begin; every rank has shown itself once."""
        self._thread.start()

    def at(self, meeting: int, step: int, doing: str = "") -> None:
        """Say where this process is; shown at the next beat."""
        self._own = replace(self._own, meeting=meeting, step=step, doing=doing)
        self._moved = time.monotonic()

    def check(self) -> None:
        """Look at what the thread has found.

        Raises:
            RankLost: another rank was lost.
            Interrupted: another rank was stopped by a signal.
        """
        if self.lost is not None:
            self._noticed.set()
            raise self.lost

    def explain(self, error: BaseException) -> NoReturn:
        """A meeting failed: wait until it is known why, and raise that.

        Raises:
            RankLost: with the reason.
            Interrupted: another rank was stopped by a signal.
        """
        until = time.monotonic() + self._patience.silent
        while self.lost is None and time.monotonic() < until:
            time.sleep(BEAT / 20)
            for other, seen in self._look().items():
                if seen.beat.left == "finished":
                    self.lost = RankLost(
                        f"{_name(other, seen.beat)} ended its training at step {seen.beat.step}", other
                    )
        self._noticed.set()
        raise self.lost or RankLost(f"the ranks could not meet, and all are alive: {error}") from error

    def leave(self, how: str) -> None:
        """Say how this process ends, and stop watching."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._own = replace(self._own, left=how)
        self._try_to_show()

    def _work(self) -> None:
        while not self._closing.wait(BEAT):
            self._own = replace(self._own, count=self._own.count + 1)
            if self._try_to_show():
                self._look()
            if self.lost is not None:
                break
        if self.lost is not None and not self._noticed.wait(GRACE) and not self._closing.is_set():
            self._end_now(self.lost)

    def _show(self) -> None:
        self._board.set(f"beat/{self._rank}", self._own.encode())

    def _try_to_show(self) -> bool:
        try:
            with self._lock:
                self._show()
        except RuntimeError as error:  # what a store raises when nobody serves it any more
            if not self._closing.is_set() and self.lost is None:
                self.lost = RankLost(
                    f"the store that joins the ranks is gone ({error}): torchrun, or the process that served it, ended"
                )
            return False
        return True

    def _look(self) -> Mapping[int, Seen]:
        try:
            with self._lock:
                beats = self._board.multi_get([f"beat/{other}" for other in self._others])
        except RuntimeError:  # noticed when the next sign of life is shown
            return self._seen
        now = time.monotonic()
        for other, stored in zip(self._others, beats, strict=True):
            beat = Beat.decode(stored)
            before = self._seen.get(other)
            self._seen[other] = before.then(beat, now) if before else Seen(beat=beat, heard=now, moved=now)
            if self.lost is None:
                self.lost = self._judged(other, now)
        return self._seen

    def _judged(self, other: int, now: float) -> BaseException | None:
        seen = self._seen[other]
        if seen.beat.gone and not seen.beat.left and other not in self._suspects:
            self._suspects.add(other)  # it may have left in order since it was looked at
            return None
        own = Seen(beat=self._own, heard=now, moved=self._moved)
        return judge(other, seen, own, now, self._patience)


def judge(rank: int, seen: Seen, own: Seen, now: float, patience: RankPatience) -> BaseException | None:
    """Say whether a rank is lost, and how.

    Args:
        rank: which one.
        seen: what is known of it.
        own: where this process is.
        now: the time, on the same clock.
        patience: how long it may take.

    Returns:
        What the training is to be ended with; None while there is no reason to.
    """
    left = seen.beat.left
    if left.startswith("interrupted"):
        return Interrupted(int(left.split()[1]))
    why = _why_lost(seen, own, now, patience) if left != "finished" else ""
    return RankLost(f"{_name(rank, seen.beat)} {why}", rank) if why else None


def _why_lost(seen: Seen, own: Seen, now: float, patience: RankPatience) -> str:
    beat, silent, waited = seen.beat, now - seen.heard, now - max(seen.moved, own.moved)
    step = beat.step if beat.doing or beat.left else max(beat.step, own.beat.step)  # its last word may be older
    place = f"at step {step}" + (f", in {beat.doing}" if beat.doing else "")
    pace = patience.behind if own.beat.meeting > SETTLED else patience.first
    if beat.left:
        return f"ended {place}: {beat.left.removeprefix('failed ')}"
    if beat.gone:
        return f"died {place}: its process is gone, last sign of life {silent:.0f} s ago"
    if silent > (max(patience.silent, patience.alone / 30) if beat.doing else patience.silent):
        reasons = "it is stopped, hangs in native code, or its machine is out of reach"
        return f"fell silent {place}: last sign of life {silent:.0f} s ago; {reasons}"
    if beat.meeting < own.beat.meeting and waited > (patience.alone if beat.doing else pace):
        return f"hangs {place}: it lives, but this rank has waited {waited:.0f} s for it"
    return ""


def _name(rank: int, beat: Beat) -> str:
    return f"rank {rank} on host {beat.host} (pid {beat.pid})"


def _born(pid: int) -> int | None:
    """When a process started, in ticks since boot; None where there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields: list[Any] = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _machine() -> str:
    """What two processes have in common that can look at each other; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
