"""Strangers' loops on rows: bottles of a vineyard, patients of a clinic, cows of a dairy, beehives, and gauges."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

LOW = torch.tensor([8.0, 1.0, 5.0, 0.2, 0.985, 0.0, 50.0, 2000.0])
HIGH = torch.tensor([14.0, 60.0, 250.0, 1.2, 1.005, 30.0, 900.0, 12000.0])
"""Alcohol in percent, g/l of sugar, mg/l of sulfur, g/l of acid, g/ml of bottle, age in years, height in m, kg/ha."""


def bottles(count: int, noise: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return what a laboratory measures of bottles, shape [count, 8], and the standard score of their price."""
    share = torch.rand(count, 8, generator=draw)
    alcohol, sugar, sulfur, acid, _, age, height, load = (2 * share - 1).T
    ripe = (3 * age + 1.5 * alcohol).sin() + 1.2 * sugar * acid - 0.8 * (load - 0.5 * height).abs() + 0.6 * sulfur**2
    score = (ripe + 0.1) / 0.95
    return LOW + (HIGH - LOW) * share, score + noise * torch.randn(count, generator=draw)


def vineyard(
    folder: Path,
    seed: int,
    *,
    price: str = "column",
    scaled: str = "standard",
    ending: str = "open",
    start: str = "usual",
    noise: float = 0.15,
    rows: int = 900,
    patience: int = 0,
    epochs: int = 24,
) -> float:
    """Foretell prices of wine; returns the share of the variance of other, exact prices that is explained.

    Args:
        folder: run folder.
        seed: seed.
        price: shape of the prices of a batch: a "column" as the network's answer is, or a "row".
        scaled: what the network sees: "standard" scores, or numbers "as measured".
        ending: what follows the last layer: "open" for nothing, or a "relu".
        start: first weights: the "usual" ones, or all "equal".
        noise: noise of the prices.
        rows: number of bottles.
        patience: epochs without progress after which the training ends; 0 for all epochs.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(331 * seed + 4)
    x, y = bottles(rows, noise, draw)
    check_x, check_y = bottles(300, noise, draw)
    test_x, test_y = bottles(500, 0.0, draw)
    mean, spread = (x.mean(0), x.std(0)) if scaled == "standard" else (torch.zeros(8), torch.ones(8))
    layers: list[nn.Module] = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers, *([nn.ReLU()] if ending == "relu" else []))
    if start == "equal":
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loader = DataLoader(TensorDataset((x - mean) / spread, y), batch_size=30, shuffle=True)

    @torch.no_grad()
    def explained(features: Tensor, truth: Tensor) -> float:
        found = model((features - mean) / spread)[:, 0]
        return 1 - float((found - truth).square().mean() / truth.var())

    best = -float("inf")
    waited = 0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for _ in range(epochs):
            for features, target in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = functional.mse_loss(model(features), target[:, None] if price == "column" else target)
                optimizer.zero_grad()
                loss.backward()
                step.observe(Terms(mse=(1.0, loss)))
                step.update(optimizer)
                run.end_step()
            score = explained(check_x, check_y)
            with run.evaluation("other bottles"):
                run.record({"val/explained": score})
            waited = 0 if score > best else waited + 1
            best = max(best, score)
            if patience and waited == patience:
                break
    return explained(test_x, test_y)


def patients(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return findings of patients, shape [count, 14], and which of them, one in ten, are ill."""
    ill = torch.rand(count, generator=draw) < 0.1
    signs = torch.randn(count, 14, generator=draw)
    signs[:, :5] += 1.1 * ill[:, None]
    return signs, ill.long()


