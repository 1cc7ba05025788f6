"""Sound trainings of set a: blobs, a language of symbols, pictures of spots, an implicit image, fine-tuning."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Terms

from .games import Blobs, Game
from .supervised import Parts


def generator(seed: int, salt: int) -> torch.Generator:
    """Return the generator of a data set."""
    return torch.Generator().manual_seed(1000 * seed + salt)


def psnr(error: Tensor) -> float:
    """Return the PSNR of a mean squared error, peak 1."""
    return -10 * math.log10(max(float(error), 1e-12))


def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Return the fraction of correct labels."""
    return float((model(inputs).argmax(dim=-1) == labels).float().mean())


def blob_data(seed: int, count: int, *, classes: int = 10, width: int = 16, salt: int = 1) -> tuple[Tensor, Tensor]:
    """Return points around the centers of their classes, and the classes; ``salt`` draws other points."""
    centers = 1.5 * torch.randn(classes, width, generator=generator(seed, 0))
    draw = generator(seed, salt)
    labels = torch.randint(classes, (count,), generator=draw)
    return centers[labels] + 1.2 * torch.randn(count, width, generator=draw), labels


def blobs(seed: int) -> Parts:
    """Classify points into ten classes, with batch normalization and dropout."""
    inputs, labels = blob_data(seed, 2000)
    test_inputs, test_labels = blob_data(seed, 500, salt=2)
    model = nn.Sequential(
        nn.Linear(16, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )

    def measure() -> dict[str, float]:
        loss = functional.cross_entropy(model(test_inputs), test_labels)
        return {"Eval/accuracy": accuracy(model, test_inputs, test_labels), "Eval/loss": float(loss)}

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        inputs=inputs,
        targets=labels,
        terms=lambda x, y: Terms(cross_entropy=(1.0, functional.cross_entropy(model(x), y))),
        measure=measure,
        figure=lambda: accuracy(model, test_inputs, test_labels),
    )


SYMBOLS = 24


def symbol_data(seed: int, count: int, *, length: int = 16, salt: int = 1) -> Tensor:
    """Return sequences of a Markov chain in which each symbol has three likely successors."""
    rows = torch.stack([torch.randperm(SYMBOLS, generator=generator(seed, 100 + i))[:3] for i in range(SYMBOLS)])
    draw = generator(seed, salt)
    current = torch.randint(SYMBOLS, (count,), generator=draw)
    sequence = [current]
    for _ in range(length):
        choice = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), count, replacement=True, generator=draw)
        current = rows[current, choice]
        sequence.append(current)
    return torch.stack(sequence, dim=1)


class SymbolModel(nn.Module):
    """A GRU that predicts the next symbol."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 24)
        self.rnn = nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape [batch, length, symbols]."""
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.head(hidden)


def next_symbol_loss(model: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next symbols."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


def symbols(seed: int) -> Parts:
    """Model a language of 24 symbols with a GRU."""
    data = symbol_data(seed, 1500)
    test = symbol_data(seed, 200, salt=2)
    model = SymbolModel()

    def test_loss() -> float:
        return float(next_symbol_loss(model, test[:, :-1], test[:, 1:]))

    return Parts(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01),
        inputs=data[:, :-1],
        targets=data[:, 1:],
        terms=lambda x, y: Terms(next_symbol=(1.0, next_symbol_loss(model, x, y))),
        measure=lambda: {"Eval/loss": test_loss(), "Eval/perplexity": math.exp(min(test_loss(), 50))},
        figure=lambda: -test_loss(),
        steps=400,
        batch=32,
        clip=1.0,
    )


def spot_pictures(seed: int, count: int, *, size: int = 10, salt: int = 1) -> Tensor:
    """Return pictures of one bright spot each, shape [count, size * size]."""
    draw = generator(seed, salt)
    place = 1 + (size - 3) * torch.rand(count, 2, 1, 1, generator=draw)
    width = 1 + torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    square = (x - place[:, 0]) ** 2 + (y - place[:, 1]) ** 2
    return (0.1 + 0.8 * torch.exp(-square / (2 * width**2))).flatten(1)


def spots(seed: int) -> Parts:
    """Encode pictures of spots into eight numbers; every picture is a named sample."""
    pictures = spot_pictures(seed, 96)
    test = spot_pictures(seed, 100, salt=2)
    encoder = nn.Sequential(nn.Linear(100, 64), nn.GELU(), nn.Linear(64, 8))
    decoder = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 100), nn.Sigmoid())
    model = nn.Sequential(encoder, decoder)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def each(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean(dim=1)

    return Parts(
        model=model,
        optimizer=optimizer,
        inputs=pictures,
        targets=pictures.clone(),
        terms=lambda x, y: Terms(reconstruction=(1.0, each(x, y).mean())),
        sample_loss=each,
        names=[f"spot_{i:03d}" for i in range(96)],
        measure=lambda: {"Eval/psnr": psnr(each(test, test).mean())},
        figure=lambda: psnr(each(test, test).mean()),
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800),
        steps=800,
        batch=8,
        tracked=None,
        groups={"encoder": encoder, "decoder": decoder},
    )


