"""Tables: two tasks on one trunk, ratings of films, rare frauds."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

COLUMNS = 10


def flats(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features, rents and districts (three) of flats."""
    draw = torch.Generator().manual_seed(101 * seed + 3 * salt)
    shared = torch.Generator().manual_seed(101 * seed)
    mixes = torch.randn(COLUMNS, 4, generator=shared)
    features = torch.randn(count, COLUMNS, generator=draw)
    hidden = (features @ mixes / 2).tanh()
    rent = hidden[:, 0] - hidden[:, 1] * hidden[:, 2] + 0.15 * torch.randn(count, generator=draw)
    district = torch.stack([hidden[:, 2], hidden[:, 3], -hidden[:, 2] - hidden[:, 3]], 1).argmax(1)
    return features, rent, district


class TwoTasks(nn.Module):
    """A trunk, a head for the rent, a head for the district, and a log variance for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(COLUMNS, 64), nn.SiLU(), nn.Linear(64, 48), nn.SiLU())
        self.rent = nn.Linear(48, 1)
        self.district = nn.Linear(48, 3)
        self.uncertainty = nn.Parameter(torch.zeros(2))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return rents and logits of districts."""
        hidden = self.trunk(features)
        return self.rent(hidden)[:, 0], self.district(hidden)


def two_tasks(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    optimizer: str = "sgd",
    unit: float = 1.0,
    shuffles: bool = False,
    cut: str = "",
    balance: str = "fixed",
    clip: float | None = None,
    scale: float = 1.0,
    unscales_first: bool = True,
    dtype: str = "float32",
    broadcast: bool = False,
    amount: int = 1500,
    batch: int = 50,
    total: int = 260,
) -> float:
    """Learn rent and district; returns the worse of the explained share and the accuracy above chance.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        optimizer: "sgd", "adam" or "rprop".
        unit: factor of the rents, such as cents for euros.
        shuffles: whether the rents lost their order.
        cut: head that sees a detached trunk: "district".
        balance: "fixed", "learned", or "unbounded" (without the term that keeps variances small).
        clip: limit of the gradient norm.
        scale: loss scale.
        unscales_first: whether gradients are unscaled before they are clipped.
        dtype: type of the weights.
        broadcast: whether the error of the rent is taken between all pairs of a batch.
        amount: number of training rows.
        batch: rows in a batch.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, rent, district = flats(seed, amount, 1)
    held_x, held_rent, held_district = flats(seed, 400, 2)
    rent = rent * unit
    if shuffles:
        rent = rent[torch.randperm(amount)]
    kind = getattr(torch, dtype)
    net = TwoTasks().to(kind)
    stepper: torch.optim.Optimizer
    if optimizer == "sgd":
        stepper = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    elif optimizer == "adam":
        stepper = torch.optim.Adam(net.parameters(), lr=rate)
    else:
        stepper = torch.optim.Rprop(net.parameters(), lr=rate)

    def losses(features: Tensor) -> tuple[Tensor, Tensor]:
        made, scores = net(features.to(kind))
        if cut == "district":
            scores = net.district(net.trunk(features.to(kind)).detach()).detach()
        return made.float(), scores.float()

    @torch.no_grad()
    def scores() -> tuple[float, float]:
        made, logits = net(held_x.to(kind))
        share = 1 - float((made.float() / unit - held_rent).square().mean() / held_rent.var())
        return share, float((logits.argmax(1) == held_district).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, stepper=stepper)
        run.resume()
        for step in run.steps(total):
            picked = torch.randperm(amount)[:batch]
            made, logits = losses(x[picked])
            error = made[:, None] - rent[picked][None] if broadcast else made - rent[picked]
            kinds = functional.cross_entropy(logits, district[picked])
            terms = Terms(rent=(1.0, error.square().mean()), district=(1.0, kinds))
            if balance != "fixed":
                weights = (-net.uncertainty).exp()
                terms = Terms(
                    rent=(1.0, weights[0] * terms["rent"].value), district=(1.0, weights[1] * terms["district"].value)
                )
                if balance == "learned":
                    terms |= Terms(variances=(0.5, net.uncertainty.sum()))
            stepper.zero_grad()
            (scale * terms.total).backward()
            if not unscales_first and clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad /= scale
            step.observe(terms, sample=[f"flat {i}" for i in picked.tolist()])
            step.update(stepper, clip=clip if unscales_first else None)
            if step.every(52):
                with run.evaluation("held out"):
                    explained, right = scores()
                    step.record({"Val/rent_explained": explained, "Val/district_right": right})
    explained, right = scores()
    return min(explained, 1.5 * right - 0.5) if math.isfinite(explained) else -1e3


USERS = 120
FILMS = 80


def rated(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, films and ratings around 0."""
    draw = torch.Generator().manual_seed(7 * seed + 1000 * salt)
    shared = torch.Generator().manual_seed(7 * seed)
    tastes = torch.randn(USERS, 3, generator=shared)
    styles = torch.randn(FILMS, 3, generator=shared)
    users = torch.randint(USERS, (count,), generator=draw)
    films = torch.randint(FILMS, (count,), generator=draw)
    noise = 0.3 * torch.randn(count, generator=draw)
    return users, films, (tastes[users] * styles[films]).sum(1) + noise


