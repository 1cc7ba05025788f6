"""Tables: the strength of mortar, clicks on offers, a tutor and its pupil, counts of dice."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS


def mixtures(seed: int, count: int, salt: int, tails: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return recipes [n, 8] in units of the laboratory, and the strength of the mortar, from 0 to 1."""
    draw = torch.Generator().manual_seed(37 * seed + salt)
    z = torch.randn(count, 8, generator=draw)
    score = 0.8 * z[:, 0] * z[:, 1] + z[:, 2].tanh() - 0.7 * z[:, 3].abs() + 0.5 * z[:, 4]
    strength = torch.sigmoid(score + 0.1 * torch.randn(count, generator=draw))
    middle = torch.tensor([280.0, 900.0, 0.5, 12.0, 2.4, 20.0, 70.0, 180.0])
    spread = torch.tensor([60.0, 40.0, 0.1, 3.0, 0.2, 5.0, 9.0, 20.0])
    outlier = torch.rand(count, generator=draw) < tails
    wild = strength + 3 * torch.randn(count, generator=draw)
    return middle + spread * z, torch.where(outlier, wild, strength)


def mortar(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    kept_as: str = "float32",
    standardized: str = "columns",
    output: str = "plain",
    rows: int = 1500,
    tails: float = 0.0,
    patience: int = 0,
    scaler: float = 0.0,
    epochs: int = 14,
) -> float:
    """Predict the strength of mortar; returns the explained variance of held-out recipes.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        kept_as: type in which the strengths of the training are kept: "float32" or "int64".
        standardized: what is brought to mean 0 and spread 1: "columns" or "rows".
        output: last layer: "plain", or "normalized" by a layer norm.
        rows: number of training rows.
        tails: share of the training rows whose strength is far off.
        patience: epochs without progress after which the run stops and returns to its best epoch; 0 for none.
        scaler: initial scale of half precision; 0 for single precision.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    x, y = mixtures(seed, rows, 1, tails)
    held_x, held_y = mixtures(seed, 500, 2)
    middle = x.mean(0)
    spread = x.std(0)

    def prepared(raw: Tensor) -> Tensor:
        if standardized == "rows":
            return (raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True)
        return (raw - middle) / spread

    x = prepared(x)
    held_x = prepared(held_x)
    y = y.to(getattr(torch, kept_as)).float()
    layers: list[nn.Module] = [nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)]
    if output == "normalized":
        layers.append(nn.LayerNorm(1))
    net = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, y), batch_size=min(50, rows), seed=seed)
    half = torch.amp.GradScaler("cpu", init_scale=scaler or 1.0, growth_interval=40)
    best = math.inf
    waited = 0
    kept: dict[str, Any] = {}

    @torch.no_grad()
    def held_out() -> dict[str, float]:
        error = functional.smooth_l1_loss(net(held_x)[:, 0], held_y, beta=0.1)
        explained = 1 - (net(held_x)[:, 0] - held_y).square().mean() / held_y.var()
        return {"Validation/huber": float(error), "Validation/r2": float(explained)}

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, loader=loader, half=half)
        run.resume()
        for _ in range(loader.epoch, epochs):
            for recipe, strength in loader:
                step = run.begin_step(total=epochs * len(loader))
                with torch.autocast("cpu", torch.float16, enabled=scaler > 0):
                    found = net(recipe)[:, 0]
                terms = Terms(huber=(1.0, functional.smooth_l1_loss(found.float(), strength, beta=0.1)))
                optimizer.zero_grad()
                if scaler:
                    half.scale(terms.total).backward()
                    step.observe(terms)
                    step.update(optimizer, scaler=half)
                else:
                    terms.total.backward()
                    step.observe(terms)
                    step.update(optimizer)
                if (run.step_index + 1) % len(loader) == 0:
                    metrics = {"Validation/huber": math.inf}
                    with run.evaluation("held-out recipes"):
                        metrics = held_out()
                        step.record(metrics)
                    waited += 1
                    if metrics["Validation/huber"] < best:
                        best = metrics["Validation/huber"]
                        kept = copy.deepcopy(net.state_dict())
                        waited = 0
                run.end_step()
            if patience and waited >= patience:
                break
    if patience:
        net.load_state_dict(kept)
    return held_out()["Validation/r2"]


USERS = 300
OFFERS = 200


def seen_offers(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, offers and whether they clicked, as about one of fourteen does."""
    world = torch.Generator().manual_seed(29 * seed)
    draw = torch.Generator().manual_seed(29 * seed + salt)
    likes = torch.randn(USERS, 3, generator=world)
    has = torch.randn(OFFERS, 3, generator=world)
    fame = torch.randn(OFFERS, generator=world)
    user = torch.randint(USERS, (count,), generator=draw)
    offer = torch.randint(OFFERS, (count,), generator=draw)
    score = 0.8 * (likes[user] * has[offer]).sum(1) + fame[offer] - 4.0
    return user, offer, (torch.rand(count, generator=draw) < score.sigmoid()).float()


