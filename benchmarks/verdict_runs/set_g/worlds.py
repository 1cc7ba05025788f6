"""Worlds: a taxi that learns by itself, drains that flow together, a membrane that sags."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

Array = np.ndarray
BLOCKS = 5
MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Town:
    """Sixteen taxis on a square of streets, each with a near fare of 1 and a far one of 10.

    Args:
        seed: seed.
        count: number of taxis.
    """

    def __init__(self, seed: int, count: int = 16) -> None:
        self.draw = np.random.default_rng(seed)
        self.state = np.zeros((count, 6), np.float32)
        self.age = np.zeros(count, np.int64)
        for i in range(count):
            self.reset(i)

    def reset(self, i: int) -> None:
        """Begin anew."""
        self.state[i] = self.draw.integers(0, BLOCKS, 6)
        self.age[i] = 0

    def step(self, action: Array) -> tuple[Array, Array, Array]:
        """Drive; returns what the taxis see, the rewards, and whether a tour is over, before a new one begins."""
        self.state[:, :2] = np.clip(self.state[:, :2] + MOVES[action], 0, BLOCKS - 1)
        self.age += 1
        near = (self.state[:, :2] == self.state[:, 2:4]).all(1)
        far = (self.state[:, :2] == self.state[:, 4:]).all(1)
        reward = np.where(far, 10.0, np.where(near, 1.0, -0.2)).astype(np.float32)
        return self.state, reward, near | far

    def renew(self, over: Array) -> None:
        """Begin anew where a tour is over or too long."""
        for i in np.flatnonzero(over | (self.age >= 14)):
            self.reset(int(i))


def taxi(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-3,
    stored: str = "copies",
    rewards: str = "as paid",
    gamma: float = 0.95,
    double: bool = True,
    start: int = 30,
    total: int = 1100,
) -> float:
    """Learn to drive by Q-learning from a memory; returns the mean return of held-out tours.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        stored: what the memory holds of a state: "copies", or "references" to the array that the town changes.
        rewards: "as paid", or "signs" of them.
        gamma: discount.
        double: whether the online network chooses the move that the slow one values.
        start: steps before the first update.
        total: number of steps.
    """
    torch.manual_seed(seed)
    town = Town(seed)
    net = nn.Sequential(nn.Linear(6 * BLOCKS, 128), nn.ReLU(), nn.Linear(128, 96), nn.ReLU(), nn.Linear(96, 4))
    slow = copy.deepcopy(net).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    memory: list[tuple[Array, Array, Array, Array, Array]] = []

    def seen(state: Array) -> Tensor:
        return functional.one_hot(torch.from_numpy(state).long(), BLOCKS).flatten(-2).float()

    @torch.no_grad()
    def mean_return() -> float:
        test = Town(999, 150)
        alive = np.ones(150, bool)
        earned = np.zeros(150)
        for _ in range(14):
            _, reward, over = test.step(net(seen(test.state)).argmax(1).numpy())
            earned += reward * alive
            alive &= ~over
        return float(earned.mean())

    def remembered() -> Terms:
        which = torch.randint(len(memory), (8,)).tolist()
        state, action, reward, after, over = (np.concatenate([memory[i][k] for i in which]) for k in range(5))
        now = net(seen(state)).gather(1, torch.from_numpy(action)[:, None])[:, 0]
        with torch.no_grad():
            later = slow(seen(after))
            best = (net if double else slow)(seen(after)).argmax(1, keepdim=True)
            goal = torch.from_numpy(reward) + gamma * later.gather(1, best)[:, 0] * torch.from_numpy(~over)
        return Terms(td=(1.0, functional.smooth_l1_loss(now, goal)))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, slow=slow, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            state = town.state if stored == "references" else town.state.copy()
            with torch.no_grad():
                action = net(seen(state)).argmax(1).numpy()
            lost = town.draw.random(len(action)) < max(0.1, 1 - step.index / 500)
            action = np.where(lost, town.draw.integers(0, 4, len(action)), action)
            after, reward, over = town.step(action)
            paid = np.sign(reward).astype(np.float32) if rewards == "signs" else reward
            memory.append((state, action, paid, after if stored == "references" else after.copy(), over.copy()))
            town.renew(over)
            if len(memory) > start:
                terms = remembered()
                optimizer.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(optimizer, clip=10.0)
                with torch.no_grad():
                    for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                        old.lerp_(new, 0.02)
            step.record({"Rollout/reward": float(reward.mean())})
            if step.every(220):
                with run.evaluation("tours"):
                    step.record({"Eval/return": mean_return()})
    return mean_return()


PLACES = 14


def drained(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rain at places [14, 3], streams [2, 13] from a place to a lower one, and the flow at each place."""
    rain = torch.rand(PLACES, 3, generator=draw)
    lower = torch.tensor([int(torch.randint(max(0, i - 4), i, (), generator=draw)) for i in range(1, PLACES)])
    streams = torch.stack([torch.arange(1, PLACES), lower])
    flow = rain[:, 0] * (0.3 + rain[:, 1])
    for i in range(PLACES - 1, 0, -1):
        flow[lower[i - 1]] += 0.7 * flow[i]
    return rain, streams, flow