def ratings(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    start: float = 0.3,
    offset: int = 0,
    decay: float = 1e-3,
    dimensions: int = 4,
    count: int = 4000,
    optimizer: str = "adam",
    total: int = 260,
) -> float:
    """Factor a sparse table of ratings; returns the explained share of held-out ratings.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        start: deviation of the factors at the start.
        offset: number that the evaluation adds to the numbers of films.
        decay: weight of the squared factors.
        dimensions: number of factors.
        count: number of known ratings.
        optimizer: "adam" or "adagrad".
        total: number of steps.
    """
    torch.manual_seed(seed)
    users, films, stars = rated(seed, count, 1)
    held_users, held_films, held_stars = rated(seed, 1500, 2)
    user = nn.Embedding(USERS, dimensions)
    film = nn.Embedding(FILMS, dimensions)
    model = nn.ModuleDict({"user": user, "film": film})
    for table in (user, film):
        nn.init.normal_(table.weight, std=start)
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.Adagrad
    stepper = kind(model.parameters(), lr=rate)
    fall = torch.optim.lr_scheduler.StepLR(stepper, total // 3, 0.4)

    @torch.no_grad()
    def explained(numbers: Tensor) -> float:
        made = (user(held_users) * film(numbers)).sum(1)
        return 1 - float((made - held_stars).square().mean() / held_stars.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, stepper=stepper, fall=fall)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(count, (256,))
            one, other = user(users[picked]), film(films[picked])
            fit = ((one * other).sum(1) - stars[picked]).square().mean()
            size = (one.square() + other.square()).sum(1).mean()
            terms = Terms(fit=(1.0, fit), size=(decay, size))
            stepper.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(stepper)
            fall.step()
            if step.every(52):
                with run.evaluation("held-out ratings"):
                    step.record({"Test/explained": explained((held_films + offset) % FILMS), "Train/mse": fit})
    return explained((held_films + offset) % FILMS)


def payments(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return twelve features and whether a payment is fraud, as about one of thirty is."""
    draw = torch.Generator().manual_seed(43 * seed + salt)
    features = torch.randn(count, 12, generator=draw)
    risk = features[:, 0] * features[:, 1] + features[:, 2] - 0.7 * features[:, 3].abs()
    return features, (risk + 0.2 * torch.randn(count, generator=draw) > 2.0).float()


def fraud(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.01,
    sigmoids: int = 1,
    positive: float = 10.0,
    permuted: bool = False,
    flipped: float = 0.0,
    momentum: float = 0.9,
    total: int = 220,
) -> float:
    """Find rare frauds; returns the F1 score of held-out payments.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        sigmoids: number of sigmoids between the network and the loss.
        positive: weight of frauds in the loss.
        permuted: whether the evaluation has its columns in another order.
        flipped: share of the labels of the training that are inverted.
        momentum: decay of the first moment.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = payments(seed, 6000, 1)
    held_x, held_y = payments(seed, 3000, 2)
    y = torch.where(torch.rand(len(y)) < flipped, 1 - y, y)
    if permuted:
        held_x = held_x[:, torch.arange(11, -1, -1)]
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    adam = torch.optim.NAdam(model.parameters(), lr=rate, betas=(momentum, 0.999))

    def logits(features: Tensor) -> Tensor:
        made = model(features)[:, 0]
        for _ in range(sigmoids - 1):
            made = made.sigmoid()
        return made

    @torch.no_grad()
    def f1() -> float:
        found = (logits(held_x) > 0).float()
        return float(2 * (found * held_y).sum() / (found.sum() + held_y.sum()))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(len(x), (128,))
            weight = torch.tensor(positive)
            loss = functional.binary_cross_entropy_with_logits(logits(x[picked]), y[picked], pos_weight=weight)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(bce=(1.0, loss)))
            step.update(adam)
            if step.every(44):
                with run.evaluation("last month"):
                    step.record({"Eval/f1": f1(), "Eval/found": (logits(held_x) > 0).float().mean()})
    return f1()
