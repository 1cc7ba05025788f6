"""Finite values that ruin a run: it rolls back, skips the bad steps, and then equals the run that never made them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forked import answer
from rows import Row, judged
from states import exact
from torch import Tensor, nn

from fieldwatch import Guard, Outputs, Rollback, Run, Saving, Shuffled, Terms, read_history
from fieldwatch.record import read_events

STEPS = 150
EVERY = 20
PATIENCE = 8
AT = 90
"""Step at which the spike begins."""


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A spike.

    Attributes:
        long: duration in steps.
        loss: factor on the loss.
        gradient: factor on the gradients.
        back: whether the run must roll back.
    """

    long: int
    loss: float = 1.0
    gradient: float = 1.0
    back: bool = True


SPIKES: Mapping[str, Spike] = {
    "a loss of 10,000 times its usual value for 12 steps": Spike(long=12, loss=1e4),
    "a loss of 50 times its usual value for 30 steps": Spike(long=30, loss=50.0),
    "one gradient of 100 million times its usual norm": Spike(long=1, gradient=1e8),
    "a loss of 10,000 times its usual value for 3 steps": Spike(long=3, loss=1e4, back=False),
    "a loss of 3 times its usual value for 40 steps": Spike(long=40, loss=3.0, back=False),
}


class Toy:
    """A small regression with dropout and shuffled batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.order = Shuffled(64, 8, seed=3)
        self._inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))

    def error(self) -> Tensor:
        """Return the loss of the next batch."""
        chosen = self._inputs[next(self.order)]
        return (self.model(chosen) - chosen.sum(1, keepdim=True) - 1).square().mean() + 0.1


def train(folder: Path, spike: Spike | None, skip: tuple[tuple[int, int], ...] = ()) -> dict[str, Any]:
    """Train with a spike, or with steps that are skipped from the start."""
    toy = Toy()
    options = Rollback(patience=PATIENCE, skip=skip)
    with Run(
        folder,
        saving=Saving(every=EVERY),
        guard=Guard(rollback=options, hang_timeout=None),
        outputs=Outputs(sinks=(), rules=()),
    ) as run:
        run.track(model=toy.model, optimizer=toy.optimizer, order=toy.order)
        run.resume()
        for step in run.steps(STEPS):
            now = spike is not None and AT <= step.index < AT + spike.long
            loss = toy.error() * (spike.loss if now and spike is not None else 1.0)
            toy.optimizer.zero_grad()
            loss.backward()
            if now and spike is not None and spike.gradient != 1.0:
                for parameter in toy.model.parameters():
                    parameter.grad = None if parameter.grad is None else parameter.grad * spike.gradient
            step.observe(Terms(fit=(1.0, loss)))
            step.update(toy.optimizer)
    record = read_history(folder)["Loss/total"]
    losses = {str(int(step)): float(value).hex() for step, value in zip(record.steps, record.values, strict=True)}
    told = [event["skipped"] for event in read_events(folder) if event["kind"] == "rolled_back"]
    return {
        "values": exact([list(toy.model.parameters()), toy.optimizer.state_dict()["state"]]),
        "losses": losses,
        "told": told,
    }


def trial(folder: Path, spike: Spike) -> str:
    """Return what went wrong with one spike; empty for nothing."""
    found = answer(lambda: train(folder / "spoiled", spike))
    if "raised" in found:
        return str(found["raised"])
    if not spike.back:
        return f"it went back: {found['told']}" if found["told"] else ""
    skipped = tuple((int(one[0]), int(one[1])) for one in found["told"] if one)
    if not skipped:
        return "it did not go back"
    bad = set(range(AT, AT + spike.long))
    spared = bad & {step for first, last in skipped for step in range(first, last + 1)}
    twin = answer(lambda: train(folder / "skipping", spike, skipped))
    if "raised" in twin:
        return str(twin["raised"])
    enough = min(PATIENCE, spike.long)  # a shorter stretch may recover by itself, also after a skipped one
    wrong = [f"skipped only {sorted(spared)}"] if len(spared) < enough else []
    wrong += [f"the run that skips from the start went back: {twin['told']}"] if twin["told"] else []
    wrong += ["other values at the end"] if found["values"] != twin["values"] else []
    unlike = [step for step, value in twin["losses"].items() if found["losses"].get(step) != value]
    wrong += [f"other losses from step {unlike[0]} on"] if unlike else []
    return ", ".join(wrong)


def run_spikes(folder: Path, names: tuple[str, ...] = tuple(SPIKES)) -> list[Row]:
    """Return the rows of P9."""
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's lazy imports happen once here, not after every fork
    rows = list[Row]()
    for number, name in enumerate(names):
        spike = SPIKES[name]
        (folder / str(number)).mkdir(parents=True)
        wrong = trial(folder / str(number), spike)
        wanted = "rolls back; bit-equal to the run that skips these steps" if spike.back else "left alone"
        rows.append(judged("P9", name, wanted, wrong or "as wanted", good=not wrong))
    return rows
