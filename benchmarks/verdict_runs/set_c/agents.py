"""Agents, distilled glyphs, low-rank adapters, and layers that are unfrozen one after the other."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

from .pictures import GLYPHS, glyph_network, glyphs

HORIZON = 20


def ride(actor: nn.Module, carts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Push carts toward the middle of a line.

    Returns:
        States of shape [horizon, carts, 2], log-probabilities of the pushes and rewards of shape [horizon, carts].
    """
    state = torch.stack([2 * torch.rand(carts) - 1, torch.zeros(carts)], dim=1)
    states: list[Tensor] = []
    logs: list[Tensor] = []
    rewards: list[Tensor] = []
    for _ in range(HORIZON):
        push = torch.distributions.Normal(actor(state).squeeze(1), 0.4)
        action = push.sample()
        states.append(state)
        logs.append(push.log_prob(action))
        speed = (state[:, 1] + 0.3 * action.clamp(-1, 1)).clamp(-1, 1)
        place = (state[:, 0] + 0.3 * speed).clamp(-2, 2)
        state = torch.stack([place, speed], dim=1)
        rewards.append(-place.square() - 0.02 * action.square())
    return torch.stack(states), torch.stack(logs), torch.stack(rewards)


def steer(
    folder: Path,
    seed: int,
    *,
    scale: float = 1.0,
    sign: float = 1.0,
    shared_weight: float = 0.5,
    clip: float | None = 5.0,
    rate: float = 2e-2,
    total: int = 150,
) -> float:
    """Learn to steer by an actor and a critic that share a body; returns the mean return of a ride.

    Args:
        folder: run folder.
        seed: seed.
        scale: factor of the rewards.
        sign: sign of the advantages.
        shared_weight: weight of the critic's loss.
        clip: limit of the gradient norm.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
    push = nn.Linear(32, 1)
    value = nn.Linear(32, 1)
    actor = nn.Sequential(body, push)
    optimizer = torch.optim.SGD([*body.parameters(), *push.parameters(), *value.parameters()], lr=rate, momentum=0.9)

    @torch.no_grad()
    def gained() -> float:
        return float(ride(actor, 200)[2].sum(0).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(body=body, push=push, value=value, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            states, logs, rewards = ride(actor, 24)
            reward = scale * rewards
            returns = reward.flip(0).cumsum(0).flip(0)
            guess = value(body(states)).squeeze(2)
            advantage = sign * (returns - guess).detach()
            advantage = advantage / max(scale, 1.0) if shared_weight < 1e-3 else advantage
            terms = Terms(
                actor=(1.0, -(logs * advantage).mean()), critic=(shared_weight, (guess - returns).square().mean())
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Rollout/return": reward.sum(0).mean()})
            step.update(optimizer, clip=clip)
            if step.every(30):
                with run.evaluation("rides"):
                    step.record({"Eval/return": gained()})
    return gained()


FIELDS = 9


def corridor(
    folder: Path,
    seed: int,
    *,
    discount: float = 0.9,
    ends: bool = True,
    rate: float = 5e-3,
    every: int = 20,
    total: int = 300,
) -> float:
    """Learn the values of a corridor by Q-learning with a target network; returns the share of right moves.

    It is 0 if a value exceeds the largest return, 1, by half.

    Args:
        folder: run folder.
        seed: seed.
        discount: discount of later rewards.
        ends: whether the value of the field after the end is zero.
        rate: learning rate.
        every: steps between copies into the target network.
        total: number of steps.
    """
    torch.manual_seed(seed)
    online = nn.Sequential(nn.Linear(FIELDS, 32), nn.ReLU(), nn.Linear(32, 2))
    target = copy.deepcopy(online).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(online.parameters(), lr=rate)
    fields = torch.eye(FIELDS)

    @torch.no_grad()
    def right() -> float:
        # One step right costs 0.02; the end on the right gives 1, that on the left 0.2.
        known = online(fields)[1:-1]
        best = torch.tensor([discount ** (FIELDS - 2 - k) > 0.2 * discount**k for k in range(FIELDS - 2)])
        moves = float((known.argmax(1).bool() == best).float().mean())
        return moves if float(known.abs().max()) < 1.5 else 0.0

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(online=online, target=target, optimizer=optimizer, groups={"online": online})
        run.resume()
        for step in run.steps(total):
            if step.index % every == 0:
                target.load_state_dict(online.state_dict())
            place = torch.randint(1, FIELDS - 1, (64,))
            move = torch.randint(2, (64,))
            after = place + 2 * move - 1
            won = (after == FIELDS - 1).float() + 0.2 * (after == 0).float()
            over = (after == 0) | (after == FIELDS - 1)
            with torch.no_grad():
                later = target(fields[after]).max(1).values
                wanted = won + discount * torch.where(over & torch.tensor(ends), 0.0, later)
            guess = online(fields[place]).gather(1, move[:, None]).squeeze(1)
            loss = functional.mse_loss(guess, wanted)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(temporal_difference=(1.0, loss)))
            step.record({"Q/largest": guess.abs().max()})
            step.update(optimizer)
            if step.every(60):
                with run.evaluation("moves"):
                    step.record({"Eval/right_moves": right()})
    return right()


def taught(seed: int, steps: int) -> nn.Module:
    """Train a teacher on glyphs without a record."""
    torch.manual_seed(seed)
    x, y = glyphs(seed, 800)
    teacher = glyph_network()
    adam = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(steps):
        i = torch.randint(800, (48,))
        loss = functional.cross_entropy(teacher(x[i]), y[i])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return teacher.eval().requires_grad_(requires_grad=False)


def distill(
    folder: Path, seed: int, *, teacher_steps: int = 90, rate: float = 3e-3, soft: float = 4.0, total: int = 200
) -> float:
    """Distill a teacher into a perceptron, from unlabeled glyphs; returns its accuracy.

    Args:
        folder: run folder.
        seed: seed.
        teacher_steps: number of steps that the teacher was trained; 0 for one that was never loaded.
        rate: learning rate.
        soft: temperature.
        total: number of steps.
    """
    teacher = taught(seed, teacher_steps)
    x, _ = glyphs(seed, 1200, salt=5)
    held_x, held_y = glyphs(seed, 300, salt=2)
    student = nn.Sequential(nn.Flatten(), nn.Linear(196, 128), nn.ReLU(), nn.Linear(128, GLYPHS))
    adam = torch.optim.Adam(student.parameters(), lr=rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)

    @torch.no_grad()
    def accuracy() -> float:
        return float((student(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, adam=adam, cosine=cosine)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(1200, (64,))
            with torch.no_grad():
                wanted = (teacher(x[i]) / soft).softmax(1)
            loss = soft**2 * functional.kl_div((student(x[i]) / soft).log_softmax(1), wanted, reduction="batchmean")
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(imitation=(1.0, loss)))
            step.update(adam)
            cosine.step()
            if step.every(50):
                with run.evaluation("student"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank addition (Hu et al. 2021).

    Args:
        linear: the layer.
        rank: rank of the addition.
        zero: whether both of its factors are zero at the start, instead of one.
    """

    def __init__(self, linear: nn.Linear, rank: int, *, zero: bool) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(
            torch.zeros(rank, linear.in_features) if zero else torch.randn(rank, linear.in_features) / 8
        )
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with the addition."""
        return self.linear(x) + x @ self.down.T @ self.up.T


def adapt(folder: Path, seed: int, *, zero: bool = False, rate: float = 1e-2, total: int = 150) -> float:
    """Adapt a perceptron to glyphs whose classes were exchanged; returns its accuracy.

    Args:
        folder: run folder.
        seed: seed.
        zero: whether both factors of the additions are zero at the start.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = glyphs(seed, 1000)
    held_x, held_y = glyphs(seed, 300, salt=2)
    base = nn.Sequential(nn.Flatten(), nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, GLYPHS))
    before = torch.optim.Adam(base.parameters(), lr=3e-3)
    for _ in range(80):
        i = torch.randint(1000, (64,))
        old = functional.cross_entropy(base(x[i]), y[i])
        before.zero_grad()
        old.backward()
        before.step()
    layers = [layer for layer in base if isinstance(layer, nn.Linear)]
    model = nn.Sequential(nn.Flatten(), Adapter(layers[0], 8, zero=zero), nn.ReLU(), Adapter(layers[1], 8, zero=zero))
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(adapters, lr=rate)
    moved = (y * 3 + 1) % GLYPHS
    held_moved = (held_y * 3 + 1) % GLYPHS

    @torch.no_grad()
    def accuracy() -> float:
        return float((model(held_x).argmax(1) == held_moved).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, groups={"adapters": adapters})
        run.resume()
        for step in run.steps(total):
            i = torch.randint(1000, (48,))
            loss = functional.cross_entropy(model(x[i]), moved[i])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(cross_entropy=(1.0, loss)))
            step.update(optimizer)
            if step.every(30):
                with run.evaluation("classes"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()


def unfreeze(folder: Path, seed: int, *, rate: float = 3e-3, total: int = 180) -> float:
    """Unfreeze a taught network from its head to its first layer; returns its accuracy on exchanged classes.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        total: number of steps.
    """
    network = taught(seed, 60)
    torch.manual_seed(seed + 1)
    x, y = glyphs(seed, 1000, salt=7)
    held_x, held_y = glyphs(seed, 300, salt=2)
    assert isinstance(network, nn.Sequential)  # noqa: S101  the network of glyphs
    network[7] = nn.Linear(24 * 16, 2)
    optimizer = torch.optim.AdamW(network[7].parameters(), lr=rate)

    @torch.no_grad()
    def accuracy() -> float:
        return float((network(held_x).argmax(1) == held_y % 2).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(network=network, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            for at, layer in ((60, network[3]), (120, network[0])):
                if step.index == at:
                    layer.requires_grad_(requires_grad=True)
                    optimizer.add_param_group({"params": [*layer.parameters()], "lr": rate / 5})
            i = torch.randint(1000, (48,))
            loss = functional.cross_entropy(network(x[i]), y[i] % 2)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(cross_entropy=(1.0, loss)))
            step.update(optimizer)
            if step.every(30):
                with run.evaluation("classes"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()
