"""Strangers' loops that act, compare or imitate: kites, a sheepdog, gloves, and an apprentice."""

from collections import deque
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


class Scale:
    """Running mean and spread of observations."""

    def __init__(self, width: int) -> None:
        self.count = 1e-3
        self.mean = torch.zeros(width)
        self.square = torch.ones(width)

    def update(self, seen: Tensor) -> None:
        """Take observations into account, shape [count, width]."""
        self.count += len(seen)
        share = len(seen) / self.count
        self.mean = self.mean + share * (seen.mean(0) - self.mean)
        self.square = self.square + share * ((seen - self.mean).square().mean(0) - self.square)

    def __call__(self, seen: Tensor) -> Tensor:
        """Return the observations in standard scores."""
        return (seen - self.mean) / (self.square.sqrt() + 1e-6)


def kites(
    folder: Path,
    seed: int,
    *,
    scaled: str = "always",
    gusts: float = 2.0,
    baseline: bool = True,
    total: int = 120,
) -> float:
    """Learn to hold a kite at a height of 100 meters; returns the mean reward of a step when it flies without chance.

    Args:
        folder: run folder.
        seed: seed.
        scaled: when what is seen is brought to standard scores: "always", or "in training".
        gusts: spread of the wind.
        baseline: whether returns are compared with those of other games.
        total: number of updates.
    """
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))
    adam = torch.optim.Adam(actor.parameters(), lr=1e-2)
    scale = Scale(3)
    length = 12

    def flown(games: int, *, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        height = 100 + 30 * torch.randn(games)
        wind = torch.zeros(games)
        chances: list[Tensor] = []
        rewards: list[Tensor] = []
        seen: list[Tensor] = []
        for _ in range(length):
            view = torch.stack([height, wind, torch.full((games,), 1013.0) - height / 8], 1)
            seen.append(view)
            policy = torch.distributions.Categorical(
                logits=actor(scale(view) if training or scaled == "always" else view)
            )
            move = policy.sample() if training else policy.probs.argmax(1)
            chances.append(policy.log_prob(move))
            wind = 0.7 * wind + gusts * torch.randn(games)
            height = height + 10 * (move - 1) + wind
            rewards.append(-(height - 100).abs() / 20)
        return torch.stack(chances), torch.stack(rewards), torch.cat(seen)

    @torch.no_grad()
    def reward() -> float:
        return float(flown(300, training=False)[1].mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, adam=adam)
        run.resume()
        for step in run.steps(total):
            chances, rewards, seen = flown(48, training=True)
            scale.update(seen)
            ahead = rewards.flip(0).cumsum(0).flip(0)
            if baseline:
                ahead = (ahead - ahead.mean(1, keepdim=True)) / (ahead.std(1, keepdim=True) + 1e-6)
            loss = -(chances * ahead).mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(policy=(1.0, loss)))
            step.record({"Reward/mean": rewards.mean()})
            step.update(adam)
            if step.every(30):
                with run.evaluation("flights without chance"):
                    step.record({"eval/reward": reward()})
    return reward()


def sheepdog(
    folder: Path,
    seed: int,
    *,
    stored: str = "numbers",
    most: int = 60,
    figure: str = "reward",
    total: int = 160,
) -> float:
    """Learn the values of moves of a sheepdog from remembered ones; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        stored: what is stored of the values at the time of a move: the "numbers", or the "results" of the network.
        most: number of rounds that are remembered.
        figure: "reward" of the dog without chance, or "memory" for the negative number of MB of results that are kept.
        total: number of rounds.
    """
    torch.manual_seed(seed)
    values = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    late = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5))
    late.load_state_dict(values.state_dict())
    adam = torch.optim.Adam(values.parameters(), lr=3e-3)
    moves = torch.tensor([[0.0, 0.0], [0.3, 0.0], [-0.3, 0.0], [0.0, 0.3], [0.0, -0.3]])
    memory: deque[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = deque(maxlen=most)

    def moved(state: Tensor, move: Tensor) -> tuple[Tensor, Tensor]:
        dog = state[:, :2] + moves[move]
        sheep = state[:, 2:] + 0.05 * torch.randn(len(state), 2)
        return torch.cat([dog, sheep], 1), -(dog - sheep).norm(dim=1)

    @torch.no_grad()
    def reward() -> float:
        state = torch.randn(200, 4)
        gains = 0.0
        for _ in range(8):
            state, gain = moved(state, values(state).argmax(1))
            gains += float(gain.mean()) / 8
        return gains

    state = torch.randn(128, 4)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(values=values, late=late, adam=adam)
        run.resume()
        for step in run.steps(total):
            told = values(state)
            explore = max(0.1, 1 - step.index / (0.5 * total))
            chance = torch.rand(128) < explore
            move = torch.where(chance, torch.randint(5, (128,)), told.argmax(1))
            after, gain = moved(state, move)
            memory.append((state, move, gain, after, told if stored == "results" else told.detach()))
            state = torch.randn(128, 4) if step.every(8) else after
            old, chosen, gained, then, _ = memory[int(torch.randint(len(memory), (1,)))]
            with torch.no_grad():
                target = gained + 0.8 * late(then).amax(1)
            loss = functional.smooth_l1_loss(values(old)[torch.arange(128), chosen], target)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(value=(1.0, loss)))
            step.record({"surprise": torch.stack([entry[4].detach().std() for entry in memory]).mean()})
            step.update(adam)
            if step.every(10):
                late.load_state_dict(values.state_dict())
            if step.every(40):
                with run.evaluation("without chance"):
                    step.record({"eval/reward": reward()})
    if figure == "memory":
        # A result keeps the inputs of all three layers, and both activations.
        kept = sum(entry[4].grad_fn is not None for entry in memory)
        return -kept * 128 * (4 + 256 * 4) * 4 / 1e6
    return reward()