class Flow(nn.Module):
    """Sends messages along streams, several times over."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Linear(3, 32)
        self.send = nn.Linear(32, 32)
        self.take = nn.GRUCell(32, 32)
        self.read = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, rain: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return the flow at each place, shape [n]."""
        h = self.begin(rain).relu()
        for _ in range(6):
            arrived = torch.zeros_like(h).index_add(0, target, self.send(h).relu()[source])
            h = self.take(arrived, h)
        return self.read(h)[:, 0]


def drains(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    direction: str = "down",
    numbered: str = "on",
    parts: int = 1,
    total: int = 220,
) -> float:
    """Predict the flow in drains; returns the explained variance of held-out drains.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        direction: where messages go: "down" the streams, or "up" by two rows that are exchanged.
        numbered: numbers of the places of a batch of drains: "on" from drain to drain, or "anew" in each.
        parts: batches in an update.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(101 * seed + 6)
    known = [drained(draw) for _ in range(300)]
    held = [drained(draw) for _ in range(60)]
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def together(some: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        moved = [one[1] + (PLACES * i if numbered == "on" else 0) for i, one in enumerate(some)]
        source, target = torch.cat(moved, 1)
        if direction == "up":
            source, target = target, source
        found = model(torch.cat([one[0] for one in some]), source, target)
        return found, torch.cat([one[2] for one in some])

    @torch.no_grad()
    def explained() -> float:
        found, wanted = together(held)
        return 1 - float((found - wanted).square().mean() / wanted.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            optimizer.zero_grad()
            losses: list[tuple[float, Terms]] = []
            for _ in range(parts):
                found, wanted = together([known[i] for i in torch.randint(len(known), (16 // parts,)).tolist()])
                terms = Terms(flow=(1.0, functional.l1_loss(found, wanted)))
                (terms.total / parts).backward()
                losses.append((1 / parts, terms.detach()))
            step.observe(Terms.merged(losses))
            step.update(optimizer, clip=5.0)
            if step.every(44):
                with run.evaluation("held-out drains"):
                    step.record({"Test/explained": explained()})
    return explained()


def membrane(
    folder: Path,
    seed: int,
    *,
    lr: float = 6e-3,
    apart: float = 2e-2,
    edge: str = "edge",
    weight: float = 5.0,
    finish: int = 0,
    total: int = 450,
) -> float:
    """Find how a membrane sags under a load, with differences for derivatives; returns the negative relative error.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        apart: distance of the points of a difference.
        edge: where the points lie at which the membrane is held: on the "edge", or "anywhere".
        weight: weight of the edge.
        finish: updates of LBFGS at the end.
        total: number of steps before these.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    lbfgs = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=8)
    axis = torch.linspace(0, 1, 25)
    grid = torch.cartesian_prod(axis, axis)

    def sag(x: Tensor) -> Tensor:
        return net(5 * (x - 0.5))[:, 0]

    def truth(x: Tensor) -> Tensor:
        return (3.1416 * x[:, 0]).sin() * (6.2832 * x[:, 1]).sin()

    shifts = apart * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])

    def terms_at(inner: Tensor, outer: Tensor) -> Terms:
        around = sag((inner[:, None] + shifts).flatten(0, 1)).view(len(inner), 4).sum(1)
        curved = (around - 4 * sag(inner)) / apart**2
        load = -5 * 3.1416**2 * truth(inner)
        # Both are divided by the size of the load.
        return Terms(equation=(1.0, ((curved - load) / 50).square().mean()), edge=(weight, sag(outer).square().mean()))

    def points() -> tuple[Tensor, Tensor]:
        outer = torch.rand(64, 2)
        if edge == "edge":
            side = torch.randint(2, (64,))
            outer[torch.arange(64), side] = torch.randint(2, (64,)).float()
        return torch.rand(160, 2), outer

    @torch.no_grad()
    def error() -> float:
        wanted = truth(grid)
        return float((sag(grid) - wanted).norm() / wanted.norm())

    kept: dict[str, Any] = {"lbfgs": lbfgs} if finish else {}
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, **kept)
        run.resume()
        fixed = points()
        for step in run.steps(total + finish):
            if step.index >= total:

                def closure() -> Terms:
                    lbfgs.zero_grad()
                    terms = terms_at(*fixed)
                    terms.total.backward()
                    return terms

                step.update(lbfgs, closure=closure)
            else:
                terms = terms_at(*points())
                adam.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(adam)
            if step.every(90):
                with run.evaluation("grid"):
                    step.record({"Eval/relative_error": error()})
    return -error()
