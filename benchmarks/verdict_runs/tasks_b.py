"""Sound trainings of set b: stripes, a language of pairs, signals, a distance field, houses, unfreezing."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Terms

from .games import Blobs, Game
from .supervised import Parts


def generator(seed: int, salt: int) -> torch.Generator:
    """Return the generator of a data set."""
    return torch.Generator().manual_seed(77 + 513 * seed + salt)


class EpochOrder:
    """Batches of shuffled epochs.

    Args:
        count: number of samples.
        batch: number of samples in a batch; the last one of an epoch may be smaller.
        seed: seed of the order.
    """

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self.count = count
        self.batch = batch
        self.draw = generator(seed, 31)
        self.left = torch.empty(0, dtype=torch.long)

    def __call__(self, _: int) -> Tensor:
        """Return the indices of the next batch."""
        if not len(self.left):
            self.left = torch.randperm(self.count, generator=self.draw)
        picked = self.left[: self.batch]
        self.left = self.left[self.batch :]
        return picked


def stripe_data(seed: int, count: int, *, salt: int = 1, noise: float = 0.6) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of stripes, shape [count, 1, 12, 12], and their direction out of six."""
    draw = generator(seed, salt)
    labels = torch.randint(6, (count,), generator=draw)
    angle = labels * math.pi / 6
    phase = 2 * math.pi * torch.rand(count, generator=draw)
    y, x = torch.meshgrid(torch.arange(12), torch.arange(12), indexing="ij")
    along = x * angle.cos()[:, None, None] + y * angle.sin()[:, None, None]
    pictures = (1.4 * along + phase[:, None, None]).sin() + noise * torch.randn(count, 12, 12, generator=draw)
    return pictures[:, None], labels


def stripe_network() -> nn.Sequential:
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 6),
    )


