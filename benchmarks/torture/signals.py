"""Sends signals at random times: the state must be saved in time, or the loss bounded, and the exit code correct."""

import os
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

from fieldwatch import Checkpoints, Outputs, Run, Saving, Shuffled, Step, Terms, read_history
from torture.forked import Child, forked
from torture.rows import Row, judged

GRACE = 10.0
"""Maximum seconds from the signal to the end of the process."""
STEPS = 60
EVERY = 10
EVALUATED = 30
"""Steps of the toy run, between checkpoints, and before its evaluation, which is its loss limit."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
PLACES = ("warm-up", "training", "a save", "an evaluation", "a wait for data", "the products")
GIVEN_UP = ("an evaluation", "a wait for data")
"""Places inside a step: if one lasts longer than the patience, the step is given up; elsewhere nothing may be lost."""
LONGER = 30.0
"""Seconds that some trials stay at their place, longer than any patience."""
AT_ONCE = 4
"""Number of trials at a time."""
VIDEO_SHARE = 20
"""Number of signals to the toy per signal to a video training."""
Say = Callable[[bytes], Any]


@dataclass(frozen=True, kw_only=True)
class Blow:
    """A signal and its consequences.

    Attributes:
        place: activity of the run at that time.
        number: number of the signal.
        seconds: seconds until the process ended.
        code: exit code.
        lost: number of steps that a resumed run must repeat.
        allowed: maximum of ``lost``.
        same: whether the resumed run ends like an undisturbed one.
    """

    place: str
    number: int
    seconds: float
    code: int
    lost: int
    allowed: int
    same: bool

    @property
    def good(self) -> bool:
        """Whether the promise holds; the code is 0 if the run finished within the patience."""
        ended = self.seconds <= GRACE and self.code in (128 + self.number, 0)
        return ended and self.lost <= self.allowed and self.same


class Toy:
    """A small training that reports when it reaches a place, and stays there for a while.

    Args:
        say: function that reports to the parent.
        place: place to stay at; empty for none.
        long: seconds to stay.
    """

    def __init__(self, say: Say, place: str, long: float) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._say = say
        self._place = place
        self._long = long
        self.model = nn.Linear(4, 1)
        self.order = Shuffled(32, 4, seed=1)
        self._inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def comes_to(self, where: str) -> bool:
        """Report that the run is at its place, the first time."""
        if where != self._place:
            return False
        self._place = ""
        self._say(b"!")
        return True

    def works(self, run: Run, where: str) -> None:
        """Wait in a loop with stop points, if this is the place."""
        end = time.monotonic() + (self._long if self.comes_to(where) else 0)
        while time.monotonic() < end:
            run.stop_point(where)
            time.sleep(0.02)

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield batches forever; the loader may be slow once."""
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
        """Train or resume; return the final weights."""
        with Run(folder, saving=Saving(every=EVERY), outputs=Outputs(sinks=(), rules=())) as run:
            run.stop_point.patience = min(run.stop_point.patience, self._long + 0.5)
            run.track(model=self.model, optimizer=self.optimizer, order=self.order)
            run.resume()
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
    """Run the toy, send it a signal when it reaches a place, and resume it.

    Args:
        folder: working folder.
        place: place in the run.
        number: number of the signal.
        after: seconds from reaching the place to the signal, and seconds that the run stays there.
        wanted: weights of an undisturbed run.
    """
    delay, long = after
    child = forked(lambda say: Toy(say, place, long).train(folder))
    child.listen(1)
    time.sleep(delay)
    began = time.monotonic()
    code = child.end(number)
    seconds = time.monotonic() - began
    lost = _lost(folder)
    again = forked(lambda say: say(Toy(_silent, "", 0.0).train(folder).encode()))
    ended = again.listen(len(wanted)) and again.end() == 0
    return Blow(
        place=place,
        number=number,
        seconds=seconds,
        code=code,
        lost=lost,
        allowed=EVERY if long >= LONGER and place in GIVEN_UP else 0,
        same=bool(ended) and again.heard.decode() == wanted and _whole(folder),
    )