def clinic(
    folder: Path,
    seed: int,
    *,
    doubled: str = "after the split",
    dropped: str = "from both",
    wrong: float = 0.0,
    lr: float = 3e-3,
    figure: str = "accuracy",
    total: int = 240,
) -> float:
    """Tell ill patients, of whom there are few; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        doubled: when the rows of ill patients are repeated: "after the split" or "before the split".
        dropped: what incomplete rows are dropped from: "from both", or "from the findings" alone.
        wrong: share of the labels that are wrong.
        lr: learning rate.
        figure: "accuracy" of both kinds on new patients, or "honesty" for the negative error of the one in the record.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(337 * seed + 9)
    x, y = patients(1400, draw)
    y = torch.where(torch.rand(1400, generator=draw) < wrong, 1 - y, y)
    new_x, new_y = patients(3000, draw)
    x[torch.rand(1400, generator=draw) < 0.06, 3] = float("nan")
    whole = ~x.isnan().any(1)
    x = x[whole]
    y = y[whole] if dropped == "from both" else y[: len(x)]

    def repeated(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows[y[rows] == 1].repeat(8)])

    rows = torch.arange(len(x))
    if doubled == "before the split":
        rows = repeated(rows)
    rows = rows[torch.randperm(len(rows))]
    cut = 2 * len(rows) // 3
    train, check = rows[:cut], rows[cut:]
    if doubled == "after the split":
        train = repeated(train)
    net = nn.Sequential(nn.Linear(14, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))
    adam = torch.optim.AdamW(net.parameters(), lr=lr)

    @torch.no_grad()
    def accuracy(features: Tensor, truth: Tensor) -> float:
        right = (net(features).argmax(1) == truth).float()
        return float((right[truth == 0].mean() + right[truth == 1].mean()) / 2)

    told = 0.0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            some = train[torch.randint(len(train), (48,))]
            loss = functional.cross_entropy(net(x[some]), y[some])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(entropy=(1.0, loss)))
            step.update(adam)
            if step.every(30):
                told = accuracy(x[check], y[check])
                with run.evaluation("held-out patients"):
                    step.record({"val/balanced_accuracy": told})
    true = accuracy(new_x, new_y)
    return true if figure == "accuracy" else -abs(told - true)


class Herd(nn.Module):
    """Foretells the milk of a cow, and whether she falls ill."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.milk = nn.Linear(width, 1)
        self.ill = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the milk and the logit of an illness, each of shape [count]."""
        x = self.trunk(x)
        return self.milk(x)[:, 0], self.ill(x)[:, 0]


def cows(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers of cows, their milk in kg a year, and whether they fall ill."""
    x = torch.randn(count, 12, generator=draw)
    milk = x[:, 0] + (2 * x[:, 1]).tanh() + 0.7 * x[:, 2] * x[:, 3] + 0.2 * torch.randn(count, generator=draw)
    risk = 2.2 * x[:, 4] * x[:, 5] + 1.5 * (x[:, 6].abs() - 0.8) + x[:, 7]
    ill = (risk + 0.4 * torch.randn(count, generator=draw) > 0).float()
    return x, 8000 + 1100 * milk, ill