def hits(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Return the percentage of correct labels."""
    return 100 * float((model(inputs).argmax(dim=-1) == labels).float().mean())


def stripes(seed: int) -> Parts:
    """Classify stripes in epochs, with SGD, momentum, weight decay and a rate that falls in steps."""
    inputs, labels = stripe_data(seed, 900)
    test_inputs, test_labels = stripe_data(seed, 400, salt=2)
    model = stripe_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def measure() -> Mapping[str, float]:
        loss = functional.cross_entropy(model(test_inputs), test_labels)
        return {"val/accuracy": hits(model, test_inputs, test_labels), "val/loss": float(loss)}

    return Parts(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, 250, 0.2),
        inputs=inputs,
        targets=labels,
        terms=lambda x, y: Terms(loss=(1.0, functional.cross_entropy(model(x), y))),
        measure=measure,
        figure=lambda: hits(model, test_inputs, test_labels),
        steps=600,
        batch=48,
        every=57,
        draw=EpochOrder(len(inputs), 48, seed),
    )


WORDS = 12


def pair_data(seed: int, count: int, *, length: int = 12, salt: int = 1) -> Tensor:
    """Return sequences in which a word has two successors, one after even and one after odd places."""
    rows = torch.stack([torch.randperm(WORDS, generator=generator(seed, 40 + i))[:2] for i in range(WORDS)])
    draw = generator(seed, salt)
    now = torch.randint(WORDS, (count,), generator=draw)
    sequence = [now]
    for place in range(length):
        other = torch.rand(count, generator=draw) < 0.1
        now = torch.where(other, torch.randint(WORDS, (count,), generator=draw), rows[now, place % 2])
        sequence.append(now)
    return torch.stack(sequence, dim=1)


class PairModel(nn.Module):
    """A transformer of one layer that predicts the next word."""

    def __init__(self, width: int = 32, length: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(0.1 * torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.1, batch_first=True)
        self.out = nn.Linear(width, WORDS)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), diagonal=1))

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape [batch, length, words]."""
        return self.out(self.layer(self.words(words) + self.places, src_mask=self.get_buffer("mask")))


def pair_loss(model: nn.Module, words: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next words."""
    return functional.cross_entropy(model(words).flatten(0, 1), following.flatten())


class WarmCosine:
    """Factor of a learning rate.

    Args:
        total: number of steps.
        warm: number of steps in which the rate rises.
    """

    def __init__(self, total: int, warm: int) -> None:
        self.total = total
        self.warm = warm

    def __call__(self, step: int) -> float:
        """Return the factor at a step."""
        if step < self.warm:
            return (step + 1) / self.warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - self.warm) / (self.total - self.warm))))


def pairs(seed: int) -> Parts:
    """Model a language of twelve words with a transformer, with warm-up and cosine."""
    data = pair_data(seed, 1200)
    test = pair_data(seed, 200, salt=2)
    model = PairModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.1)

    def validation() -> float:
        return float(pair_loss(model, test[:, :-1], test[:, 1:]))

    return Parts(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, WarmCosine(500, 50)),
        inputs=data[:, :-1],
        targets=data[:, 1:],
        terms=lambda x, y: Terms(cross_entropy=(1.0, pair_loss(model, x, y))),
        measure=lambda: {"val/loss": validation()},
        figure=lambda: -validation(),
        steps=500,
        batch=24,
        every=50,
    )


def signal_data(seed: int, count: int, *, salt: int = 1) -> Tensor:
    """Return waves of random frequency and phase, shape [count, 32]."""
    draw = generator(seed, salt)
    frequency = 1 + 2 * torch.rand(count, 1, generator=draw)
    phase = 6.28 * torch.rand(count, 1, generator=draw)
    return (frequency * torch.linspace(0, 3, 32) + phase).sin()


class SignalModel(nn.Module):
    """A variational autoencoder of signals."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 2 * width))
        self.decoder = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, 32))

    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reconstruction and the KL divergence of each signal."""
        mean, log_variance = self.encoder(signals).chunk(2, dim=-1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean) if self.training else mean
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1)
        return self.decoder(code), divergence


def signals(seed: int) -> Parts:
    """Encode signals with a variational autoencoder; every signal is a named sample."""
    data = signal_data(seed, 120)
    test = signal_data(seed, 100, salt=2)
    model = SignalModel()

    def terms(x: Tensor, y: Tensor) -> Terms:
        made, divergence = model(x)
        return Terms(reconstruction=(1.0, (made - y).square().mean()), kl=(2e-4, divergence.mean()))

    def error(x: Tensor, y: Tensor) -> Tensor:
        return (model(x)[0] - y).square().mean(dim=1)

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        inputs=data,
        targets=data.clone(),
        terms=terms,
        sample_loss=error,
        names=[f"signal-{i}" for i in range(len(data))],
        measure=lambda: {"test_mse": float(error(test, test).mean())},
        figure=lambda: -float(error(test, test).mean()),
        steps=1000,
        batch=12,
        every=125,
        groups={"encoder": model.encoder, "decoder": model.decoder},
    )


def star_distance(points: Tensor, seed: int) -> Tensor:
    """Return the approximate signed distance to a rounded star, shape [n]."""
    turn = float(torch.rand(1, generator=generator(seed, 8)))
    angle = torch.atan2(points[:, 1], points[:, 0])
    return points.norm(dim=1) - 0.55 - 0.12 * (5 * angle + 6 * turn).cos()


def star_field(seed: int) -> Parts:
    """Fit a signed distance field with an eikonal term, in a loop that uses ``step.backward``."""
    points = 2 * torch.rand(3000, 2, generator=generator(seed, 1)) - 1
    test = 2 * torch.rand(800, 2, generator=generator(seed, 2)) - 1
    distances = star_distance(points, seed)
    test_distances = star_distance(test, seed)
    model = nn.Sequential(nn.Linear(2, 64), nn.Softplus(10), nn.Linear(64, 64), nn.Softplus(10), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def terms(x: Tensor, y: Tensor) -> Terms:
        error = (model(x).squeeze(-1) - y).abs().mean()
        # Points of their own, so that the term does not depend on the batch.
        free = (2 * torch.rand(len(x), 2) - 1).requires_grad_()
        (slope,) = torch.autograd.grad(model(free).sum(), free, create_graph=True)
        return Terms(distance=(1.0, error), eikonal=(0.002, (slope.norm(dim=1) - 1).square().mean()))

    def distance_error() -> float:
        return float((model(test).squeeze(-1) - test_distances).abs().mean())

    return Parts(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997),
        inputs=points,
        targets=distances,
        terms=terms,
        measure=lambda: {"Eval/distance": distance_error()},
        figure=lambda: -distance_error(),
        steps=600,
        batch=128,
        every=150,
        as_objective=True,
    )


def house_data(seed: int, count: int, *, salt: int = 1) -> tuple[Tensor, Tensor]:
    """Return eight features of houses and prices with heavy-tailed noise."""
    draw = generator(seed, salt)
    weights = torch.randn(8, generator=generator(seed, 0))
    features = torch.randn(count, 8, generator=draw)
    tail = torch.randn(count, generator=draw) / torch.rand(count, generator=draw).clamp_min(0.05).sqrt()
    return features, features @ weights + (features[:, 0] * features[:, 1]).sin() + 0.1 * tail


def houses(seed: int) -> Parts:
    """Regress prices with a robust loss; every house is a named sample."""
    features, prices = house_data(seed, 300)
    test_features, test_prices = house_data(seed, 300, salt=2)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def each(x: Tensor, y: Tensor) -> Tensor:
        return functional.huber_loss(model(x).squeeze(-1), y, reduction="none")

    def explained() -> float:
        error = (model(test_features).squeeze(-1) - test_prices).abs().median()
        return 1 - float(error / (test_prices - test_prices.median()).abs().median())

    return Parts(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05),
        inputs=features,
        targets=prices,
        terms=lambda x, y: Terms(huber=(1.0, each(x, y).mean())),
        sample_loss=each,
        names=[f"house {i}" for i in range(300)],
        measure=lambda: {"explained": explained()},
        figure=explained,
        steps=700,
        batch=20,
        every=70,
        draw=EpochOrder(300, 20, seed),
    )


def unfreezing(seed: int) -> Parts:
    """Tune a network that was trained on other stripes: first its head, from half time on all of it."""
    inputs, labels = stripe_data(seed, 700, salt=3)
    labels = labels % 3
    test_inputs, test_labels = stripe_data(seed, 300, salt=4)
    test_labels = test_labels % 3
    network = stripe_network()
    before = torch.optim.Adam(network.parameters(), lr=3e-3)
    old_inputs, old_labels = stripe_data(seed, 600)
    for _ in range(120):
        picked = torch.randint(600, (32,))
        loss = functional.cross_entropy(network(old_inputs[picked]), old_labels[picked])
        before.zero_grad()
        loss.backward()
        before.step()
    body = network[:9]
    head = nn.Linear(32, 3)
    model = nn.Sequential(body, head)
    body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(
        [
            {"params": list(head.parameters()), "lr": 5e-3, "name": "head"},
            {"params": list(body.parameters()), "lr": 5e-4, "name": "body"},
        ]
    )

    def unfreeze(step: int) -> None:
        if step == 250:
            body.requires_grad_(requires_grad=True)

    parts = Parts(
        model=model,
        optimizer=optimizer,
        inputs=inputs,
        targets=labels,
        terms=lambda x, y: Terms(loss=(1.0, functional.cross_entropy(model(x), y))),
        measure=lambda: {"val/accuracy": hits(model, test_inputs, test_labels)},
        figure=lambda: hits(model, test_inputs, test_labels),
        steps=500,
        batch=32,
    )
    parts.before.append(unfreeze)
    return parts


def corner_game(seed: int) -> Game:
    """Make points around five places, with hinge losses that are observed before they are detached."""
    corners = Blobs(
        centers=torch.tensor([[2.0, 2.0], [-2.0, 2.0], [2.0, -2.0], [-2.0, -2.0], [0.0, 0.0]]),
        spread=0.25,
        radius=0.9,
        latent=6,
        width=96,
        rates=(5e-3, 5e-3),
        metric="coverage",
    )
    game = corners.game(generator(seed, 7))
    game.hinge = True
    game.steps = 1200
    game.batch = 96
    game.detached = False
    return game


def pointing(seed: int, *, sign: float = 1.0) -> Parts:
    """Learn to point at a target by policy gradient with a learned baseline. ``sign`` multiplies the advantages."""
    target = torch.randn(4, 2, generator=generator(seed, 9))
    body = nn.Sequential(nn.Linear(4, 48), nn.Tanh())
    mean = nn.Linear(48, 2)
    value = nn.Linear(48, 1)
    spread = nn.Parameter(torch.zeros(2))
    model = nn.ModuleDict({"body": body, "mean": mean, "value": value})
    model.register_parameter("spread", spread)

    def reward(seen: Tensor, action: Tensor) -> Tensor:
        return -(action - seen @ target).square().sum(dim=1).clamp_max(20.0)

    def terms(_: Tensor, __: Tensor) -> Terms:
        seen = torch.rand(64, 4)
        hidden = body(seen)
        chance = torch.distributions.Normal(mean(hidden), spread.exp())
        action = chance.sample()
        gained = reward(seen, action)
        guess = value(hidden).squeeze(-1)
        advantage = sign * (gained - guess).detach()
        policy = -(chance.log_prob(action).sum(dim=1) * advantage / 4).mean()
        entropy = -chance.entropy().sum(dim=1).mean()
        return Terms(policy=(1.0, policy), value=(0.2, (guess - gained).square().mean()), entropy=(1e-3, entropy))

    def mean_reward() -> float:
        seen = torch.rand(500, 4)
        return float(reward(seen, mean(body(seen))).mean())

    return Parts(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=4e-3),
        inputs=torch.zeros(1, 1),
        targets=torch.zeros(1, 1),
        terms=terms,
        measure=lambda: {"reward": mean_reward()},
        figure=mean_reward,
        steps=900,
        batch=1,
        clip=5.0,
    )


def deep_stripes(seed: int, *, activation: type[nn.Module] = nn.ReLU, depth: int = 14, gain: float = 1.0) -> Parts:
    """Classify stripes with a deep network of linear layers, whose weights are multiplied by ``gain``."""
    parts = stripes(seed)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(144, 40), activation()]
    for _ in range(depth):
        layers += [nn.Linear(40, 40), activation()]
    layers.append(nn.Linear(40, 6))
    model = nn.Sequential(*layers)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            with torch.no_grad():
                layer.weight.mul_(gain)
    test_inputs, test_labels = stripe_data(seed, 400, salt=2)
    parts.model = model
    parts.schedule = None
    parts.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    parts.terms = lambda x, y: Terms(loss=(1.0, functional.cross_entropy(model(x), y)))
    parts.measure = lambda: {"val/accuracy": hits(model, test_inputs, test_labels)}
    parts.figure = lambda: hits(model, test_inputs, test_labels)
    return parts


class Iterated(nn.Module):
    """A network that applies the same layer several times; its weights are too large for that many."""

    def __init__(self, times: int = 8, gain: float = 1.4) -> None:
        super().__init__()
        self.first = nn.Linear(144, 40)
        self.again = nn.Linear(40, 40)
        self.last = nn.Linear(40, 6)
        self.times = times
        nn.init.kaiming_normal_(self.again.weight)
        with torch.no_grad():
            self.again.weight.mul_(gain)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return logits."""
        hidden = self.first(pictures.flatten(1)).relu()
        for _ in range(self.times):
            hidden = self.again(hidden).relu()
        return self.last(hidden)


def iterated_stripes(seed: int) -> Parts:
    """Classify stripes with SGD, clipped gradients and a layer that is applied eight times."""
    parts = stripes(seed)
    model = Iterated()
    test_inputs, test_labels = stripe_data(seed, 400, salt=2)
    parts.model = model
    parts.schedule = None
    parts.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    parts.terms = lambda x, y: Terms(loss=(1.0, functional.cross_entropy(model(x), y)))
    parts.measure = lambda: {"val/accuracy": hits(model, test_inputs, test_labels)}
    parts.figure = lambda: hits(model, test_inputs, test_labels)
    parts.clip = 1.0
    return parts