def gloves(
    folder: Path,
    seed: int,
    *,
    mined: str = "all",
    gallery: str = "others",
    figure: str = "recall",
    lr: float = 2e-3,
    spread: float = 1.2,
    total: int = 200,
) -> float:
    """Learn which pictures show the same glove; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        mined: which wrong gloves are compared: "all" of the batch, or the "nearest".
        gallery: among what the evaluation looks for the nearest picture: the "others", or "everything".
        figure: "recall" on new gloves, or "honesty" for its negative difference to the last one that was recorded.
        lr: learning rate.
        spread: spread of the pictures of one glove.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(331 * seed + 6)
    mix = torch.linalg.qr(torch.randn(40, 40, generator=draw))[0]
    cuts = torch.randn(90, 8, generator=draw)

    def pictures(glove: Tensor) -> Tensor:
        cut = cuts[glove] + spread * torch.randn(len(glove), 8, generator=draw) / 2
        light = 1.6 * torch.randn(len(glove), 32, generator=draw)
        return torch.cat([cut, light], 1) @ mix

    new = torch.arange(60, 90).repeat(8)
    new_x = pictures(new)
    net = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 16))
    adam = torch.optim.Adam(net.parameters(), lr=lr)

    @torch.no_grad()
    def recall(among: str) -> float:
        code = net(new_x)
        away = torch.cdist(code, code)
        if among == "others":
            away.fill_diagonal_(torch.inf)
        return float((new[away.argmin(1)] == new).float().mean())

    told = 0.0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            glove = torch.randperm(60)[:16].repeat_interleave(4)
            code = net(pictures(glove))
            away = (torch.cdist(code, code).square() + 1e-8).sqrt() if mined == "nearest" else torch.cdist(code, code)
            same = glove[:, None] == glove
            if mined == "nearest":
                far = away.masked_fill(~same, 0).amax(1)
                near = away.masked_fill(same, torch.inf).amin(1)
                loss = (far - near + 0.5).clamp(min=0).mean()
            else:
                pairs = away[:, :, None] - away[:, None, :] + 0.5
                wanted = same[:, :, None] & ~same[:, None, :] & ~torch.eye(64, dtype=torch.bool)[:, :, None]
                hard = pairs.clamp(min=0)[wanted]
                loss = hard.sum() / (hard > 0).sum().clamp(min=1)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(triplet=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                told = recall(gallery)
                with run.evaluation("new gloves"):
                    step.record({"val/recall_at_1": told})
    if figure == "honesty":
        return -abs(told - recall("others"))
    return recall("others")


def apprentice(
    folder: Path,
    seed: int,
    *,
    master: str = "eval",
    heat: float = 2.0,
    total: int = 400,
) -> float:
    """Teach a small network by a large one, on rows of few kinds at a time; returns its accuracy.

    Args:
        folder: run folder.
        seed: seed.
        master: mode of the teacher.
        heat: temperature.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(337 * seed + 1)
    middles = 0.9 * torch.randn(8, 12, generator=draw)

    def rows(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(8, (count,), generator=draw)
        return middles[kind] + 0.7 * torch.randn(count, 12, generator=draw), kind

    x, y = rows(1500)
    order = y.argsort()
    held_x, held_y = rows(500)
    teacher = nn.Sequential(nn.Linear(12, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 8))
    first = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(200):
        some = torch.randint(len(x), (64,))
        first.zero_grad()
        functional.cross_entropy(teacher(x[some]), y[some]).backward()
        first.step()
    teacher.requires_grad_(requires_grad=False)
    teacher.train(mode=master == "train")
    student = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))
    adam = torch.optim.Adam(student.parameters(), lr=3e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((student(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, teacher=teacher, adam=adam)
        run.resume()
        for step in run.steps(total):
            # A source sends rows of few kinds.
            start = int(torch.randint(len(x) - 120, (1,)))
            some = order[start + torch.randint(120, (24,))]
            wanted = (teacher(x[some]) / heat).log_softmax(1)
            found = (student(x[some]) / heat).log_softmax(1)
            loss = heat**2 * functional.kl_div(found, wanted, log_target=True, reduction="batchmean")
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(imitation=(1.0, loss)))
            step.update(adam)
            if step.every(55):
                with run.evaluation("other rows"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()