class Waves(nn.Module):
    """Fourier features of coordinates."""

    def __init__(self, seed: int, count: int = 32, spread: float = 6.0) -> None:
        super().__init__()
        self.register_buffer("directions", spread * torch.randn(2, count, generator=generator(seed, 3)))

    def forward(self, points: Tensor) -> Tensor:
        """Return sines and cosines, shape [n, 2 * count]."""
        phases = points @ self.get_buffer("directions")
        return torch.cat([phases.sin(), phases.cos()], dim=-1)


def target_image(seed: int, points: Tensor) -> Tensor:
    """Return the colors of a smooth picture, shape [n, 3]."""
    phase = 6 * torch.rand(3, generator=generator(seed, 4))
    x, y = points.unbind(-1)
    waves = torch.stack([torch.sin(5 * x + phase[0]), torch.cos(4 * y + phase[1]), torch.sin(6 * x * y + phase[2])], -1)
    return 0.5 + 0.4 * waves


def image_field(seed: int) -> Parts:
    """Fit a field of coordinates to the pixels of a picture, with a small term on the size of the last layer."""
    line = torch.linspace(-1, 1, 40)
    points = torch.cartesian_prod(line, line)
    colors = target_image(seed, points)
    between = torch.cartesian_prod(line[:-1] + 0.025, line[:-1] + 0.025)
    between_colors = target_image(seed, between)
    last = nn.Linear(64, 3)
    model = nn.Sequential(Waves(seed), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), last)

    def terms(x: Tensor, y: Tensor) -> Terms:
        small = last.weight.square().mean() + last.bias.square().mean()
        return Terms(color=(1.0, (model(x) - y).square().mean()), decay=(1e-3, small))

    def between_psnr() -> float:
        return psnr((model(between) - between_colors).square().mean())

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        inputs=points,
        targets=colors,
        terms=terms,
        measure=lambda: {"Eval/psnr": between_psnr()},
        figure=between_psnr,
        steps=700,
        batch=256,
        as_objective=True,
    )


class Tuned(nn.Module):
    """A backbone that was trained before, and a new head."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.backbone(inputs))


def pretrained(backbone: nn.Module, width: int, data: tuple[Tensor, Tensor], steps: int = 150) -> nn.Module:
    """Train a backbone on other data, without a record."""
    inputs, labels = data
    head = nn.Linear(width, int(labels.max()) + 1)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps):
        picked = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(head(backbone(inputs[picked])), labels[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return backbone


def frozen_backbone(seed: int) -> Parts:
    """Train a new head on a frozen backbone."""
    backbone = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    pretrained(backbone, 32, blob_data(seed, 1500, classes=12))
    backbone.requires_grad_(False)
    inputs, labels = blob_data(seed, 800, classes=12, salt=5)
    labels = labels % 4
    test_inputs, test_labels = blob_data(seed, 400, classes=12, salt=6)
    test_labels = test_labels % 4
    model = Tuned(backbone, 32, 4)
    return Parts(
        model=model,
        optimizer=torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
        inputs=inputs,
        targets=labels,
        terms=lambda x, y: Terms(cross_entropy=(1.0, functional.cross_entropy(model(x), y))),
        measure=lambda: {"Eval/accuracy": accuracy(model, test_inputs, test_labels)},
        figure=lambda: accuracy(model, test_inputs, test_labels),
        steps=500,
        groups={"head": model.head},
    )


def by_hand(parts: Parts, evaluate: Callable[[], dict[str, float]]) -> None:
    """Evaluate without ``run.evaluation``."""
    parts.evaluate = lambda step: step.record(evaluate())


def ring_game(seed: int) -> Game:
    """Make points on a ring of eight small blobs."""
    angle = torch.arange(8) * math.pi / 4
    centers = 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    blobs_on_ring = Blobs(
        centers=centers,
        spread=0.15,
        radius=0.6,
        latent=8,
        width=64,
        rates=(1e-3, 3e-3),
        metric="Eval/covered",
    )
    return blobs_on_ring.game(generator(seed, 7))


SIDE = 5
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


def walk(policy: nn.Module, episodes: int, length: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Walk on a grid of 5 x 5 fields to its last corner.

    Returns:
        Log-probabilities, rewards and entropies, each of shape [length, episodes].
    """
    place = torch.randint(SIDE - 1, (episodes, 2))
    logs: list[Tensor] = []
    rewards: list[Tensor] = []
    entropies: list[Tensor] = []
    done = torch.zeros(episodes, dtype=torch.bool)
    for _ in range(length):
        seen = functional.one_hot(place[:, 0] * SIDE + place[:, 1], SIDE * SIDE).float()
        chance = torch.distributions.Categorical(logits=policy(seen))
        move = chance.sample()
        place = (place + MOVES[move]).clamp(0, SIDE - 1)
        arrived = (place == SIDE - 1).all(dim=1)
        logs.append(chance.log_prob(move) * ~done)
        entropies.append(chance.entropy())
        rewards.append(torch.where(done, 0.0, arrived.float() - 0.05))
        done |= arrived
    return torch.stack(logs), torch.stack(rewards), torch.stack(entropies)


