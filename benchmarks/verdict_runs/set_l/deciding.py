"""Loops of strangers: one learns to steer a canoe down a river, the other tells buoys apart by their sound."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


class Canoes:
    """Canoes on a river: a stroke changes how fast a canoe drifts, and only then where it is.

    Attributes:
        state: how far each is from the middle, how fast it drifts, and the current there, shape [count, 3].
    """

    def __init__(self, count: int) -> None:
        self.state = torch.stack([3 * torch.rand(count) - 1.5, torch.zeros(count), 0.1 * torch.randn(count)], 1)

    def move(self, stroke: Tensor) -> Tensor:
        """Move all by a stroke to the left, none, or one to the right; return the rewards."""
        place, drift, current = self.state.unbind(1)
        place = (place + 0.4 * drift).clamp(-3, 3)
        drift = 0.8 * drift + 0.35 * (stroke.float() - 1) + 0.3 * current
        current = 0.9 * current + 0.05 * torch.randn(len(place))
        self.state = torch.stack([place, drift, current], 1)
        return 1 - place.square()


MOVES = 24
"""Moves of a trip."""


def rapids(
    folder: Path,
    seed: int,
    *,
    objective: str = "reward",
    discount: float = 0.95,
    surprise: float = 0.01,
    value_weight: float = 0.5,
    lr: float = 5e-3,
    total: int = 160,
) -> float:
    """Steer canoes by a policy gradient; returns the share of the later moves near the middle of the river.

    Args:
        folder: run folder.
        seed: seed.
        objective: what rises: the "reward", or by a wrong sign the "loss" of it.
        discount: discount of later rewards.
        surprise: weight of the entropy of the strokes.
        value_weight: weight of the loss of the values.
        lr: learning rate.
        total: number of updates.
    """
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 3))
    critic = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=lr)
    sign = 1.0 if objective == "reward" else -1.0

    @torch.no_grad()
    def near() -> float:
        canoes = Canoes(200)
        kept: list[Tensor] = []
        for i in range(MOVES):
            canoes.move(actor(canoes.state).argmax(1))
            if i >= MOVES // 2:
                kept.append((canoes.state[:, 0].abs() < 0.5).float())
        return float(torch.stack(kept).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, critic=critic, adam=adam)
        run.resume()
        for step in run.steps(total):
            canoes = Canoes(32)
            states: list[Tensor] = []
            strokes: list[Tensor] = []
            rewards: list[Tensor] = []
            for _ in range(MOVES):
                states.append(canoes.state)
                with torch.no_grad():
                    strokes.append(torch.distributions.Categorical(logits=actor(canoes.state)).sample())
                rewards.append(canoes.move(strokes[-1]))
            later = torch.zeros(32)
            returns: list[Tensor] = []
            for reward in reversed(rewards):
                later = reward + discount * later
                returns.insert(0, later)
            state = torch.cat(states)
            result = torch.cat(returns) * 0.1
            policy = torch.distributions.Categorical(logits=actor(state))
            value = critic(state)[:, 0]
            better = result - value.detach()
            terms = Terms(
                policy=(sign, -(policy.log_prob(torch.cat(strokes)) * better).mean()),
                value=(value_weight, (value - result).square().mean()),
                entropy=(surprise, -policy.entropy().mean()),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"episode/reward": torch.stack(rewards).mean()})
            step.update(adam)
    return near()


LENGTH = 32
"""Seconds of a window."""
KINDS = 4
"""Kinds of buoys."""


def windows_of(recordings: int, each: int, own: float, noise: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return windows of recordings of buoys, shape [recordings * each, LENGTH, 2], and their kinds, in the same order.

    Args:
        recordings: number of recordings.
        each: windows of each of them.
        own: how much recordings of a kind differ.
        noise: spread of the noise.
        draw: generator.
    """
    kind = torch.randint(KINDS, (recordings,), generator=draw)
    time = torch.arange(LENGTH)
    # A buoy has a pitch and a beat of its own beside those of its kind.
    pitch = 0.5 + 0.22 * kind + 0.08 * own * torch.randn(recordings, generator=draw)
    beat = 0.12 + 0.08 * torch.rand(recordings, generator=draw)
    tilt = own * torch.randn(recordings, 2, generator=draw)
    start = 6.2832 * torch.rand(recordings, each, 1, generator=draw)
    sound = (pitch[:, None, None] * time + start).sin() * (1 + 0.5 * (beat[:, None, None] * time).cos())
    echo = (pitch[:, None, None] * time + start + 0.6 * kind[:, None, None]).sin()
    x = torch.stack([sound, echo], -1) + 0.3 * tilt[:, None, None]
    x = x + noise * torch.randn(x.shape, generator=draw)
    return x.flatten(0, 1), kind.repeat_interleave(each)


