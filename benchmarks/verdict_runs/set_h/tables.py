"""Tables and times: prices in a ledger, harvests of five crops, surges of demand, tides with gaps."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS

SHOPS = 900


def sales(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return shops [n], five columns [n, 5] and prices in dollars [n]."""
    world = torch.Generator().manual_seed(61 * seed)
    level = 0.5 * torch.randn(SHOPS, generator=world)
    draw = torch.Generator().manual_seed(61 * seed + salt)
    shop = torch.randint(SHOPS, (count,), generator=draw)
    columns = torch.randn(count, 5, generator=draw)
    effect = 0.5 * columns[:, 0] + 0.4 * (2 * columns[:, 1]).sin() + 0.3 * columns[:, 2] * columns[:, 3]
    return shop, columns, (3.5 + level[shop] + effect + 0.45 * torch.randn(count, generator=draw)).exp()


def ledger(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    encoded: str = "out of fold",
    answers: str = "dollars",
    patience: str = "epochs",
    rows: int = 1500,
    folds: int = 0,
    most: int = 30,
) -> float:
    """Predict prices, with the mean price of the shop as a feature.

    Returns:
        How much smaller the median error of held-out prices is than that of their median, as a share.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        encoded: rows from which the mean of a shop is taken in training: "out of fold", or "all rows".
        answers: what the model answers: "dollars", or the "logarithms" that it was trained on.
        patience: what it is patient for, 6 times: "epochs" with no better validation, or "batches" with no lower loss.
        rows: number of training rows.
        folds: number of folds, each with a model of its own; 0 for a single split.
        most: largest number of epochs.
    """
    torch.manual_seed(seed)
    shop, columns, price = sales(seed, rows, 1)
    held_shop, held_columns, held_price = sales(seed, 800, 2)
    target = price.log()

    def means(chosen: Tensor) -> Tensor:
        total = torch.zeros(SHOPS).index_add(0, shop[chosen], target[chosen] - target.mean())
        often = torch.zeros(SHOPS).index_add(0, shop[chosen], torch.ones(len(chosen)))
        return total / often.clamp(min=1)

    everything = torch.arange(rows)
    part = torch.randint(5, (rows,))
    feature = means(everything)[shop]
    if encoded == "out of fold":
        for i in range(5):
            inside = part == i
            feature = torch.where(inside, means(everything[~inside])[shop], feature)
    inputs = torch.cat([columns, feature[:, None]], 1)
    held_inputs = torch.cat([held_columns, means(everything)[held_shop][:, None]], 1)

    def one(place: Path, valid: Tensor) -> nn.Module:
        known = torch.ones(rows, dtype=torch.bool)
        known[valid] = False
        train = everything[known]
        last = nn.Linear(64, 1)
        gbm = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), last)
        nn.init.constant_(last.bias, float(target.mean()))
        optim = torch.optim.AdamW(gbm.parameters(), lr=lr, weight_decay=0.01)
        loader = ResumableLoader(
            torch.utils.data.TensorDataset(inputs[train], target[train]), batch_size=64, seed=seed, drop_last=True
        )
        best = math.inf
        waited = 0
        with Run(place, outputs=NO_SINKS) as run:
            run.track(gbm=gbm, optim=optim, loader=loader)
            run.resume()
            for _ in range(loader.epoch, most):
                for x, y in loader:
                    step = run.begin_step(total=most * len(loader))
                    loss = functional.l1_loss(gbm(x)[:, 0], y)
                    optim.zero_grad()
                    loss.backward()
                    step.observe(Terms(mae=(1.0, loss)))
                    step.update(optim)
                    if patience == "batches":
                        waited = 0 if loss.item() < best else waited + 1
                        best = min(best, loss.item())
                    run.end_step()
                    if patience == "batches" and waited >= 6:
                        return gbm
                error = math.inf
                with run.evaluation("validation"), torch.no_grad():
                    gbm.eval()
                    error = float(functional.l1_loss(gbm(inputs[valid])[:, 0], target[valid]))
                    run.record({"validation/mae": error})
                    gbm.train()
                if patience == "epochs":
                    waited = 0 if error < best else waited + 1
                    best = min(best, error)
                    if waited >= 6:
                        break
        return gbm

    models: list[nn.Module] = []
    if folds:
        for i in range(folds):
            place = folder if i == folds - 1 else folder.parent / f"fold_{i}"
            models.append(one(place, everything[i::folds]))
    else:
        models.append(one(folder, everything[::6]))
    with torch.no_grad():
        for model in models:
            model.eval()
        answer = torch.stack([model(held_inputs)[:, 0] for model in models]).mean(0)
    if answers == "dollars":
        answer = answer.exp()
    off = (answer - held_price).abs().median()
    return float(1 - off / (held_price - held_price.median()).abs().median())


