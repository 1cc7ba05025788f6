"""Strangers' loops on tables: a cellar of wines, passengers of a ferry, and jobs that a scheduler restarts."""

import copy
import csv
import io
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def wines(seed: int, count: int, salt: int, wrong: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return measurements of wines [n, 8], and which of six regions each is from; regions have no order."""
    draw = torch.Generator().manual_seed(151 * seed)
    middles = torch.randn(6, 8, generator=draw)
    draw = torch.Generator().manual_seed(151 * seed + salt)
    region = torch.randint(6, (count,), generator=draw)
    x = 1.3 * middles[region] + 0.9 * torch.randn(count, 8, generator=draw)
    other = torch.rand(count, generator=draw) < wrong
    return x, torch.where(other, torch.randint(6, (count,), generator=draw), region)


def cellar(
    folder: Path,
    seed: int,
    *,
    target: str = "kinds",
    kept: str = "",
    bottles: int = 500,
    wrong: float = 0.0,
    shares: int = 1,
    divided: bool = True,
    lr: float = 0.05,
    total: int = 250,
) -> float:
    """Tell the region of a wine; returns the accuracy on other bottles.

    Args:
        folder: run folder.
        seed: seed.
        target: how regions are learned: as "kinds", or as a "number" from 0 to 5 by its squared error.
        kept: "copy" to go back to the best weights in the end; "" to keep the last ones.
        bottles: number of bottles.
        wrong: share of wrong labels.
        shares: number of small batches whose gradients make an update.
        divided: whether the loss of each is divided by their number.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, region = wines(seed, bottles, 1, wrong)
    check_x, check = wines(seed, 200, 2)
    held_x, held = wines(seed, 400, 3)
    mlp = nn.Sequential(
        nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6 if target == "kinds" else 1)
    )
    sgd = torch.optim.SGD(mlp.parameters(), lr=lr, momentum=0.9)

    def loss_of(rows: Tensor) -> Tensor:
        out = mlp(x[rows])
        if target == "number":
            return functional.mse_loss(out[:, 0], region[rows].float())
        return functional.cross_entropy(out, region[rows])

    @torch.no_grad()
    def accuracy(features: Tensor, truth: Tensor) -> float:
        out = mlp(features)
        found = out.argmax(1) if target == "kinds" else out[:, 0].round().clamp(0, 5).long()
        return float((found == truth).float().mean())

    best = -1.0
    state = mlp.state_dict()
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(mlp=mlp, sgd=sgd)
        run.resume()
        for step in run.steps(total):
            sgd.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(shares):
                loss = loss_of(torch.randint(len(x), (32 // shares,)))
                weight = 1 / shares if divided else 1.0
                (weight * loss).backward()
                parts.append((weight, Terms(region=(1.0, loss.detach()))))
            step.observe(Terms.merged(parts))
            step.update(sgd)
            if step.every(25):
                now = accuracy(check_x, check)
                with run.evaluation("check"):
                    step.record({"check/accuracy": now})
                if now > best:
                    best = now
                    state = copy.deepcopy(mlp.state_dict())
    if kept:
        mlp.load_state_dict(state)
    return accuracy(held_x, held)


def ferry(
    folder: Path,
    seed: int,
    *,
    scaled_by: str = "training",
    schedule: str = "factors",
    plateau: bool = False,
    total: int = 300,
) -> float:
    """Forecast passengers of a growing ferry line; returns the share of the variance of later weeks that is explained.

    Args:
        folder: run folder.
        seed: seed.
        scaled_by: what later weeks are scaled by in the forecast: the "training", or "themselves".
        schedule: what the schedule returns: "factors" of the rate, or "rates".
        plateau: whether the rate falls when the error does not, instead of by a schedule.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(157 * seed + 2)
    day = torch.arange(700.0)
    people = 200 + 0.9 * day + 60 * (2 * math.pi * day / 7).sin() + 40 * (2 * math.pi * day / 91).cos()
    people = people + 12 * torch.randn(700, generator=draw)
    first, last = people[:500], people[500:]
    mean, std = first.mean(), first.std()

    def windows(series: Tensor, center: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (series - center) / spread
        pieces = scaled.unfold(0, 22, 1)
        return pieces[:, :21], pieces[:, 21]

    x, y = windows(first, mean, std)
    later_x, _ = windows(last, mean, std) if scaled_by == "training" else windows(last, last.mean(), last.std())
    truth = last.unfold(0, 22, 1)[:, 21]
    model = nn.Sequential(nn.Linear(21, 32), nn.ReLU(), nn.Linear(32, 1))
    base = 3e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=base)

    def wanted(k: int) -> float:
        rate = base * (0.1 + 0.9 * (1 + math.cos(math.pi * min(k / total, 1))) / 2)
        return rate if schedule == "rates" else rate / base

    sched = torch.optim.lr_scheduler.LambdaLR(optimizer, wanted)
    waiting = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    @torch.no_grad()
    def explained() -> float:
        found = model(later_x)[:, 0] * std + mean
        return 1 - float((found - truth).square().mean() / truth.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        if plateau:
            run.track(waiting=waiting)
        else:
            run.track(sched=sched)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(x), (48,))
            error = functional.mse_loss(model(x[i])[:, 0], y[i])
            optimizer.zero_grad()
            error.backward()
            step.observe(Terms(error=(1.0, error)))
            step.update(optimizer)
            if not plateau:
                sched.step()
            if step.every(30):
                score = explained()
                with run.evaluation("later weeks"):
                    step.record({"eval/explained": score})
                if plateau:
                    waiting.step(1 - score)
    return explained()


class Ledger(Dataset[tuple[Tensor, Tensor]]):
    """Rows of a file with comma-separated values."""

    def __init__(self, path: Path, *, cached: bool) -> None:
        self.path = path
        self.rows = self.read() if cached else None
        with path.open() as file:
            self.length = sum(1 for _ in file)
        self.seconds = 0.0

    def read(self) -> list[list[float]]:
        """Return all rows."""
        return [[float(cell) for cell in row] for row in csv.reader(io.StringIO(self.path.read_text()))]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begun = time.process_time()
        row = (self.rows or self.read())[index]
        self.seconds += time.process_time() - begun
        return torch.tensor(row[:-1]), torch.tensor(row[-1:])


def depot(
    folder: Path,
    seed: int,
    *,
    cached: bool = True,
    hooks: str = "none",
    batch: int = 16,
    rows: int = 160,
    figure: str = "explained",
    epochs: int = 5,
) -> float:
    """Forecast what leaves a depot from a file; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        cached: whether the file is read once, instead of for each row.
        hooks: what hooks on the layers keep: "none", the "last" activations, or "all" of them.
        batch: size of a batch; the last, smaller one is dropped.
        rows: number of rows.
        figure: "explained" variance of other rows, "reading" for the negative share of the time that reading takes, or
            "memory" for the negative number of MB that the hooks keep.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(163 * seed + 4)
    weights = torch.randn(6, generator=draw)
    features = torch.randn(rows + 200, 6, generator=draw)
    leaves = features @ weights + (features[:, 0] * features[:, 1]) + 0.1 * torch.randn(rows + 200, generator=draw)
    path = folder.parent / "depot.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = torch.cat([features, leaves[:, None]], 1)[:rows].tolist()
    path.write_text("\n".join(",".join(f"{cell:.5f}" for cell in row) for row in table) + "\n")
    data = Ledger(path, cached=cached)
    loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
    width = 256
    net = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    seen: list[Tensor] = []

    def remember(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if hooks == "last":
            seen.clear()
        seen.append(output)

    if hooks != "none":
        for layer in net:
            layer.register_forward_hook(remember)

    def explained() -> float:
        truth = leaves[rows:]
        with torch.no_grad():
            return 1 - float((net(features[rows:])[:, 0] - truth).square().mean() / truth.var())

    begun = time.process_time()
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for _epoch in range(epochs):
            for x, y in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = functional.mse_loss(net(x), y)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(mse=(1.0, loss)))
                step.update(adam)
                run.end_step()
            with run.evaluation("other rows"):
                run.record({"eval/explained": explained()})
    spent = time.process_time() - begun
    if figure == "reading":
        return -data.seconds / spent
    if figure == "memory":
        return -sum(output.numel() * output.element_size() for output in seen) / 1e6
    return explained()


def mill(
    folder: Path,
    seed: int,
    *,
    rate_after: str = "of the script",
    order: str = "goes on",
    jobs: int = 2,
    total: int = 240,
) -> float:
    """Grade flour in jobs that continue each other; returns the accuracy on other bags.

    Args:
        folder: run folder.
        seed: seed.
        rate_after: the rate of the later jobs, for which the script was changed as the first one was much too slow:
            that "of the script", or that "of the checkpoint", which is restored after the rate was set; "unchanged" for
            one rate that was right from the start.
        order: whether a job "goes on" with the data where the last one stopped, or "begins anew" with the first ones.
        jobs: number of jobs.
        total: number of steps of all jobs.
    """
    draw = torch.Generator().manual_seed(167 * seed + 8)
    middles = 1.2 * torch.randn(8, 10, generator=draw)
    # Mills deliver one after the other, and each has other grades.
    grade = torch.arange(8).repeat_interleave(100)
    x = middles[grade] + torch.randn(800, 10, generator=draw)
    other = torch.randint(8, (400,), generator=draw)
    other_x = middles[other] + torch.randn(400, 10, generator=draw)
    bags = TensorDataset(x, grade)
    mixed = torch.randperm(800, generator=draw)
    per_job = total // jobs

    def accuracy(net: nn.Module) -> float:
        with torch.no_grad():
            return float((net(other_x).argmax(1) == other).float().mean())

    net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 8))
    for job in range(jobs):
        torch.manual_seed(seed + job)
        net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 8))
        lr = 1e-6 if job == 0 and rate_after != "unchanged" else 3e-3
        optimizer = torch.optim.Adam(net.parameters(), lr=lr)
        with Run(folder, outputs=NO_SINKS) as run:
            run.track(net=net, optimizer=optimizer)
            run.resume()
            if job and rate_after == "of the script":
                for group in optimizer.param_groups:
                    group["lr"] = lr
            done = job * per_job
            for step in run.steps(done + per_job):
                if order == "begins anew":
                    # The stream of bags, in the order in which they were delivered.
                    start = 4 * (step.index - done)
                    rows = torch.arange(start, start + 16).remainder(800)
                else:
                    rows = mixed[torch.randint(800, (16,))]
                features, grades = bags[rows.tolist()]
                loss = functional.cross_entropy(net(features), grades)
                optimizer.zero_grad()
                loss.backward()
                step.observe(Terms(grade=(1.0, loss)))
                step.update(optimizer)
                if step.every(40):
                    with run.evaluation("other bags"):
                        step.record({"eval/accuracy": accuracy(net)})
    return accuracy(net)