class Listener(nn.Module):
    """Names buoys by a plain recurrent network.

    Attributes:
        loops: recurrent layers.
    """

    def __init__(self, unit: str, gain: float, parts: str) -> None:
        super().__init__()
        rows = [nn.RNN(2, 40, nonlinearity=unit, batch_first=True), nn.RNN(40, 40, nonlinearity=unit, batch_first=True)]
        for layer in rows:
            nn.init.orthogonal_(layer.get_parameter("weight_hh_l0"), gain)
        self.loops = nn.ModuleList(rows) if parts == "registered" else rows
        self.out = nn.Linear(40, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the kinds of windows."""
        for loop in self.loops:
            x, _ = loop(x)
        return self.out(x[:, -1])


def buoys(
    folder: Path,
    seed: int,
    *,
    unit: str = "tanh",
    gain: float = 0.9,
    limit: float = 1.0,
    parts: str = "registered",
    order: str = "shuffled",
    split: str = "by recording",
    own: float = 1.0,
    noise: float = 0.3,
    recordings: int = 300,
    lr: float = 2e-3,
    figure: str = "accuracy",
    epochs: int = 12,
) -> float:
    """Tell kinds of buoys by their sound; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        unit: "tanh" or "relu".
        gain: size of the first recurrent weights.
        limit: norm to which gradients are clipped; 0 for none.
        parts: whether the layers are "registered", or in a "list" of Python.
        order: order of the windows: "shuffled", "by kind", or the "first batch" at each step.
        split: whether windows to validate on are held out "by recording", or at random "by window".
        own: how much recordings of a kind differ.
        noise: spread of the noise.
        recordings: number of recordings.
        lr: learning rate.
        figure: "accuracy" for other recordings, or "honesty" for that less the one of the validation, 0 at most.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(601 * seed + 5)
    x, y = windows_of(recordings, 6, own, noise, draw)
    test_x, test_y = windows_of(300, 2, own, noise, draw)
    apart = torch.arange(len(x)) % 6 == 0 if split == "by window" else torch.arange(len(x)) // 6 % 6 == 0
    check_x, check_y = x[apart], y[apart]
    x, y = x[~apart], y[~apart]
    if order == "by kind":
        sorted_ = y.argsort(stable=True)
        x, y = x[sorted_], y[sorted_]
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=order == "shuffled")
    model = Listener(unit, gain, parts)
    adam = torch.optim.Adam(model.parameters(), lr=lr)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(epochs):
            for batch in loader:
                yield next(iter(loader)) if order == "first batch" else batch

    @torch.no_grad()
    def accuracy(sounds: Tensor, kinds: Tensor) -> float:
        return float((model(sounds).argmax(1) == kinds).float().mean())

    total = epochs * len(loader)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam)
        run.resume()
        for step, (sounds, kinds) in zip(run.steps(total), batches(), strict=False):
            loss = functional.cross_entropy(model(sounds), kinds)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(entropy=(1.0, loss)))
            step.update(adam, clip=limit or math.inf)
            if step.every(len(loader)):
                with run.evaluation("validation"):
                    step.record({"val/accuracy": accuracy(check_x, check_y)})
    if figure == "honesty":
        return min(0.0, accuracy(test_x, test_y) - accuracy(check_x, check_y))
    return accuracy(test_x, test_y)