def harvest(
    folder: Path,
    seed: int,
    *,
    lr: float = 0.03,
    heads: str = "five",
    weighed: str = "equally",
    total: int = 400,
) -> float:
    """Predict the harvests of five crops from soil and weather; returns their mean explained variance on other fields.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        heads: "five", or "one" that is in the list five times.
        weighed: weights of the crops: "equally", "by doubt" (learned, Kendall 2018), or "freely" (learned).
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(31 * seed + 4)
    mix = torch.randn(12, 20, generator=draw) / 12**0.5
    out = torch.randn(20, 5, generator=draw) / 20**0.5
    noise = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])

    def fields(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 12, generator=draw)
        return x, 1.5 * (1.5 * x @ mix).tanh() @ out + noise * torch.randn(count, 5, generator=draw)

    x, y = fields(2500)
    held, held_y = fields(600)

    class Farm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            if heads == "one":
                self.heads = nn.ModuleList([nn.Linear(64, 1)] * 5)
            else:
                self.heads = nn.ModuleList([nn.Linear(64, 1) for _ in range(5)])
            self.weight = nn.Parameter(torch.zeros(5))

        def forward(self, soil: Tensor) -> Tensor:
            found = self.body(soil)
            return torch.cat([head(found) for head in self.heads], 1)

    farm = Farm()
    farm.weight.requires_grad_(weighed != "equally")
    learned = [p for p in farm.parameters() if p.requires_grad]
    opt = torch.optim.SGD(learned, lr=lr, momentum=0.9)
    fall = torch.optim.lr_scheduler.MultiStepLR(opt, [total // 2, 3 * total // 4], gamma=0.3)
    crops = ("wheat", "rye", "oats", "corn", "hops")

    @torch.no_grad()
    def explained() -> dict[str, float]:
        left = (farm(held) - held_y).square().mean(0) / held_y.var(0)
        return {f"R2/{crop}": 1 - float(share) for crop, share in zip(crops, left, strict=True)}

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(farm=farm, opt=opt, fall=fall)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (50,))
            errors = (farm(x[rows]) - y[rows]).square().mean(0)
            if weighed == "by doubt":
                errors = 0.5 * (-farm.weight).exp() * errors + 0.5 * farm.weight
            elif weighed == "freely":
                errors = (1 + farm.weight) * errors
            terms = Terms(**{crop: (1.0, error) for crop, error in zip(crops, errors, strict=True)})
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            fall.step()
            if step.every(80):
                with run.evaluation("other fields"):
                    step.record(explained())
    return sum(explained().values()) / 5


def surge(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    missed: str = "above",
    online: bool = False,
    total: int = 400,
) -> float:
    """Forecast the range of the load; returns the negative pinball loss of three quantiles on later days.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        missed: side of the forecast that costs the level of the quantile: "above" or "below".
        online: whether each day is learned from once, as it comes, in a world that changes slowly.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(23 * seed + 3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def days(count: int, moved: float) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 4, generator=draw)
        middle = (x[:, 0] + moved).sin() + 0.6 * x[:, 1]
        spread = (0.4 * x[:, 2] - 0.5).exp()
        return x, middle + spread * torch.randn(count, generator=draw)

    x, load = days(3000, 0.0)
    held, held_load = days(800, 0.8 if online else 0.0)
    net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
    rms = torch.optim.RMSprop(net.parameters(), lr=lr / 5, momentum=0.8)

    def pinball(found: Tensor, truth: Tensor, side: str) -> Tensor:
        miss = truth[:, None] - found
        if side == "below":
            miss = -miss
        return torch.maximum(levels * miss, (levels - 1) * miss).mean(0)

    def losses(batch: tuple[Tensor, Tensor]) -> Terms:
        low, middle, high = pinball(net(batch[0]), batch[1], missed)
        return Terms(q10=(1.0, low), q50=(1.0, middle), q90=(1.0, high))

    @torch.no_grad()
    def figures() -> dict[str, float]:
        found = net(held)
        return {
            "later/pinball": float(pinball(found, held_load, "above").sum()),
            "later/below_q90": float((held_load < found[:, 2]).float().mean()),
        }

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, rms=rms)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (64,))
            batch = days(24, 0.8 * step.index / total) if online else (x[rows], load[rows])
            step.backward(losses, batch)
            step.update(rms, clip=2.0)
            if step.every(50):
                with run.evaluation("later"):
                    step.record(figures())
    return -figures()["later/pinball"]


def tides(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    gaps: str = "filled",
    answers: str = "levels",
    epochs: int = 6,
) -> float:
    """Forecast the sea level six hours ahead; returns the explained variance in the months after the training.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        gaps: what becomes of hours without a reading: "filled" from their neighbors, or "dropped" from the table.
        answers: what a forecast is: "levels", or the "changes" since the last reading that the network gives.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = np.random.default_rng(17 * seed + 1)
    hours = np.arange(3200)
    level = 1.5 + np.sin(2 * np.pi * hours / 12.42) + 0.4 * np.sin(2 * np.pi * hours / 23.93)
    level = level + 0.3 * np.sin(2 * np.pi * hours / 340) + 0.05 * draw.normal(size=len(hours))
    before = hours[:2400]
    read = draw.random(len(before)) > 0.22
    early = level[:2400][read]
    if gaps == "filled":
        early = np.interp(before, before[read], early)
    middle = early.mean()
    spread = early.std()

    def windows(series: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        scaled = torch.from_numpy(((series - middle) / spread).astype(np.float32))
        cut = scaled.unfold(0, 54, 1)
        return cut[:, :48], cut[:, 48:] - cut[:, 47:48], cut[:, 47:48]

    past, change, _ = windows(early)
    held_past, held_change, held_last = windows(level[2400:])
    truth = held_change + held_last
    mlp = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(0.1), nn.Linear(64, 64), nn.LeakyReLU(0.1), nn.Linear(64, 6))
    adam = torch.optim.Adam(mlp.parameters(), lr=lr)
    loader = ResumableLoader(torch.utils.data.TensorDataset(past, change), batch_size=64, seed=seed)

    @torch.no_grad()
    def skill() -> float:
        found = mlp(held_past)
        if answers == "levels":
            found = found + held_last
        return 1 - float((found - truth).square().mean() / truth.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(mlp=mlp, adam=adam, loader=loader)
        run.resume()
        for _ in range(loader.epoch, epochs):
            for x, y in loader:
                step = run.begin_step(total=epochs * len(loader))
                terms = Terms(huber=(1.0, functional.smooth_l1_loss(mlp(x), y)))
                adam.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(adam)
                run.end_step()
            with run.evaluation("later months"):
                run.record({"Later/skill": skill()})
    return skill()
