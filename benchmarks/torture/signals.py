"""Signals at random times: is the state saved within the grace, or the loss bounded, and is the exit code right?"""

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fieldwatch import Checkpoints, Run, Shuffled, Step, Terms, read_history
from torture.forked import Child, forked
from torture.rows import Row, judged

GRACE = 10.0
"""Seconds from the signal to the end of the process."""
STEPS, EVERY, EVALUATED = 60, 10, 30
"""Steps of the toy run, between two checkpoints, and before its evaluation: that is its loss limit."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PLACES = ("warm-up", "training", "a save", "an evaluation", "a wait for data", "the products")
AT_ONCE = 4
"""Trials at a time."""
VIDEO_SHARE = 20
"""So many signals to the toy for one to a training of a video."""
Say = Callable[[bytes], Any]


@dataclass(frozen=True, kw_only=True)
class Blow:
    """A signal, and what became of the run.

    Attributes:
        place: what the run was doing.
        number: of the signal.
        seconds: until the process ended.
        code: it ended with.
        lost: steps that a resumed run has to do again.
        same: whether the resumed run ends as one that was left alone.
    """

    place: str
    number: int
    seconds: float
    code: int
    lost: int
    same: bool

    @property
    def good(self) -> bool:
        """Whether the promise holds; 0 is the code of a run that came to its end within the patience."""
        return self.seconds <= GRACE and self.code in (128 + self.number, 0) and self.lost <= EVERY and self.same


class Toy:
    """A small training that says when it comes to a place, and stays there for a while.

    Args:
        say: tells the parent.
        place: where to stay; empty for nowhere.
        long: seconds.
    """

    def __init__(self, say: Say, place: str, long: float) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._say, self._place, self._long = say, place, long
        self.model, self.order = nn.Linear(4, 1), Shuffled(32, 4, seed=1)
        self._inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def comes_to(self, where: str) -> bool:
        """Say so, the first time."""
        if where != self._place:
            return False
        self._place = ""
        self._say(b"!")
        return True

    def works(self, run: Run, where: str) -> None:
        """Do something long with stop points, if this is the place."""
        end = time.monotonic() + (self._long if self.comes_to(where) else 0)
        while time.monotonic() < end:
            run.stop_point(where)
            time.sleep(0.02)

    def batches(self) -> Iterator[torch.Tensor]:
        """Batches for ever; the loader may be slow once."""
        while True:
            if self.order.epoch == 2 and self.comes_to("a wait for data"):
                time.sleep(self._long)
            yield next(self.order)

    def learns(self, step: Step, chosen: torch.Tensor) -> None:
        """Make one step."""
        terms = Terms(fit=(1.0, self.model(self._inputs[chosen]).square().mean()))
        self.optimizer.zero_grad()
        terms.total.backward()
        step.observe(terms)
        step.update(self.optimizer)
        time.sleep(0.002)

    def train(self, folder: Path) -> str:
        """Train, or go on; return the last weights."""
        with Run(folder, sinks=(), rules=(), checkpoint_every=EVERY) as run:
            run.stop_point.patience = min(run.stop_point.patience, max(self._long, 0.5))
            run.keep(model=self.model, optimizer=self.optimizer, order=self.order)
            self.works(run, "warm-up")
            for step, chosen in zip(run.steps(STEPS), run.batches(self.batches()), strict=False):
                self.learns(step, chosen)
                if step.index == EVALUATED:
                    self.works(run, "an evaluation")
                if step.index == 2 * EVERY - 1:
                    self.comes_to("a save")
                if step.index > EVERY:
                    self.comes_to("training")
            self.works(run, "the products")
        return torch.cat([one.detach().reshape(-1) for one in self.model.parameters()]).numpy().tobytes().hex()


def struck(folder: Path, place: str, number: int, *, after: tuple[float, float], wanted: str) -> Blow:
    """Run the toy, send it a signal when it comes to a place, and resume it.

    Args:
        folder: where to.
        place: where.
        number: of the signal.
        after: seconds from coming to the place to the signal, and seconds that it stays there.
        wanted: the weights of a run that was left alone.
    """
    delay, long = after
    child = forked(lambda say: Toy(say, place, long).train(folder))
    child.listen(1)
    time.sleep(delay)
    began = time.monotonic()
    code = child.end(number)
    seconds, lost = time.monotonic() - began, _lost(folder)
    again = forked(lambda say: say(Toy(_silent, "", 0.0).train(folder).encode()))
    ended = again.listen(len(wanted)) and again.end() == 0
    return Blow(
        place=place,
        number=number,
        seconds=seconds,
        code=code,
        lost=lost,
        same=bool(ended) and again.heard.decode() == wanted and _whole(folder),
    )


def unharmed(folder: Path) -> str:
    """The weights of a toy run that was left alone."""
    child: Child = forked(lambda say: say(Toy(_silent, "", 0.0).train(folder).encode()))
    child.listen(1 << 20)
    child.end()
    return child.heard.decode()


def run_signals(folder: Path, count: int, *, seed: int = 10) -> list[Row]:
    """Send so many signals, in turn at every place; one row for each place, and one for the videos.

    Args:
        folder: where to, empty.
        count: of signals; every sixth meets an evaluation, and every fourth of these lasts longer than any patience.
        seed: of the times and the signals.
    """
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # what torch imports then is imported here, not after every fork
    chance, wanted = random.Random(seed), unharmed(folder / "unharmed")  # noqa: S311  chance that repeats, not secrets
    trials: list[tuple[str, int, tuple[float, float]]] = []
    for trial in range(count):
        place, long = PLACES[trial % len(PLACES)], 30.0 if trial % 24 == 3 else chance.uniform(0.2, 0.6)
        delay = chance.uniform(0, min(long, 0.1))
        trials.append((place, chance.choice(SIGNALS), (delay, long)))
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("fork")) as pool:  # they wait more than they work
        blows = list(pool.map(partial(_trial, folder, wanted), trials))
    rows = [_row(place, [blow for blow in blows if blow.place == place]) for place in PLACES[:count]]
    return rows + (run_video_signals(folder / "video", count // VIDEO_SHARE) if count >= VIDEO_SHARE else [])


def _trial(folder: Path, wanted: str, trial: tuple[str, int, tuple[float, float]]) -> Blow:
    place, number, after = trial
    with tempfile.TemporaryDirectory(dir=folder) as one:
        return struck(Path(one), place, number, after=after, wanted=wanted)


def run_video_signals(folder: Path, count: int, *, seed: int = 11) -> list[Row]:
    """Send so many signals to the smallest training of a video, at any time of its life; one row."""
    from torture.resume import Trace, differences, trained  # noqa: PLC0415  pipelines take seconds to import
    from torture.resume_cases import video_case  # noqa: PLC0415  the same

    chance = random.Random(seed)  # noqa: S311  chance that repeats, not secrets
    case = video_case(folder / "data", amp=False, streams=False)
    began = time.monotonic()
    forked(lambda _: trained(case, folder / "whole")).end()
    whole = Trace.of(folder / "whole")
    length, bad, slowest = time.monotonic() - began, list[str](), 0.0
    for trial in range(count):
        at, number = folder / f"struck{trial}", chance.choice(SIGNALS)
        child = forked(lambda _, at=at: case.train(at))
        time.sleep(chance.uniform(0, length))
        sent = time.monotonic()
        code = child.end(number)
        slowest = max(slowest, time.monotonic() - sent)
        if code not in (0, 128 + number, -number) or (code == -number and at.exists() and _begun(at)):
            bad.append(f"{signal.Signals(number).name} ended with {code}")
        if code != 0:
            forked(lambda _, at=at: trained(case, at)).end()
        found = Trace.of(at)
        if found.losses != whole.losses or differences(found.state["model"], whole.state["model"]):
            bad.append(f"{signal.Signals(number).name} after {at.name}: not the same run")
    told = f"{count - len(bad)} of {count}, slowest {slowest:.1f} s"
    what = "signals at any time of a video training, resumed to the same weights"
    return [
        judged(
            "P10",
            what,
            f"{count} of {count} within {GRACE:g} s",
            told,
            good=not bad and slowest <= GRACE,
            why="; ".join(bad[:3]),
        )
    ]


def _silent(_: bytes) -> None:
    """Nobody listens."""


def _begun(folder: Path) -> bool:
    """Whether a run had taken steps: before, nothing can be lost, and a signal simply ends the process."""
    return (folder / "journal.jsonl").exists() and "Loss/total" in read_history(folder).names()


def _lost(folder: Path) -> int:
    """Steps of the record that the last checkpoint does not have."""
    steps = Checkpoints(folder / "checkpoints").steps()
    losses = read_history(folder)
    done = len(losses["Loss/total"]) if "Loss/total" in losses.names() else 0
    return done - max(steps, default=0)


def _whole(folder: Path) -> bool:
    """Every step is in the record once."""
    return read_history(folder)["Loss/total"].steps.tolist() == list(range(STEPS))


def _row(place: str, blows: list[Blow]) -> Row:
    good = [blow for blow in blows if blow.good]
    worst, lost = max(blow.seconds for blow in blows), max(blow.lost for blow in blows)
    bad = next((repr(blow) for blow in blows if not blow.good), "")
    return judged(
        "P10",
        f"signals in {place}",
        f"{len(blows)} of {len(blows)} within {GRACE:g} s, at most {EVERY} steps lost, then the same weights",
        f"{len(good)} of {len(blows)}, slowest {worst:.1f} s, at most {lost} steps lost",
        good=len(good) == len(blows),
        why=bad,
    )