def unharmed(folder: Path) -> str:
    """Return the weights of an undisturbed toy run."""
    child: Child = forked(lambda say: say(Toy(_silent, "", 0.0).train(folder).encode()))
    child.listen(1 << 20)
    child.end()
    return child.heard.decode()


def run_signals(folder: Path, count: int, *, seed: int = 10) -> list[Row]:
    """Send signals at every place in turn; return one row for each place, and one for the video trainings.

    Args:
        folder: empty working folder.
        count: number of signals, at each place in turn; every fourth evaluation, wait and writing of products lasts
            longer than any patience.
        seed: seed of the times and the signals.
    """
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    chance, wanted = random.Random(seed), unharmed(folder / "unharmed")  # noqa: S311  reproducible choices, not secrets
    trials: list[tuple[str, int, tuple[float, float]]] = []
    for trial in range(count):
        place = PLACES[trial % len(PLACES)]
        long = LONGER if trial % 24 in (3, 4, 5) else chance.uniform(0.2, 0.6)
        delay = chance.uniform(0, min(long, 0.1))
        trials.append((place, chance.choice(SIGNALS), (delay, long)))
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("fork")) as pool:  # trials wait most of the time
        blows = list(pool.map(partial(_trial, folder, wanted), trials))
    rows = [_row(place, [blow for blow in blows if blow.place == place]) for place in PLACES[:count]]
    rows += special_rows(folder / "special", wanted)
    return rows + (run_video_signals(folder / "video", count // VIDEO_SHARE) if count >= VIDEO_SHARE else [])


def special_rows(folder: Path, wanted: str) -> list[Row]:
    """Return the rows about signals that must not end the run in the usual way."""
    folder.mkdir(parents=True, exist_ok=True)
    trials = {
        "SIGHUP to a run under nohup": ("continues to the same result", under_nohup),
        "ctrl-C twice within a second": ("ends at once, saves nothing from the step, then the same weights", twice),
        "signals to a forked worker": (
            "SIGTERM ends it, SIGINT does not; the run continues to the same result",
            to_worker,
        ),
    }
    rows = list[Row]()
    for number, (what, (promised, trial)) in enumerate(trials.items()):
        wrong = trial(folder / str(number), wanted)
        rows.append(judged("P10", what, promised, wrong or "as promised", good=not wrong))
    return rows


def under_nohup(folder: Path, wanted: str) -> str:
    """Return what went wrong with a run that ignores SIGHUP; empty for nothing."""

    def work(say: Say) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        say(Toy(say, "training", 0.0).train(folder).encode())

    child = forked(work)
    child.listen(1)
    code = child.end(signal.SIGHUP)
    same = child.heard.decode().removeprefix("!") == wanted
    return "" if code == 0 and same else f"it exited with {code}"


def twice(folder: Path, wanted: str) -> str:
    """Return what went wrong with a run that got SIGINT twice in the middle of a step; empty for nothing."""
    child = forked(lambda say: Toy(say, "an evaluation", LONGER).train(folder))
    child.listen(1)
    began = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    time.sleep(0.3)
    code = child.end(signal.SIGINT)
    seconds = time.monotonic() - began
    saved = Checkpoints(folder / "checkpoints").steps()
    again = forked(lambda say: say(Toy(_silent, "", 0.0).train(folder).encode()))
    same = again.listen(len(wanted)) and again.end() == 0 and again.heard.decode() == wanted
    wrong = [f"it exited with {code}"] if code in (0, 128 + signal.SIGINT) else []
    wrong += [f"it took {seconds:.1f} s"] if seconds > 2 else []
    wrong += [f"it saved {saved}"] if max(saved, default=0) > EVALUATED else []
    return ", ".join([*wrong, *([] if same else ["not the same weights"])])


def to_worker(folder: Path, wanted: str) -> str:
    """Return what went wrong when a worker of the run gets signals; empty for nothing."""

    def work(say: Say) -> None:
        toy = Toy(_silent, "training", 0.0)
        ends = list[int]()

        def comes_to(where: str) -> bool:
            if where == "training" and not ends:
                worker = os.fork()
                if worker == 0:
                    time.sleep(LONGER)
                    os._exit(0)
                os.kill(worker, signal.SIGINT)
                time.sleep(0.2)
                os.kill(worker, signal.SIGTERM)
                ends.append(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
            return False

        toy.comes_to = comes_to  # type: ignore[method-assign]
        weights = toy.train(folder)
        say(f"{ends[0]} {weights}".encode())

    child = forked(work)
    child.listen(1 << 20, 60)
    code = child.end()
    end, _, weights = child.heard.decode().partition(" ")
    wrong = [f"the run exited with {code}"] if code else []
    wrong += [f"the worker exited with {end}"] if end != str(-signal.SIGTERM) else []
    return ", ".join([*wrong, *([] if weights == wanted else ["not the same weights"])])


def _trial(folder: Path, wanted: str, trial: tuple[str, int, tuple[float, float]]) -> Blow:
    place, number, after = trial
    with tempfile.TemporaryDirectory(dir=folder) as one:
        return struck(Path(one), place, number, after=after, wanted=wanted)


def run_video_signals(folder: Path, count: int, *, seed: int = 11) -> list[Row]:
    """Send signals to the smallest video training at any time of its life; return one row."""
    from torture.resume import Trace, differences, trained  # noqa: PLC0415  pipelines take seconds to import
    from torture.resume_cases import video_case  # noqa: PLC0415  the same

    chance = random.Random(seed)  # noqa: S311  reproducible choices, not secrets
    case = video_case(folder / "data", amp=False, streams=False)
    began = time.monotonic()
    forked(lambda _: trained(case, folder / "whole")).end()
    whole = Trace.of(folder / "whole")
    length = time.monotonic() - began
    bad = list[str]()
    slowest = 0.0
    for trial in range(count):
        at = folder / f"struck{trial}"
        number = chance.choice(SIGNALS)
        child = forked(lambda _, at=at: case.train(at))
        wait = chance.uniform(0, length)
        if trial == 0:  # at least one of them reaches the training during its steps
            number = signal.SIGTERM
            while not _begun(at) and time.monotonic() - began < 60 * length:
                time.sleep(0.005)
        else:
            time.sleep(wait)
        sent = time.monotonic()
        code = child.end(number)
        slowest = max(slowest, time.monotonic() - sent)
        if code not in (0, 128 + number, -number) or (code == -number and at.exists() and _begun(at)):
            bad.append(f"{signal.Signals(number).name} exited with {code}")
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
    """Ignore the report."""


def _begun(folder: Path) -> bool:
    """Return whether a run had taken steps: before that, nothing can be lost, and a signal simply ends the process."""
    return (folder / "journal.jsonl").exists() and "Loss/total" in read_history(folder).names()


def _lost(folder: Path) -> int:
    """Return the number of recorded steps that the last checkpoint lacks."""
    steps = Checkpoints(folder / "checkpoints").steps()
    losses = read_history(folder)
    done = len(losses["Loss/total"]) if "Loss/total" in losses.names() else 0
    return done - max(steps, default=0)


def _whole(folder: Path) -> bool:
    """Return whether every step is in the record once."""
    return read_history(folder)["Loss/total"].steps.tolist() == list(range(STEPS))


def _row(place: str, blows: list[Blow]) -> Row:
    good = [blow for blow in blows if blow.good]
    worst = max(blow.seconds for blow in blows)
    lost = max(blow.lost for blow in blows)
    bad = next((repr(blow) for blow in blows if not blow.good), "")
    return judged(
        "P10",
        f"signals in {place}",
        f"{len(blows)} of {len(blows)} within {GRACE:g} s, "
        f"{'no step lost' if place not in GIVEN_UP else f'at most {EVERY} lost if given up'}, then the same weights",
        f"{len(good)} of {len(blows)}, slowest {worst:.1f} s, at most {lost} steps lost",
        good=len(good) == len(blows),
        why=bad,
    )