def grid_walk(seed: int, *, sign: float = 1.0) -> Parts:
    """Learn to walk by policy gradient; the loss has both signs. ``sign`` multiplies the advantages."""
    del seed
    policy = nn.Sequential(nn.Linear(SIDE * SIDE, 48), nn.Tanh(), nn.Linear(48, 4))

    def terms(_: Tensor, __: Tensor) -> Terms:
        logs, rewards, entropies = walk(policy, 32)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        return Terms(policy=(1.0, -(logs * sign * advantages).mean()), entropy=(0.01, -entropies.mean()))

    def mean_return() -> float:
        return float(walk(policy, 200)[1].sum(0).mean())

    return Parts(
        model=policy,
        optimizer=torch.optim.Adam(policy.parameters(), lr=5e-3),
        inputs=torch.zeros(1, 1),
        targets=torch.zeros(1, 1),
        terms=terms,
        measure=lambda: {"Eval/return": mean_return()},
        figure=mean_return,
        steps=400,
        batch=1,
    )


class Chain(nn.Module):
    """A recurrent network with ReLU and large recurrent weights, which sums marked numbers of a sequence."""

    def __init__(self, gain: float, width: int = 32) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            self.rnn.get_parameter("weight_hh_l0").copy_(gain * torch.eye(width))
            self.rnn.get_parameter("weight_ih_l0").mul_(0.3)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the estimated sums, shape [batch]."""
        _, hidden = self.rnn(numbers)
        return self.head(hidden[0]).squeeze(-1)


def sum_data(seed: int, count: int, *, length: int = 8, salt: int = 1) -> tuple[Tensor, Tensor]:
    """Return sequences of numbers and marks, and the sum of two marked numbers."""
    draw = generator(seed, salt)
    numbers = torch.rand(count, length, generator=draw)
    marks = torch.zeros(count, length)
    marks[torch.arange(count), torch.randint(length // 2, (count,), generator=draw)] = 1
    marks[torch.arange(count), length // 2 + torch.randint(length // 2, (count,), generator=draw)] = 1
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=1)


def marked_sums(seed: int, *, gain: float = 1.0, learning_rate: float = 5e-3) -> Parts:
    """Add two marked numbers of a sequence with a recurrent network."""
    inputs, targets = sum_data(seed, 1500)
    test_inputs, test_targets = sum_data(seed, 300, salt=2)
    model = Chain(gain)

    def error() -> float:
        return float((model(test_inputs) - test_targets).square().mean())

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=learning_rate),
        inputs=inputs,
        targets=targets,
        terms=lambda x, y: Terms(sum=(1.0, (model(x) - y).square().mean())),
        measure=lambda: {"Eval/error": error()},
        figure=lambda: -error(),
        steps=500,
        clip=1.0,
    )


def deep_blobs(seed: int, *, activation: type[nn.Module] = nn.ReLU, depth: int = 10) -> Parts:
    """Classify blobs with a deep network."""
    parts = blobs(seed)
    layers: list[nn.Module] = [nn.Linear(16, 32), activation()]
    for _ in range(depth):
        layers += [nn.Linear(32, 32), activation()]
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    test_inputs, test_labels = blob_data(seed, 500, salt=2)
    parts.model = model
    parts.optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    parts.terms = lambda x, y: Terms(cross_entropy=(1.0, functional.cross_entropy(model(x), y)))
    parts.measure = lambda: {"Eval/accuracy": accuracy(model, test_inputs, test_labels)}
    parts.figure = lambda: accuracy(model, test_inputs, test_labels)
    parts.groups = {"first": model[0], "rest": model[1:]}
    return parts