def clicks(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    buckets: int = 1024,
    negatives: float = 1.0,
    width: int = 8,
    decay: float = 1e-6,
    passes: int = 2,
) -> float:
    """Predict clicks; returns how much less surprising held-out clicks are than with their mean chance.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        buckets: number of rows of the tables; identities are taken modulo this number.
        negatives: share of the offers without a click that are kept for the training.
        width: numbers per identity.
        decay: weight decay.
        passes: passes over the training data.
    """
    torch.manual_seed(seed)
    user, offer, clicked = seen_offers(seed, 40000, 1)
    held_user, held_offer, held_clicked = seen_offers(seed, 12000, 2)
    kept = (clicked > 0) | (torch.rand(len(clicked)) < negatives)
    user = user[kept]
    offer = offer[kept]
    clicked = clicked[kept]
    of_user = nn.Embedding(min(buckets, USERS), width + 1)
    of_offer = nn.Embedding(min(buckets, OFFERS), width + 1)
    for table in (of_user, of_offer):
        nn.init.normal_(table.weight, std=0.3)
    bias = nn.Parameter(torch.tensor(-2.5))
    tables = nn.ModuleDict({"user": of_user, "offer": of_offer})
    optimizer = torch.optim.Adam([*tables.parameters(), bias], lr=lr, weight_decay=decay)

    def scores(u: Tensor, o: Tensor) -> Tensor:
        a = of_user(u % of_user.num_embeddings)
        b = of_offer(o % of_offer.num_embeddings)
        return (a[:, :-1] * b[:, :-1]).sum(1) + a[:, -1] + b[:, -1] + bias

    surprise = functional.binary_cross_entropy_with_logits
    rate = held_clicked.mean()
    of_mean = float(-(rate * rate.log() + (1 - rate) * (1 - rate).log()))

    @torch.no_grad()
    def gain() -> float:
        return 1 - float(surprise(scores(held_user, held_offer), held_clicked)) / of_mean

    size = len(clicked) // 100
    total = passes * 100
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(tables=tables, bias={"bias": bias}, optimizer=optimizer)
        run.resume()
        order = torch.randperm(len(clicked))
        for step in run.steps(total):
            at = step.index % 100
            if at == 0:
                order = torch.randperm(len(clicked))
            rows = order[at * size : (at + 1) * size]
            loss = surprise(scores(user[rows], offer[rows]), clicked[rows])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(surprise=(1.0, loss)))
            step.update(optimizer)
            if step.every(max(20, total // 10)):
                with run.evaluation("later offers"):
                    step.record({"Eval/gain": gain()})
    return gain()


def tutor(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    given: str = "logarithms",
    shown: str = "prepared",
    heat: float = 2.0,
    labels: float = 0.1,
    total: int = 260,
) -> float:
    """Distill a large network into a small one; returns the share of its knowledge that the small one has.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        given: what the divergence is given of the pupil: "logarithms" of chances, or "chances".
        shown: what the tutor sees: inputs as "prepared" for it, or "raw" ones.
        heat: temperature of both.
        labels: weight of the true labels.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(71 * seed + 2)
    mix = torch.randn(10, 16, generator=draw) / 10**0.5
    out = torch.randn(16, 7, generator=draw)

    def readings(count: int) -> tuple[Tensor, Tensor]:
        raw = 5 + 3 * torch.randn(count, 10, generator=draw)
        return raw, ((1.5 * (raw - 5) / 3 @ mix).sin() @ out + 0.3 * torch.randn(count, 7, generator=draw)).argmax(1)

    def prepared(raw: Tensor) -> Tensor:
        return (raw - 5) / 3

    x, y = readings(4000)
    held, _ = readings(600)
    large = nn.Sequential(nn.Linear(10, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 7))
    sgd = torch.optim.AdamW(large.parameters(), lr=3e-3)
    for _ in range(250):
        rows = torch.randint(len(x), (96,))
        sgd.zero_grad()
        functional.cross_entropy(large(prepared(x[rows])), y[rows], label_smoothing=0.05).backward()
        sgd.step()
    large.requires_grad_(requires_grad=False)
    pupil = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 7))
    optimizer = torch.optim.Adam(pupil.parameters(), lr=lr)

    @torch.no_grad()
    def knowledge() -> float:
        wanted = large(prepared(held)).softmax(1)
        mean = wanted.mean(0)
        lost = functional.kl_div(pupil(prepared(held)).log_softmax(1), wanted, reduction="batchmean")
        return 1 - float(lost / (wanted * (wanted.log() - mean.log())).sum(1).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(pupil=pupil, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (64,))
            with torch.no_grad():
                told = (large(x[rows] if shown == "raw" else prepared(x[rows])) / heat).softmax(1)
            logits = pupil(prepared(x[rows]))
            said = (logits / heat).softmax(1) if given == "chances" else (logits / heat).log_softmax(1)
            terms = Terms(
                distill=(heat**2, functional.kl_div(said, told, reduction="batchmean")),
                labels=(labels, functional.cross_entropy(logits, y[rows])),
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=5.0)
            if step.every(52):
                with run.evaluation("held-out readings"):
                    step.record({"Eval/knowledge": knowledge()})
    return knowledge()


def dice(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    total: int = 400,
) -> float:
    """Fit the density of counts given the weather; returns the mean log-likelihood of held-out counts, spread out.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(97 * seed + 8)

    def days(count: int) -> tuple[Tensor, Tensor]:
        weather = torch.randn(count, 3, generator=draw)
        mean = (1.2 + 0.5 * weather[:, 0] + 0.3 * weather[:, 1].abs()).exp()
        return weather, torch.poisson(mean, generator=draw).clamp(max=30)

    x, y = days(2500)
    held_x, held_y = days(500)
    held_y = held_y + torch.rand(len(held_y), generator=draw)
    net = nn.Sequential(nn.Linear(3, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 72))
    opt = torch.optim.RMSprop(net.parameters(), lr=lr)

    def likelihood(weather: Tensor, count: Tensor) -> Tensor:
        share, middle, width = net(weather).chunk(3, 1)
        middle = middle + torch.linspace(-1, 2, 24)
        width = (width - 1.5).clamp(-8, 3)
        z = ((count[:, None] - 5) / 5 - middle) / width.exp()
        return (share.log_softmax(1) - z.square() / 2 - width - 0.919).logsumexp(1) - math.log(5)

    @torch.no_grad()
    def held_out() -> float:
        return float(likelihood(held_x, held_y).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (128,))
            loss = -likelihood(x[rows], y[rows] + torch.rand(128)).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(likelihood=(1.0, loss)))
            step.update(opt, clip=10.0)
            if step.every(52):
                with run.evaluation("held-out days"):
                    step.record({"Eval/log_likelihood": held_out()})
    return held_out()