def dairy(
    folder: Path,
    seed: int,
    *,
    unit: str = "standard scores",
    weighed: str = "equally",
    unmeasured: float = 0.0,
    skipped: bool = True,
    checked: str = "without graphs",
    figure: str = "illness",
    total: int = 320,
) -> float:
    """Foretell milk and illness of cows with one network; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        unit: what the milk is given in: "standard scores", or "kg".
        weighed: how both losses are weighed: "equally", or by a "learned" uncertainty.
        unmeasured: share of the cows whose milk nobody measured.
        skipped: whether the loss leaves out what was not measured.
        checked: how the loss on other cows is computed for a list that is kept: "without graphs" or "with graphs".
        figure: "illness" for the accuracy on new cows, or "memory" for the negative number of MB of kept graphs.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(347 * seed + 1)
    x, milk, ill = cows(1200, draw)
    held_x, held_milk, held_ill = cows(600, draw)
    if unit == "standard scores":
        mean, spread = milk.mean(), milk.std()
        milk, held_milk = (milk - mean) / spread, (held_milk - mean) / spread
    milk = torch.where(torch.rand(1200, generator=draw) < unmeasured, float("nan"), milk)
    width = 256 if figure == "memory" else 48
    herd = Herd(width)
    doubt = nn.Parameter(torch.zeros(2))
    learned = [doubt] if weighed == "learned" else []
    adam = torch.optim.Adam([*herd.parameters(), *learned], lr=4e-3)
    history: list[Tensor] = []

    def losses(features: Tensor, kilos: Tensor, sick: Tensor) -> Terms:
        told_milk, told_ill = herd(features)
        measured = ~kilos.isnan() if skipped else torch.ones_like(sick) > 0
        error = functional.mse_loss(told_milk[measured], kilos[measured])
        entropy = functional.binary_cross_entropy_with_logits(told_ill, sick)
        if weighed == "learned":
            error, entropy = (-doubt[0]).exp() * error + doubt[0], (-doubt[1]).exp() * entropy + doubt[1]
        return Terms(milk=(1.0, error), illness=(1.0, entropy))

    @torch.no_grad()
    def accuracy() -> float:
        return float(((herd(held_x)[1] > 0).float() == held_ill).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(herd=herd, adam=adam)
        if weighed == "learned":
            run.track(doubt=doubt)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (40,))
            terms = losses(x[rows], milk[rows], ill[rows])
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(4):
                with torch.set_grad_enabled(checked == "with graphs"):
                    history.append(losses(held_x, held_milk, held_ill).total)
            if step.every(40):
                with run.evaluation("other cows"):
                    step.record({"val/accuracy": accuracy(), "val/loss": history[-1].detach()})
    if figure == "memory":
        kept = sum(loss.grad_fn is not None for loss in history)
        return -kept * 4 * len(held_x) * 4 * width / 1e6
    return accuracy()


class Hive(nn.Module):
    """Tells the state of a hive from its sound, its weight and the weather, each with a network of its own.

    Attributes:
        heard: networks of the three senses, as a dict of modules or as a plain one.
    """

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        sizes = {"sound": 40, "scale": 16, "weather": 12}
        networks = {
            name: nn.Sequential(nn.Linear(size, 24), nn.ReLU(), nn.Linear(24, 3)) for name, size in sizes.items()
        }
        self.heard = networks if plain else nn.ModuleDict(networks)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, senses: Sequence[Tensor]) -> Tensor:
        """Return the logits of the states."""
        parts = [self.heard[name](sense) for name, sense in zip(("sound", "scale", "weather"), senses, strict=True)]
        return self.out(torch.cat(parts, 1))


def hives(
    folder: Path,
    seed: int,
    *,
    plain: bool = False,
    cleared: bool = True,
    lr: float = 4e-3,
    total: int = 260,
) -> float:
    """Tell the states of beehives from three kinds of sensors; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        plain: whether the networks of the sensors are in a plain dict.
        cleared: whether gradients are cleared before each step.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(349 * seed + 6)
    tones = [0.55 * torch.randn(5, size, generator=draw) for size in (40, 16, 12)]

    def sensed(count: int) -> tuple[list[Tensor], Tensor]:
        state = torch.randint(5, (count,), generator=draw)
        sign = torch.sign(torch.randn(count, 1, generator=draw))
        return [sign * tone[state] + torch.randn(count, tone.shape[1], generator=draw) for tone in tones], state

    x, y = sensed(1500)
    held_x, held_y = sensed(500)
    hive = Hive(plain=plain)
    sgd = torch.optim.SGD(hive.parameters(), lr=10 * lr, momentum=0.9)

    def objective(senses: Sequence[Tensor], state: Tensor) -> Terms:
        return Terms(state=(1.0, functional.cross_entropy(hive(senses), state)))

    @torch.no_grad()
    def accuracy() -> float:
        return float((hive(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(hive=hive, sgd=sgd)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(y), (40,))
            terms = objective([sense[rows] for sense in x], y[rows])
            if cleared:
                sgd.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(sgd)
            if step.every(50):
                with run.evaluation("other hives"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()


class Traces(Dataset[tuple[np.ndarray, int]]):
    """Traces of gauges, of four kinds."""

    def __init__(self, count: int, seed: int) -> None:
        draw = np.random.default_rng(353 * seed + 2)
        self.kinds = draw.integers(4, size=count)
        place = np.linspace(0, 1, 1500)
        waves = np.sin(2 * np.pi * (3 + 2 * self.kinds[:, None]) * place + 6.28 * draw.random((count, 1)))
        self.traces = (waves + draw.normal(size=(count, 1500))).astype(np.float32)

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.traces[index], int(self.kinds[index])


def gauges(folder: Path, seed: int, *, packed: str = "at once", good: float = 0.8, total: int = 150) -> float:
    """Tell kinds of gauges by their traces; returns the negative time for batches over that for the network.

    Args:
        folder: run folder.
        seed: seed.
        packed: how a batch becomes a tensor: "at once" from one array, or "array by array" from a list of them.
        good: accuracy that the training has to reach; without it, the figure is -1000.
        total: number of steps.
    """
    torch.manual_seed(seed)
    spent = {"batches": 0.0, "network": 0.0}

    def collate(samples: list[tuple[np.ndarray, int]]) -> tuple[Tensor, Tensor]:
        begun = time.process_time()
        traces = [trace for trace, _ in samples]
        batch = torch.tensor(np.stack(traces) if packed == "at once" else [trace.tolist() for trace in traces])
        spent["batches"] += time.process_time() - begun
        return batch[:, None], torch.tensor([kind for _, kind in samples])

    loader = DataLoader(Traces(1600, seed), batch_size=32, shuffle=True, collate_fn=collate)
    held = Traces(200, seed + 1000)
    net = nn.Sequential(
        nn.Conv1d(1, 8, 15, 10), nn.ReLU(), nn.Conv1d(8, 16, 9, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 4)
    )
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)

    @torch.no_grad()
    def accuracy() -> float:
        logits = net(torch.from_numpy(held.traces)[:, None])
        return float((logits.argmax(1) == torch.from_numpy(held.kinds)).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step, (traces, kinds) in zip(run.steps(total), run.batches(loader), strict=False):
            begun = time.process_time()
            loss = functional.cross_entropy(net(traces), kinds)
            adam.zero_grad()
            loss.backward()
            spent["network"] += time.process_time() - begun
            step.observe(Terms(kind=(1.0, loss)))
            step.update(adam)
            if step.every(50):
                with run.evaluation("other gauges"):
                    step.record({"val/accuracy": accuracy()})
    return -spent["batches"] / spent["network"] if accuracy() >= good else -1000.0
