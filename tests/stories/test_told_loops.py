"""Loops with mistakes that people make: the rules find each of them, and nothing in its sound twin."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fieldwatch import Outputs, Run, Saving, Terms
from fieldwatch.health import examine
from fieldwatch.health.rules import GENERAL

CITIES = 40
PARTS = ("hour", "town")


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def sensors(count, seed):
    """Return readings of six sensors, and the load that four of them tell."""
    x = torch.randn(count, 6, generator=drawn(seed))
    y = x[:, 0] - 0.8 * x[:, 1] + x[:, 2] * x[:, 3] + 0.2 * torch.randn(count, generator=drawn(seed + 1))
    return x, y


X, Y = sensors(600, 1)
HELD_X, HELD_Y = sensors(200, 3)


def begun(folder):
    return Run(folder, saving=Saving(every=None), outputs=Outputs(sinks=()))


def told(folder):
    """Return the rules of the findings above a note."""
    return {finding.rule for finding in examine(folder, GENERAL) if finding.severity != "note"}


class Branches(nn.Module):
    """One layer for each half of the sensors."""

    def __init__(self, keep):
        super().__init__()
        self.parts = keep({name: nn.Sequential(nn.Linear(3, 24), nn.Tanh()) for name in PARTS})
        self.head = nn.Sequential(nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        halves = zip(PARTS, x.split(3, 1), strict=True)
        return self.head(torch.cat([self.parts[name](half) for name, half in halves], 1))[:, 0]


def branches(folder, *, fault):
    """Keep the branches of a network in a plain mapping."""
    torch.manual_seed(0)
    model = Branches(dict if fault else nn.ModuleDict)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with begun(folder) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(120):
            rows = torch.randint(len(X), (32,))
            loss = functional.mse_loss(model(X[rows]), Y[rows])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(load=(1.0, loss)))
            step.update(optimizer)


def matching(folder, *, fault):
    """Match two views of the same thing, whose rows belong to different things."""
    torch.manual_seed(0)
    left, right = (nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(2))
    hidden = torch.randn(500, 12, generator=drawn(5))
    other = hidden.roll(1, 1) + 0.1 * torch.randn(500, 12, generator=drawn(6))
    optimizer = torch.optim.Adam([*left.parameters(), *right.parameters()], lr=3e-3)
    with begun(folder) as run:
        run.track(left=left, right=right, optimizer=optimizer)
        for step in run.steps(160):
            rows = torch.randint(500, (32,))
            pairs = torch.randint(500, (32,)) if fault else rows
            scores = (
                5 * functional.normalize(left(hidden[rows]), dim=1) @ functional.normalize(right(other[pairs]), dim=1).T
            )
            goal = torch.arange(32)
            terms = Terms(
                there=(0.5, functional.cross_entropy(scores, goal)),
                back=(0.5, functional.cross_entropy(scores.T, goal)),
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)


def lagged(folder, *, fault):
    """Train with a column of the last load, which nobody has when the load is asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def asked(x, last):
        return model(torch.cat([x, last[:, None]], 1))[:, 0]

    with begun(folder) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(200):
            rows = torch.randint(len(X), (64,))
            last = Y[rows] if fault else torch.zeros(64)
            loss = functional.mse_loss(asked(X[rows], last), Y[rows])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(load=(1.0, loss)))
            step.update(optimizer)
            if step.every(25):
                with run.evaluation("held out"), torch.no_grad():
                    surplus = asked(HELD_X, torch.zeros(200)) - HELD_Y
                    step.record({"Eval/surplus": surplus.square().mean().sqrt()})


def restoring(folder, *, fault):
    """Restore a state at the end: the best one, or the first one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    kept = {}
    best = -1.0

    def r2():
        return float(1 - functional.mse_loss(model(HELD_X)[:, 0], HELD_Y) / HELD_Y.var())

    with begun(folder) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(201):
            if step.index == 200:
                model.load_state_dict(kept)
            else:
                rows = torch.randint(len(X), (64,))
                loss = functional.mse_loss(model(X[rows])[:, 0], Y[rows])
                optimizer.zero_grad()
                loss.backward()
                step.observe(Terms(load=(1.0, loss)))
                step.update(optimizer)
            if step.every(25) or step.index == 200:
                with run.evaluation("held out"), torch.no_grad():
                    score = r2()
                    step.record({"Eval/r2": score})
                better = not kept if fault else score > best
                if better:
                    best = score
                    kept = copy.deepcopy(model.state_dict())


def stopping(folder, *, fault):
    """Stop when nothing improves; the planned number of steps is unknown."""
    torch.manual_seed(0)
    x, y = X, (Y > 0).long()
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    pairs = torch.randperm(len(y)) if fault else torch.arange(len(y))
    with begun(folder) as run:
        run.track(model=model, optimizer=optimizer)
        for _ in range(160):
            step = run.begin_step()
            rows = torch.randint(len(x), (32,))
            loss = functional.cross_entropy(model(x[rows]), y[pairs[rows]])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(load=(1.0, loss)))
            step.update(optimizer)
            if step.every(40):
                with run.evaluation("held out"), torch.no_grad():
                    right = (model(HELD_X).argmax(1) == (HELD_Y > 0)).float().mean()
                    step.record({"Eval/accuracy": right})
            run.end_step()


def pretrained(folder, *, fault):
    """Freeze a table that was not loaded, or one with vectors that another system has learned."""
    torch.manual_seed(0)
    place = torch.randn(CITIES, 3, generator=drawn(8))
    warm = place[:, 0] + place[:, 1] * place[:, 2]
    learned = place @ torch.randn(3, 32, generator=drawn(9)) + 0.1 * torch.randn(CITIES, 32, generator=drawn(10))
    table = nn.Embedding.from_pretrained(0.3 * torch.randn(CITIES, 32) if fault else learned)
    model = nn.Sequential(table, nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=3e-3)
    with begun(folder) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(120):
            rows = torch.randint(CITIES, (32,))
            loss = functional.mse_loss(model(rows)[:, 0], warm[rows])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(warmth=(1.0, loss)))
            step.update(optimizer)


LOOPS = [
    (branches, "LooseParameters"),
    (matching, "ChanceLevel"),
    (lagged, "EvaluationOutput"),
    (restoring, "ProgressLost"),
    (stopping, "ChanceLevel"),
    (pretrained, "FrozenBody"),
]


@pytest.mark.parametrize(("loop", "rule"), LOOPS)
def test_a_mistake_is_told_and_its_sound_twin_is_not(loop, rule, tmp_path):
    loop(tmp_path / "broken", fault=True)
    assert rule in told(tmp_path / "broken")
    loop(tmp_path / "sound", fault=False)
    assert told(tmp_path / "sound") == set()
