"""Tests how often a run saves on disks and states of different speed: it must keep its budgets and its loss limit."""

import errno
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from forked import answer
from rows import Row, judged

from fieldwatch import Autosave, Guard, Outputs, Run, Saving
from fieldwatch.checkpoint import Every
from fieldwatch.record import read_events

STEP = 0.004
"""Seconds per step."""
TOLERANCE = 1.5
"""Factor by which a figure may exceed its bound, because of other threads and processes."""


class Slow:
    """A state that takes a while to copy.

    Args:
        seconds: function from the time since its creation to the seconds that a copy takes.
    """

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self._seconds = seconds
        self._made = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        """Sleep, and return a tensor."""
        time.sleep(self._seconds(time.monotonic() - self._made))
        return {"x": torch.zeros(10)}

    def load_state_dict(self, state: Any) -> None:
        """Ignore the stored state."""


@dataclass(kw_only=True)
class Seen:
    """Observations of one run.

    Attributes:
        seconds: training time.
        unsaved: the most seconds of work that a kill could have cost.
        saves: training time, stall and write time of each save, in seconds.
        kinds: kinds of all events.
        failed: training time at each failed save.
    """

    seconds: float = 0.0
    unsaved: float = 0.0
    saves: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])
    kinds: list[str] = field(default_factory=list[str])
    failed: list[float] = field(default_factory=list[float])


