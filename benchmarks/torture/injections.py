"""Puts ten kinds of non-finite values into trainings, each at four times: does one ever reach the parameters?

    python benchmarks/torture/injections.py            # all 40, and the cost of the guard
    python benchmarks/torture/injections.py --quick    # only one time per kind

A run passes if no update made a finite parameter or moment non-finite, every bad step and no good step was refused or
skipped, the culprit was named, and the run ended with finite values. Values planted into the state itself (a parameter,
a moment, a buffer) do not come from an update: the run must find and name them, and return to a state without them.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fieldwatch import Diverged, Guard, Outputs, Rollback, Run, Saving, Shuffled, Terms
from fieldwatch.record import read_events

STEPS = 120
TIMES: Mapping[str, tuple[int, ...]] = {
    "step 1": (1,),
    "mid": (60,),
    "last": (STEPS - 1,),
    "50 in a row": tuple(range(45, 95)),
}
"""Steps (0-based) at which something is put in; step 1 is the first with moments to lose."""
LOOK = 10
"""Steps between checks of parameters, moments and buffers."""
BATCH = 8


class Toy:
    """A regression with two optimizers, a buffer, and an unwatched group."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.model.register_buffer("scale", torch.ones(4))
        self.unwatched = nn.Parameter(torch.zeros(1))
        self.first = torch.optim.Adam(self.model.parameters(), lr=1e-2, fused=True)
        self.second = torch.optim.SGD([self.unwatched], lr=1e-2, momentum=0.9)
        self.order = Shuffled(64, BATCH, seed=3)
        self.inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
        self.targets = self.inputs.sum(1, keepdim=True)

    @property
    def weight(self) -> Tensor:
        """Return the weight of the first layer."""
        return self.model.get_parameter("0.weight")

    def kept(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        spare = {"unwatched": self.unwatched.detach()}
        return {"model": self.model, "first": self.first, "second": self.second, "order": self.order, "spare": spare}

    def errors(self, inputs: Tensor, chosen: Tensor) -> Tensor:
        """Return the squared error of each sample."""
        return (self.model(inputs) + self.unwatched - self.targets[chosen]).square().squeeze(-1)

    def state(self) -> list[Tensor]:
        """Return parameters, moments and the buffer."""
        states = (state for optimizer in (self.first, self.second) for state in optimizer.state.values())
        moments = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return [*self.model.parameters(), self.unwatched, *moments, *self.model.buffers()]

    def bad(self) -> int:
        """Return how many of these tensors are not finite."""
        return sum(not bool(torch.isfinite(tensor).all()) for tensor in self.state())


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of injection.

    Attributes:
        name: the injected value.
        culprit: words by which the refusal or the rollback must name it.
        place: function that injects the value; called with the toy at the time that ``when`` names.
        when: before the forward pass, after backward, or to the input or the loss.
        planted: whether the value is put into the state directly, not through an update.
    """

    name: str
    culprit: str
    place: Callable[[Toy, Any], Any]
    when: str
    planted: bool = False


def _gradient(value: float, of: Callable[[Toy], Tensor]) -> Callable[[Toy, Any], None]:
    def place(toy: Toy, _: Any) -> None:
        gradient = of(toy).grad
        assert gradient is not None  # noqa: S101  called after backward
        gradient.view(-1)[0] = value

    return place


def _planted(value: float, of: Callable[[Toy], Tensor]) -> Callable[[Toy, Any], None]:
    def place(toy: Toy, _: Any) -> None:
        of(toy).data.view(-1)[0] = value

    return place


def _moment(toy: Toy) -> Tensor:
    return toy.first.state[toy.weight]["exp_avg"]


def _pixel(_: Toy, inputs: Tensor) -> Tensor:
    spoilt = inputs.clone()
    spoilt[2, 1] = math.nan
    return spoilt


def _rate(toy: Toy, _: Any) -> None:
    toy.first.param_groups[0]["lr"] = math.nan


KINDS: tuple[Kind, ...] = (
    Kind(name="NaN in a loss term", culprit="term fit", place=lambda _, loss: loss * math.nan, when="loss"),
    Kind(name="a loss of 1e30", culprit="group", place=lambda _, loss: loss * 1e30, when="loss"),
    Kind(
        name="one gradient NaN", culprit="group model", place=_gradient(math.nan, lambda t: t.weight), when="gradient"
    ),
    Kind(
        name="one gradient Inf", culprit="group model", place=_gradient(math.inf, lambda t: t.weight), when="gradient"
    ),
    Kind(
        name="NaN in an unwatched group, of the second optimizer",
        culprit="group other",
        place=_gradient(math.nan, lambda t: t.unwatched),
        when="gradient",
    ),
    Kind(name="one input pixel NaN", culprit="sample", place=_pixel, when="input"),
    Kind(name="a learning rate NaN", culprit="learning rate", place=_rate, when="before"),
    Kind(
        name="a parameter NaN",
        culprit="parameter 0.weight of group 'model'",
        place=_planted(math.nan, lambda t: t.weight),
        when="before",
        planted=True,
    ),
    Kind(
        name="an optimizer's moment NaN",
        culprit="exp_avg of parameter 0 of optimizer 0",
        place=_planted(math.nan, _moment),
        when="before",
        planted=True,
    ),
    Kind(
        name="a buffer NaN",
        culprit="buffer scale",
        place=_planted(math.nan, lambda t: t.model.get_buffer("scale")),
        when="before",
        planted=True,
    ),
)


@dataclass(kw_only=True)
class Seen:
    """Observations of one run with injections.

    Attributes:
        put_in: steps with an injection, each counted once.
        spread: number of updates that made a finite tensor non-finite.
        error: error that ended the run; empty if it finished.
        bad_at_end: number of state tensors that were not finite at the end.
        lost: steps whose last execution was refused or skipped.
        said: text of all refusals and rollbacks.
    """

    put_in: set[int] = field(default_factory=set[int])
    spread: int = 0
    error: str = ""
    bad_at_end: int = 0
    lost: set[int] = field(default_factory=set[int])
    said: str = ""


def inject(folder: Path, kind: Kind, steps: Sequence[int]) -> Seen:
    """Train once with injections at some steps; planted values are injected only the first time."""
    toy = Toy()
    seen = Seen()
    try:
        with Run(
            folder,
            saving=Saving(every=LOOK),
            guard=Guard(rollback=Rollback(), hang_timeout=None),
            outputs=Outputs(sinks=(), rules=(), detail_every=LOOK),
        ) as run:
            _train(run, toy, kind, steps, seen)
    except Diverged as diverged:
        seen.error = str(diverged)
    seen.bad_at_end = toy.bad()
    events = list(read_events(folder))
    rollbacks = [event for event in events if event["kind"] == "rolled_back"]
    refusals = [event for event in events if event["kind"] == "refusal"]
    seen.lost |= {event["step"] for event in refusals}
    seen.said = " ".join([*map(_words, refusals), *(f"{e['cause']} {e['not_finite']}" for e in rollbacks), seen.error])
    return seen


def _words(event: Mapping[str, Any]) -> str:
    kinds = {"term": "terms", "group": "groups", "learning rate": "rates", "sample": "samples"}
    return "; ".join(f"{kind} {', '.join(event[key])}" for kind, key in kinds.items() if event[key])


def _train(run: Run, toy: Toy, kind: Kind, steps: Sequence[int], seen: Seen) -> None:
    run.track(**toy.kept(), groups={"model": toy.model})
    run.resume()
    for step in run.steps(STEPS):
        now = step.index in steps and not (kind.planted and step.index in seen.put_in)
        seen.put_in |= {step.index} if now else set()
        chosen = next(toy.order)
        inputs = kind.place(toy, toy.inputs[chosen]) if now and kind.when == "input" else toy.inputs[chosen]
        if now and kind.when == "before":
            kind.place(toy, None)
        errors = toy.errors(inputs, chosen)
        loss = kind.place(toy, errors.mean()) if now and kind.when == "loss" else errors.mean()
        terms = Terms(fit=(1.0, loss))
        toy.first.zero_grad()
        toy.second.zero_grad()
        terms.total.backward()
        if now and kind.when == "gradient":
            kind.place(toy, None)
        step.observe(terms, sample=[f"view {int(k)}" for k in chosen], sample_loss=errors)
        before = toy.bad()
        step.update(toy.first, toy.second)
        seen.spread += toy.bad() > before
        seen.lost -= {step.index}
        if "Guard/skipped" in step.numbers:
            seen.lost |= {step.index}
        toy.first.param_groups[0]["lr"] = 1e-2


def judge(kind: Kind, steps: Sequence[int], seen: Seen) -> list[str]:
    """Return what is wrong with a run; empty if it passed."""
    wrong = list[str]()
    bad = set(steps)
    if kind.planted and seen.error:  # without a good state to return to, the run must stop and say why
        return [] if kind.culprit in seen.error else [f"stopped without naming {kind.culprit}: {seen.error}"]
    if seen.error:
        wrong.append(f"stopped: {seen.error}")
    if seen.spread and not kind.planted:
        wrong.append(f"{seen.spread} updates spread it")
    if seen.bad_at_end:
        wrong.append(f"{seen.bad_at_end} tensors not finite at the end")
    if not kind.planted and not bad <= seen.lost:
        wrong.append(f"took the updates of {sorted(bad - seen.lost)}")
    if not kind.planted and len(bad) == 1 and seen.lost != bad:
        wrong.append(f"lost {sorted(seen.lost - bad)} besides")
    if kind.culprit not in seen.said:
        wrong.append(f"did not name {kind.culprit!r}: {seen.said[:200]}")
    return wrong


def run_injections(folder: Path, times: Iterable[str] = tuple(TIMES)) -> list[dict[str, Any]]:
    """Run every kind at some of the times; return one row per time."""
    rows = list[dict[str, Any]]()
    for time in times:
        failed = list[str]()
        for number, kind in enumerate(KINDS):
            seen = inject(folder / f"{number}-{time.replace(' ', '-')}", kind, TIMES[time])
            failed += [f"{kind.name}: {words}" for words in judge(kind, TIMES[time], seen)]
        held = len(KINDS) - len({words.partition(":")[0] for words in failed})
        rows.append(
            {
                "promise": "P8",
                "what": f"{len(KINDS)} kinds of non-finite values, {time}",
                "wanted": "no update spreads it, exact counts, culprit named",
                "found": f"{held} of {len(KINDS)}",
                "holds": not failed,
                "why": "; ".join(failed),
            }
        )
    return rows


def main() -> int:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only one time per kind")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        rows = run_injections(Path(folder), ("mid",) if quick else tuple(TIMES))
    for row in rows:
        print(f"{row['promise']}  {row['what']:58} {row['found']:9} {'holds' if row['holds'] else row['why']}")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
