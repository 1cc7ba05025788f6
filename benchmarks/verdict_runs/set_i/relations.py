"""Strangers' loops on graphs, pairs, teachers, sounds and games: a parish, sigils, an understudy, foghorns, a kiosk."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Declared, Run, Terms
from verdict_runs.supervised import NO_SINKS


def parish(
    folder: Path,
    seed: int,
    *,
    edges_by: str = "transposing",
    thinned: float = 0.0,
    total: int = 160,
) -> float:
    """Tell the guild of people from whom they know; returns the accuracy for people without a label.

    Args:
        folder: run folder.
        seed: seed.
        edges_by: how the list of pairs becomes two rows: by "transposing" or by "viewing".
        thinned: share of the edges left out at each step.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(173 * seed + 6)
    count = 300
    guild = torch.randint(4, (count,), generator=draw)
    chance = torch.where(guild[:, None] == guild[None], 0.06, 0.004)
    pairs = (torch.rand(count, count, generator=draw) < chance).triu(1).nonzero()
    pairs = torch.cat([pairs, pairs.flip(1)])
    pairs = pairs[torch.randperm(len(pairs), generator=draw)]
    edge_index = pairs.t() if edges_by == "transposing" else pairs.reshape(2, -1)
    features = functional.one_hot(guild, 4) + 1.2 * torch.randn(count, 4, generator=draw)
    labeled = torch.rand(count, generator=draw) < 0.25

    class Convolution(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.own = nn.Linear(inputs, outputs)
            self.others = nn.Linear(inputs, outputs)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            source, to = edges
            heard = torch.zeros_like(x).index_add(0, to, x[source])
            known = torch.zeros(len(x), 1).index_add(0, to, torch.ones(len(to), 1)).clamp(min=1)
            return self.own(x) + self.others(heard / known)

    class Gnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = Convolution(4, 24)
            self.two = Convolution(24, 4)

        def forward(self, edges: Tensor) -> Tensor:
            return self.two(self.one(features, edges).relu(), edges)

    gnn = Gnn()
    optimizer = torch.optim.Adam(gnn.parameters(), lr=1e-2, weight_decay=5e-3)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(gnn=gnn, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            edges = edge_index[:, torch.rand(edge_index.shape[1]) >= thinned]
            logits = gnn(edges)
            loss = functional.cross_entropy(logits[labeled], guild[labeled])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(guild=(1.0, loss)))
            step.update(optimizer)
            if step.every(40):
                with run.evaluation("people without a label"), torch.no_grad():
                    right = gnn(edge_index).argmax(1) == guild
                    step.record({"accuracy/others": float(right[~labeled].float().mean())})
    with torch.no_grad():
        return float((gnn(edge_index).argmax(1) == guild)[~labeled].float().mean())


def sigils(folder: Path, seed: int, *, partner: str = "other view", heat: float = 0.2, total: int = 250) -> float:
    """Learn without labels what two drawings of a sigil have in common; returns the accuracy of the nearest neighbor.

    Args:
        folder: run folder.
        seed: seed.
        partner: which entry of the doubled batch each one is to find: its "other view", or "itself".
        heat: temperature.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(179 * seed + 3)
    shapes = torch.randn(10, 12, generator=draw)
    styles = torch.randn(12, 20, generator=draw)

    def drawn(kind: Tensor) -> Tensor:
        count = len(kind)
        style = 2.5 * torch.randn(count, 12) @ styles / 12**0.5
        return torch.cat([shapes[kind] + 0.25 * torch.randn(count, 12), style], 1)

    mix = torch.linalg.qr(torch.randn(32, 32, generator=draw))[0]
    kinds = torch.randint(10, (1000,), generator=draw)
    encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    adam = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    bank = torch.randint(10, (300,), generator=draw)
    asked = torch.randint(10, (300,), generator=draw)
    bank_x = drawn(bank) @ mix
    asked_x = drawn(asked) @ mix

    @torch.no_grad()
    def accuracy() -> float:
        keys = functional.normalize(encoder(bank_x), dim=1)
        queries = functional.normalize(encoder(asked_x), dim=1)
        return float((bank[(queries @ keys.T).argmax(1)] == asked).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(encoder=encoder, adam=adam)
        run.resume()
        for step in run.steps(total):
            kind = kinds[torch.randperm(len(kinds))[:64]]
            z = functional.normalize(encoder(torch.cat([drawn(kind), drawn(kind)]) @ mix), dim=1)
            alike = z @ z.T / heat
            if partner == "other view":
                alike = alike.masked_fill(torch.eye(128, dtype=torch.bool), -1e9)
                labels = torch.arange(128).roll(64)
            else:
                labels = torch.arange(128)
            loss = functional.cross_entropy(alike, labels)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(contrastive=(1.0, loss)))
            step.update(adam)
            if step.every(50):
                with run.evaluation("nearest neighbors"):
                    step.record({"neighbor/accuracy": accuracy()})
    return accuracy()


def understudy(
    folder: Path,
    seed: int,
    *,
    stepped: str = "student",
    heat: float = 3.0,
    hard: float = 0.0,
    total: int = 220,
) -> float:
    """Teach a small network by a trained one, without labels; returns its accuracy.

    Args:
        folder: run folder.
        seed: seed.
        stepped: whose parameters the optimizer has: those of the "student", or of "both".
        heat: temperature.
        hard: weight of the teacher's first choice as a label.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(181 * seed + 2)
    middles = 1.1 * torch.randn(12, 10, generator=draw)

    def scenes(count: int) -> tuple[Tensor, Tensor]:
        which = torch.randint(12, (count,), generator=draw)
        return middles[which] + 0.8 * torch.randn(count, 10, generator=draw), which.remainder(6)

    x, y = scenes(1200)
    held, held_y = scenes(400)
    teacher = nn.Sequential(nn.Linear(10, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))
    first = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(200):
        rows = torch.randint(len(x), (64,))
        first.zero_grad()
        functional.cross_entropy(teacher(x[rows]), y[rows]).backward()
        first.step()
    student = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 6))
    if stepped == "both":
        optimizer = torch.optim.Adam([*student.parameters(), *teacher.parameters()], lr=5e-3)
    else:
        teacher.requires_grad_(requires_grad=False)
        optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((student(held).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, teacher=teacher, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (64,))
            told = teacher(x[rows])
            heard = student(x[rows])
            soft = functional.kl_div(
                (heard / heat).log_softmax(1), (told / heat).log_softmax(1), log_target=True, reduction="batchmean"
            )
            terms = Terms(soft=(heat**2, soft))
            if hard:
                terms = terms | Terms(hard=(hard, functional.cross_entropy(heard, told.argmax(1))))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(55):
                with run.evaluation("premiere"):
                    step.record({"accuracy": accuracy()})
    return accuracy()


def foghorns(
    folder: Path,
    seed: int,
    *,
    choice: str = "each",
    heavy: bool = False,
    total: int = 200,
) -> float:
    """Hear which of five foghorns blow, none or several at once; returns the share of sounds that are all right.

    Args:
        folder: run folder.
        seed: seed.
        choice: how horns are scored: "each" by itself, or "one" of all by a softmax.
        heavy: whether the noise has heavy tails.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(191 * seed + 5)
    time = torch.arange(256) / 256
    pitches = torch.tensor([11.0, 17.0, 25.0, 36.0, 49.0])

    def heard(count: int) -> tuple[Tensor, Tensor]:
        blown = (torch.rand(count, 5, generator=draw) < 0.35).float()
        phase = 6.3 * torch.rand(count, 5, 1, generator=draw)
        waves = ((6.2832 * pitches[:, None] * time + phase).sin() * blown[..., None]).sum(1)
        noise = torch.randn(count, 256, generator=draw)
        if heavy:
            noise = noise / torch.rand(count, 1, generator=draw).clamp(min=0.05).sqrt()
        return (waves + 0.7 * noise).to(torch.float32), blown

    x, y = heard(800)
    held, held_y = heard(300)
    ear = nn.Sequential(nn.Linear(65, 48), nn.ReLU(), nn.Linear(48, 5))
    adam = torch.optim.Adam(ear.parameters(), lr=4e-3)

    def loudness(sound: Tensor) -> Tensor:
        return torch.fft.rfft(sound).abs()[:, :65].log1p()

    @torch.no_grad()
    def all_right() -> float:
        logits = ear(loudness(held))
        chance = logits.sigmoid() if choice == "each" else logits.softmax(1)
        return float(((chance > 0.5).float() == held_y).all(1).float().mean())

    with Run(folder, outputs=NO_SINKS, declared=Declared()) as run:
        run.track(ear=ear, adam=adam)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(x), (40,))
            logits = ear(loudness(x[i]))
            if choice == "each":
                loss = functional.binary_cross_entropy_with_logits(logits, y[i])
            else:
                loss = functional.cross_entropy(logits, y[i])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(horns=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                with run.evaluation("another night"):
                    step.record({"val/all_right": all_right()})
    return all_right()


def kiosk(
    folder: Path,
    seed: int,
    *,
    advantages: str = "of the same game",
    entropy: float = 0.01,
    late: bool = False,
    total: int = 140,
) -> float:
    """Learn to walk to the open kiosk of a street of nine houses; returns the share of games in which it is reached.

    Args:
        folder: run folder.
        seed: seed.
        advantages: whether moves are weighed by advantages "of the same game" or, by broadcasting, "of all games".
        entropy: weight of the entropy; it counts as a reward.
        late: whether the reward comes only at the end of a game.
        total: number of updates.
    """
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=8e-3)
    games = 32
    length = 8

    def played(*, greedy: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
        place = torch.randint(1, 8, (games,)).float()
        goal = torch.where(torch.rand(games) < 0.5, 0.0, 8.0)
        # A sign tells which kiosk is open, but for the sake of a language that the actor has to learn.
        sign = torch.where(goal > 4, -1.0, 1.0)
        done = torch.zeros(games)
        states: list[Tensor] = []
        moves: list[Tensor] = []
        gains: list[Tensor] = []
        for t in range(length):
            state = torch.stack([place / 8, sign, place / 8 * sign, torch.full((games,), t / length)], 1)
            logits = actor(state)
            move = logits.argmax(1) if greedy else torch.distributions.Categorical(logits=logits).sample()
            states.append(state)
            moves.append(move)
            before = (place - goal).abs()
            place = torch.where(done > 0, place, (place + move - 1).clamp(0, 8))
            there = ((place == goal) & (done == 0)).float()
            done = done + there
            gains.append(there if late else there + 0.1 * (before - (place - goal).abs()))
        if late:
            gains = [*[torch.zeros(games)] * (length - 1), done]
        return states, moves, gains, done

    def reached() -> float:
        with torch.no_grad():
            return sum(float(played(greedy=True)[3].mean()) for _ in range(6)) / 6

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, critic=critic, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            with torch.no_grad():
                states, moves, gains, done = played(greedy=False)
            returns = torch.stack(gains).flip(0).cumsum(0).flip(0).flatten()
            seen = torch.cat(states)
            values = critic(seen)
            policy = torch.distributions.Categorical(logits=actor(seen))
            chosen = policy.log_prob(torch.cat(moves))
            ahead = returns[:, None] - values
            if advantages == "of the same game":
                ahead = ahead[:, 0]
            terms = Terms(
                policy=(1.0, -(chosen * ahead.detach()).mean()),
                value=(0.5, ahead.square().mean()),
                entropy=(-entropy, policy.entropy().mean()),
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Reward/mean": done.mean()})
            step.update(optimizer)
            if step.every(35):
                with run.evaluation("games without chance"):
                    step.record({"reached": reached()})
    return reached()