def watched(  # noqa: PLR0913  one argument per delay or fault
    folder: Path,
    long: float,
    autosave: Autosave,
    *,
    every: Every = "auto",
    stall: Callable[[float], float] = lambda _: 0.0,
    sync: float = 0.0,
    full: tuple[float, float] = (0.0, 0.0),
) -> dict[str, Any]:
    """Train for some seconds in this process.

    Args:
        folder: run folder.
        long: seconds to train.
        autosave: budgets of the run.
        every: steps between checkpoints.
        stall: function from the time to the seconds that a snapshot takes.
        sync: seconds added to each sync.
        full: first and last second of the full disk.
    """
    seen = Seen()
    ended = dict[int, float]()
    place = folder / "checkpoints"
    real_sync = os.fsync
    real_reserve = os.posix_fallocate
    began = [time.monotonic()]

    def slow_sync(descriptor: int) -> None:
        time.sleep(sync)
        real_sync(descriptor)

    def reserve(descriptor: int, offset: int, size: int) -> None:
        if full[0] <= time.monotonic() - began[0] < full[1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_reserve(descriptor, offset, size)

    with ExitStack() as stack:
        run = stack.enter_context(
            Run(
                folder,
                saving=Saving(every=every, autosave=autosave),
                guard=Guard(hang_timeout=None),
                outputs=Outputs(sinks=(), rules=()),
            )
        )
        run.track(slow=Slow(stall))
        run.resume()
        stack.enter_context(patch.object(os, "posix_fallocate", reserve))
        for step in run.steps(1 << 40):
            if not ended:
                stack.enter_context(patch.object(os, "fsync", slow_sync))
                began[0] = time.monotonic()
                ended[0] = began[0]
            time.sleep(STEP)
            step.record({"Loss/toy": 1.0})
            now = time.monotonic()
            ended[step.index + 1] = now
            newest = max((int(path.name[5:]) for path in place.glob("step_*")), default=0)
            seen.unsaved = max(seen.unsaved, now - ended[newest])
            if now - began[0] > long:
                break
        seen.seconds = time.monotonic() - began[0]
    for event in read_events(folder):
        seen.kinds.append(event["kind"])
        if event["kind"] == "checkpoint" and event["step"] + 1 < len(ended) - 1:  # without the last save, which waits
            seen.saves.append((event["seconds"], event["stall_ms"] / 1e3, event["took_ms"] / 1e3))
        if event["kind"] == "checkpoint_failed":
            seen.failed.append(float(ended[event["step"] + 1] - began[0]))
    return vars(seen)


def seen_of(folder: Path, long: float, autosave: Autosave, **more: Any) -> Seen | str:
    """Train in a child; raise what it raised."""
    found = answer(lambda: watched(folder, long, autosave, **more))
    return found["raised"] if "raised" in found else Seen(**found)


def row(what: str, wanted: str, seen: Seen | str, shown: Callable[[Seen], tuple[str, bool]]) -> Row:
    """Return a row of P6."""
    if isinstance(seen, str):
        return judged("P6", what, wanted, "the run ended", good=False, why=seen)
    found, good = shown(seen)
    return judged("P6", what, wanted, found, good=good)


def budget(folder: Path) -> Row:
    """Test snapshots that take 30 ms, and after a while 80 ms."""
    share = 0.05
    turn = 5.0
    seen = seen_of(
        folder,
        2 * turn,
        Autosave(stall_budget=share, loss_limit=None, least=0.05),
        stall=lambda t: 0.03 if t < turn else 0.08,
    )

    def shown(seen: Seen) -> tuple[str, bool]:
        halves = [[one for one in seen.saves if (one[0] < turn) == early] for early in (True, False)]
        shares = [sum(one[1] for one in half) / turn for half in halves]
        counts = [len(half) for half in halves]
        good = all(one <= TOLERANCE * share for one in shares) and counts[0] >= 4 and counts[1] >= 2
        return f"{shares[0]:.1%} of {counts[0]} saves, then {shares[1]:.1%} of {counts[1]}", good

    what = "snapshots that take 30 ms, then 80 ms, with a budget of 5 % of the time"
    return row(what, f"stalls <= {TOLERANCE:g} times the budget, and as many saves as it allows", seen, shown)


def disks(folder: Path) -> Row:
    """Test the same state on a quick disk and on one whose every sync takes 30 ms longer."""
    autosave = Autosave(stall_budget=0.5, loss_limit=None, least=0.1)
    long = 4.0
    quick = seen_of(folder / "quick", long, autosave)
    slow = seen_of(folder / "slow", 2 * long, autosave, sync=0.03)
    what = "a quick disk, and one whose every sync takes 30 ms more"
    wanted = "saves as often as the least distance allows; the writer takes at most a tenth of the time"
    if isinstance(quick, str) or isinstance(slow, str):
        return row(what, wanted, quick if isinstance(quick, str) else slow, lambda _: ("", False))

    def shown(slow: Seen) -> tuple[str, bool]:
        known = slow.saves[1:]  # the first save has no measurement to rely on
        writing = sum(one[2] for one in known) / (slow.seconds - slow.saves[0][0]) if known else 1.0
        good = writing <= 0.1 * TOLERANCE and len(slow.saves) >= 3 and len(quick.saves) >= 0.5 * long / autosave.least
        told = f"{len(quick.saves)} saves in {long:g} s; {len(slow.saves)} in {2 * long:g} s, writing {writing:.1%}"
        return told, good

    return row(what, wanted, slow, shown)


def limit(folder: Path) -> list[Row]:
    """Test a loss limit of 1 s with a budget that would save every 6 s, and with a fixed number of steps."""
    bound = 1.0
    wanted = f"never more than {TOLERANCE * bound:g} s of work unsaved"

    def shown(seen: Seen) -> tuple[str, bool]:
        told = seen.kinds.count("saving_over_budget")
        return f"{seen.unsaved:.2f} s, said {told} times", seen.unsaved <= TOLERANCE * bound and told == 1

    def plain(seen: Seen) -> tuple[str, bool]:
        return f"{seen.unsaved:.2f} s", seen.unsaved <= TOLERANCE * bound

    by_time = seen_of(folder / "auto", 4.0, Autosave(loss_limit=bound, least=0.05), stall=lambda _: 0.03, sync=0.02)
    by_step = seen_of(folder / "every", 4.0, Autosave(loss_limit=bound), every=100_000, sync=0.02)
    what = f"a loss limit of {bound:g} s"
    return [
        row(f"{what}, where the budget would save every 6 s", f"{wanted}; said once", by_time, shown),
        row(f"{what}, where a save was planned every 100,000 steps", wanted, by_step, plain),
    ]


def failing(folder: Path) -> Row:
    """Test a disk that is full for five seconds."""
    full = (0.5, 5.5)
    seen = seen_of(folder, 9.0, Autosave(least=0.1, loss_limit=2.0, stall_budget=0.5), full=full)

    def shown(seen: Seen) -> tuple[str, bool]:
        pauses = [later - one for one, later in zip(seen.failed, seen.failed[1:], strict=False)]
        right = all(abs(pause - want) < 0.6 for pause, want in zip(pauses, (1.0, 2.0, 4.0), strict=False))
        healed = "checkpoints_recovered" in seen.kinds
        tries = ", ".join(f"{pause:.1f}" for pause in pauses)
        told = f"tries after {tries} s, {'recovered' if healed else 'not recovered'}"
        return told, right and healed and 2 <= len(pauses) <= 3

    return row("a disk that has no room for 5 s", "tried again after 1, 2, 4 s, then saves again", seen, shown)


def run_intervals(folder: Path) -> list[Row]:
    """Return the rows of P6; on a disk in memory if there is one, so that only planted delays are slow."""
    shared = Path("/dev/shm")  # noqa: S108  a folder with a random name is created in it
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torture-", dir=shared if shared.is_dir() else folder) as name:
        place = Path(name)
        return [budget(place / "budget"), disks(place / "disks"), *limit(place / "limit"), failing(place / "failing")]
