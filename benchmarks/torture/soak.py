"""A long run with faults at random times, beside an undisturbed one: does it end, how much is lost, is it the same?"""

import hashlib
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forked import Child, answer, forked, spawned
from rows import Row, judged
from torch import nn

from fieldwatch import Run
from fieldwatch.checkpoint import Checkpoints, Retention

EVERY = 200
FAULTS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGINT)
MEAN = 20.0
"""Seconds between two faults, on average."""


def training(folder: Path, steps: int) -> Callable[[Callable[[bytes], Any]], None]:
    """A small network with dropout on batches drawn at random; says a byte per step."""

    def work(say: Callable[[bytes], Any]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        data = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
        with Run(folder, sinks=(), rules=(), checkpoint_every=EVERY, keep=Retention(last=2)) as run:
            run.keep(model=model, optimizer=optimizer)
            for step in run.steps(steps):
                batch = data[torch.randperm(512)[:32]]
                loss = (model(batch).squeeze(1) - batch.prod(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                step.record({"Loss/toy": float(loss.detach())})
                optimizer.step()
                say(b".")
                time.sleep(0.001)  # so that faults of every kind find it running

    return work


def weights(folder: Path) -> str:
    """A hash of what the run ended with: weights and moments."""
    stored = Checkpoints(folder / "checkpoints").read("last")
    text = hashlib.sha256()
    for value in stored["model"].values():
        text.update(value.numpy().tobytes())
    for state in stored["optimizer"]["state"].values():
        text.update(state["exp_avg"].numpy().tobytes() + state["exp_avg_sq"].numpy().tobytes())
    return text.hexdigest()


@dataclass(kw_only=True)
class Disturbed:
    """What a disturbed run came to.

    Attributes:
        faults: the signals it was sent.
        executed: steps computed, those twice counted twice.
        down: seconds from a fault to the next first step.
        seconds: from begin to end.
        ended: the last process exited with 0.
    """

    faults: list[str]
    executed: int = 0
    down: float = 0.0
    seconds: float = 0.0
    ended: bool = False


def disturb(start: Callable[[], Child], mean: float, seed: int = 11) -> Disturbed:
    """Start it, send it a fault at random times, start it again, until it is done."""
    draw, result, began = random.Random(seed), Disturbed(faults=[]), time.monotonic()  # noqa: S311  chance that repeats, not secrets
    died: float | None = None
    while not result.ended and len(result.faults) < 200 and time.monotonic() - began < 900:
        child = start()
        child.listen(1)
        result.down += 0 if died is None else time.monotonic() - died
        fault = draw.choice(FAULTS)
        code = child.end(fault) if _still_runs(child, mean * draw.uniform(0.5, 1.5)) else child.end()
        died = time.monotonic()
        result.executed += len(child.heard)
        result.ended = code == 0
        if not result.ended:
            result.faults.append(fault.name)
    result.seconds = time.monotonic() - began
    return result


def _still_runs(child: Child, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([child.pipe], [], [], left)[0]:
            got = os.read(child.pipe, 65536)
            if not got:
                return False
            child.heard += got
    return True


def run_soak(folder: Path, steps: int = 30_000, mean: float = MEAN) -> list[Row]:
    """The rows of P20: restarted by fork, and as users restart it, with all imports of a new process."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # what torch imports then is imported once, not after every fork
    clean = forked(training(folder / "clean", steps))
    by_fork = disturb(lambda: forked(training(folder / "forked", steps)), mean)
    clean.listen(steps, 600)
    ended = clean.end() == 0
    command = (sys.executable, __file__, str(folder / "spawned"), str(steps))
    anew = disturb(lambda: spawned(command), mean)
    rows = list[Row]()
    for result, name, how in ((by_fork, "forked", "by fork"), (anew, "spawned", "as a new process, imports and all")):
        same = answer(lambda name=name: weights(folder / "clean") == weights(folder / name)) is True
        rows.append(row_of(result, how, steps, mean, same=same and ended))
    return rows


def row_of(result: Disturbed, how: str, steps: int, mean: float, *, same: bool) -> Row:
    """What a disturbed run says of P20."""
    share = (1 - result.down / result.seconds) * steps / max(result.executed, 1)
    down = result.down / max(len(result.faults), 1)
    return judged(
        "P20",
        f"{steps:,} steps with a fault about every {mean:g} s (SIGKILL, SEGV, ABRT, TERM, INT), started again {how}, "
        "beside a clean run",
        "ends, goodput >= 90 %, weights and moments bit-equal to the clean run's",
        f"{'ended' if result.ended else 'did not end'} after {len(result.faults)} faults, goodput {share:.1%} "
        f"(each start {down:.1f} s), {'bit-equal' if same else 'not equal'}; {result.seconds:.0f} s",
        good=result.ended and same and share >= 0.9 and bool(result.faults),
        why="" if result.faults else "no fault came: too few steps",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    training(Path(sys.argv[1]), int(sys.argv[2]))(lambda text: os.write(int(sys.argv[3]), text))
