"""Strangers' loops on rows: warblers, a bakery, an orchestra, a tramway, an archive, a dashboard, gyroscopes."""

import copy
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def warblers(
    folder: Path,
    seed: int,
    *,
    keep: str = "copy",
    checked: str = "other songs",
    wrong: float = 0.4,
    songs: int = 150,
    total: int = 400,
) -> float:
    """Name warblers by features of their songs, with the weights that did best; returns the accuracy on new songs.

    Args:
        folder: run folder.
        seed: seed.
        keep: what is kept of the best weights: a "copy", or the "state" of the module.
        checked: what the best weights are chosen by: "other songs", or "songs" of the training.
        wrong: share of wrong labels in the training.
        songs: number of songs of the training.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(281 * seed + 3)
    middles = 20**0.5 * functional.normalize(torch.randn(6, 20, generator=draw), dim=1)

    def recorded(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(6, (count,), generator=draw)
        return middles[kind] + 1.2 * torch.randn(count, 20, generator=draw), kind

    x, y = recorded(songs)
    check_x, check_y = recorded(200)
    new_x, new_y = recorded(500)
    y = torch.where(torch.rand(len(y), generator=draw) < wrong, torch.randint(6, y.shape, generator=draw), y)
    if checked == "songs":
        check_x, check_y = x, y
    net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)

    @torch.no_grad()
    def accuracy(songs: Tensor, kinds: Tensor) -> float:
        return float((net(songs).argmax(1) == kinds).float().mean())

    best = -1.0
    state = net.state_dict()
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (32,))
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(kind=(1.0, loss)))
            step.update(adam)
            if step.every(10):
                now = accuracy(check_x, check_y)
                with run.evaluation("val"):
                    step.record({"val/accuracy": now, "val/loss": functional.cross_entropy(net(check_x), check_y)})
                if now > best:
                    best = now
                    state = copy.deepcopy(net.state_dict()) if keep == "copy" else net.state_dict()
    net.load_state_dict(state)
    return accuracy(new_x, new_y)


class Oven(nn.Module):
    """Predicts what a bakery uses, from six numbers of the day and the temperature outside."""

    def __init__(self, *, first: str, drop: float) -> None:
        super().__init__()
        self.day = nn.Linear(6, 32)
        scale: nn.Module = nn.LayerNorm(1) if first == "norm" else nn.Identity()
        self.weather = nn.Sequential(scale, nn.Linear(1, 16), nn.ReLU())
        self.middle = nn.Sequential(nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(drop))
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the prediction for each day."""
        both = torch.cat([self.day(x[:, :6]).relu(), self.weather(x[:, 6:])], 1)
        return self.out(self.middle(both))[:, 0]


def bakery(
    folder: Path,
    seed: int,
    *,
    first: str = "as it is",
    column: int = 7,
    days: int = 800,
    drop: float = 0.0,
    tails: bool = False,
    decay: float = 1e-4,
    epochs: int = 8,
) -> float:
    """Predict how much flour a bakery uses; returns the share of its variance on other days that is explained.

    Args:
        folder: run folder.
        seed: seed.
        first: what is done first to the temperature: nothing ("as it is"), or a "norm".
        column: column of the table that is predicted: 7 holds flour, 8 sugar.
        days: number of days.
        drop: share of hidden units that are dropped.
        tails: whether flour has heavy tails, and the loss is robust.
        decay: decay of the weights.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(283 * seed + 1)
    table = torch.zeros(days + 300, 9)
    table[:, :7] = torch.randn(days + 300, 7, generator=draw)
    weights = torch.randn(6, 2, generator=draw) / 2.4
    table[:, 7:] = table[:, :6] @ weights + 0.2 * torch.randn(days + 300, 2, generator=draw)
    table[:, 7] += 1.2 * table[:, 6].sin() + 0.5 * table[:, 6] * (table[:, 0] > 0)
    table[:, 8] += (table[:, 1] * table[:, 2]).tanh()
    truth = table[days:, 7].clone()
    if tails:
        far = torch.rand(days, generator=draw) < 0.05
        table[:days, 7] += far * 12 * torch.randn(days, generator=draw)
    oven = Oven(first=first, drop=drop)
    adam = torch.optim.AdamW(oven.parameters(), lr=5e-3, weight_decay=decay)
    loader = DataLoader(TensorDataset(table[:days, :7], table[:days, column]), batch_size=32, shuffle=True)

    @torch.no_grad()
    def explained(target: Tensor) -> float:
        oven.eval()
        found = oven(table[days:, :7])
        oven.train()
        return 1 - float((found - target).square().mean() / target.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(oven=oven, adam=adam)
        run.resume()
        for _ in range(epochs):
            for x, y in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = functional.smooth_l1_loss(oven(x), y) if tails else functional.mse_loss(oven(x), y)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(error=(1.0, loss)))
                step.update(adam)
                run.end_step()
            with run.evaluation("other days"):
                run.record({"eval/explained": explained(table[days:, column])})
    return explained(truth)


def orchestra(
    folder: Path,
    seed: int,
    *,
    swept: str = "update",
    rare: bool = False,
    total: int = 180,
) -> float:
    """Tell the mood of recordings of three ensembles with one network; returns the accuracy on the hardest ensemble.

    Args:
        folder: run folder.
        seed: seed.
        swept: what the gradients are cleared for: each "update", or each "part" of it.
        rare: whether one mood is rare, and is weighed accordingly.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(293 * seed + 4)
    tones = torch.randn(3, 4, 18, generator=draw)

    def recordings(ensemble: int, count: int, share: float) -> tuple[Tensor, Tensor]:
        chance = torch.tensor([share, 1.0, 1.0, 1.0])
        mood = torch.multinomial(chance, count, replacement=True, generator=draw)
        sound = tones[ensemble, mood] + 0.8 * torch.randn(count, 18, generator=draw)
        who = functional.one_hot(torch.full((count,), ensemble), 3)
        return torch.cat([sound, who], 1), mood

    share = 0.12 if rare else 1.0
    train = [recordings(i, 500, share) for i in range(3)]
    held = [recordings(i, 200, 1.0) for i in range(3)]
    weights = torch.tensor([1 / share, 1.0, 1.0, 1.0])
    trunk = nn.Sequential(nn.Linear(21, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.Adam(trunk.parameters(), lr=3e-3)

    @torch.no_grad()
    def accuracy(ensemble: int) -> float:
        x, y = held[ensemble]
        return float((trunk(x).argmax(1) == y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(trunk=trunk, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            if swept == "update":
                optimizer.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for x, y in train:
                if swept == "part":
                    optimizer.zero_grad()
                rows = torch.randint(len(x), (16,))
                loss = functional.cross_entropy(trunk(x[rows]), y[rows], weights)
                (loss / 3).backward()
                parts.append((1 / 3, Terms(mood=(1.0, loss.detach()))))
            step.observe(Terms.merged(parts))
            step.update(optimizer)
            if step.every(45):
                with run.evaluation("other recordings"):
                    step.record({"val/accuracy": sum(accuracy(i) for i in range(3)) / 3})
    return min(accuracy(i) for i in range(3))


def rides(first: int, hours: int, offset: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return features of hours (of the clock, the week and the weather), and how many ride, in hundreds.

    Args:
        first: first hour.
        hours: number of hours.
        offset: hours by which the clock of the features is ahead of the one on the wall.
        draw: generator.
    """
    hour = torch.arange(first, first + hours).float()
    shown = hour + offset
    angles = torch.stack([shown / 24, shown / 12, shown / 168], 1) * 6.2832
    rain = (torch.rand(hours, generator=draw) < 0.25).float()
    of_day = hour.remainder(24)
    weekend = (hour.div(24, rounding_mode="floor").remainder(7) >= 5).float()
    rush = (-((of_day - 8) ** 2) / 5).exp() + (-((of_day - 17.5) ** 2) / 7).exp()
    riders = 0.4 + 2.2 * rush * (1 - 0.6 * weekend) + 0.5 * rain + 0.12 * torch.randn(hours, generator=draw)
    return torch.cat([angles.sin(), angles.cos(), rain[:, None], weekend[:, None]], 1), riders


def tramway(
    folder: Path,
    seed: int,
    *,
    clock: int = 0,
    feed: str = "again and again",
    schedule: str = "none",
    total: int = 400,
) -> float:
    """Forecast the riders of a tramway by the hour; returns the share of the variance of later weeks that is explained.

    Args:
        folder: run folder.
        seed: seed.
        clock: hours by which the clock of the recorded weeks is ahead of the one on the wall.
        feed: how batches come: "again and again", or "once".
        schedule: "none", or a rate that falls when the error does not ("plateau").
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(307 * seed + 5)
    x, y = rides(0, 24 * 7 * 8, clock, draw)
    # The last of the recorded weeks is for the evaluation.
    x, check_x = x[:-168], x[-168:]
    y, check_y = y[:-168], y[-168:]
    later_x, later_y = rides(24 * 7 * 8, 24 * 7 * 3, 0, draw)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam, factor=0.5, patience=1)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in itertools.count() if feed == "again and again" else range(1):
            yield from loader

    @torch.no_grad()
    def explained(features: Tensor, truth: Tensor) -> float:
        return 1 - float((net(features)[:, 0] - truth).square().mean() / truth.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        if schedule == "plateau":
            run.track(plateau=plateau)
        run.resume()
        for step, (features, riders) in zip(run.steps(total), batches(), strict=False):
            loss = functional.mse_loss(net(features)[:, 0], riders)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(mse=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                score = explained(check_x, check_y)
                with run.evaluation("last week"):
                    step.record({"eval/explained": score})
                if schedule == "plateau":
                    plateau.step(1 - score)
    return explained(later_x, later_y)


def archive(folder: Path, seed: int, *, split: str = "once", jobs: int = 3, total: int = 600) -> float:
    """Date pages of an archive in jobs that continue each other; returns the negative error of the last record.

    The error is the difference of the accuracy that the record tells and the one on new pages.

    Args:
        folder: run folder.
        seed: seed.
        split: when pages are split into those for the training and those for the evaluation: "once", or in each "job".
        jobs: number of jobs.
        total: number of steps of all jobs.
    """
    draw = torch.Generator().manual_seed(311 * seed + 2)
    middles = 0.35 * torch.randn(6, 48, generator=draw)

    def pages(count: int) -> tuple[Tensor, Tensor]:
        century = torch.randint(6, (count,), generator=draw)
        return middles[century] + torch.randn(count, 48, generator=draw), century

    x, y = pages(600)
    new_x, new_y = pages(800)

    def accuracy(net: nn.Module, features: Tensor, truth: Tensor) -> float:
        with torch.no_grad():
            return float((net(features).argmax(1) == truth).float().mean())

    told = 0.0
    net = nn.Sequential()
    for job in range(jobs):
        torch.manual_seed(seed + (job if split == "job" else 0))
        train, check = torch.utils.data.random_split(range(len(x)), [400, 200])
        rows_of = torch.tensor(list(train))
        held = torch.tensor(list(check))
        torch.manual_seed(seed + job)
        net = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 6))
        adam = torch.optim.Adam(net.parameters(), lr=2e-3)
        with Run(folder, outputs=NO_SINKS) as run:
            run.track(net=net, adam=adam)
            run.resume()
            for step in run.steps((job + 1) * total // jobs):
                rows = rows_of[torch.randint(len(rows_of), (32,))]
                loss = functional.cross_entropy(net(x[rows]), y[rows])
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(century=(1.0, loss)))
                step.update(adam)
                if step.every(40):
                    told = accuracy(net, x[held], y[held])
                    with run.evaluation("held-out pages"):
                        step.record({"eval/accuracy": told})
    return -abs(told - accuracy(net, new_x, new_y))


def dashboard(
    folder: Path,
    seed: int,
    *,
    judged: str = "the batch",
    traced: bool = False,
    figure: str = "growth",
    total: int = 400,
) -> float:
    """Tell broken machines from their sensors, with a figure of merit at each step; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        judged: what the figure of merit is of: "the batch", "all" so far, or the "last" twenty batches.
        traced: whether autograd traces each operation.
        figure: "growth" for the negative time of the late steps over that of the early ones, or "cost" for the negative
            time of a step over that of the same computation after the training.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(313 * seed + 8)
    weights = torch.randn(24, generator=draw)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(12)], nn.Linear(24, 1))
    adam = torch.optim.Adam(net.parameters(), lr=2e-3)
    scores: list[Tensor] = []
    truths: list[Tensor] = []
    spent: list[float] = []

    def area() -> float:
        score = torch.cat(scores)
        truth = torch.cat(truths)[score.argsort()]
        below = (1 - truth).cumsum(0)
        return float((below * truth).sum() / (truth.sum() * (1 - truth).sum()).clamp(min=1))

    def computed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = net(x)[:, 0]
        loss = functional.binary_cross_entropy_with_logits(logits, y)
        adam.zero_grad()
        loss.backward()
        return logits, loss

    def machines() -> tuple[Tensor, Tensor]:
        x = torch.randn(256 if figure == "growth" else 32, 24, generator=draw)
        return x, ((x @ weights + torch.randn(len(x), generator=draw)) > 0).float()

    with Run(folder, outputs=NO_SINKS) as run, torch.autograd.set_detect_anomaly(traced):
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            x, y = machines()
            begun = time.process_time()
            logits, loss = computed(x, y)
            if figure == "growth":
                if judged == "the batch":
                    scores.clear()
                    truths.clear()
                elif judged == "last":
                    del scores[:-19], truths[:-19]
                scores.append(logits.detach())
                truths.append(y)
                step.record({"train/area": area()})
            spent.append(time.process_time() - begun)
            step.observe(Terms(broken=(1.0, loss)))
            step.update(adam)
    if figure == "growth":
        tenth = total // 10
        return -sum(spent[-tenth:]) / sum(spent[tenth // 4 : tenth // 4 + tenth])
    after: list[float] = []
    for _ in range(total // 2):
        x, y = machines()
        begun = time.process_time()
        computed(x, y)
        after.append(time.process_time() - begun)
    return -sorted(spent)[len(spent) // 2] / sorted(after)[len(after) // 2]


def gyroscopes(
    folder: Path,
    seed: int,
    *,
    angle_by: str = "arctangent",
    noise: float = 0.0,
    total: int = 500,
) -> float:
    """Find the axis of a gyroscope from its sensors; returns the negative mean angle to the true one, in degrees.

    Args:
        folder: run folder.
        seed: seed.
        angle_by: function by which the loss gets the angle: "arctangent" or "arccosine".
        noise: noise of the sensors.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(317 * seed + 3)
    mix = torch.randn(3, 8, generator=draw)

    def readings(count: int) -> tuple[Tensor, Tensor]:
        axis = functional.normalize(torch.randn(count, 3, generator=draw), dim=1)
        sensed = (axis @ mix).tanh()
        return sensed + noise * torch.randn(count, 8, generator=draw), axis

    x, y = readings(800)
    held_x, held_y = readings(300)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)

    def angle(one: Tensor, other: Tensor) -> Tensor:
        along = (one * other).sum(1)
        if angle_by == "arccosine":
            return along.clamp(-1, 1).acos()
        return torch.atan2(torch.linalg.cross(one, other).square().sum(1).add(1e-12).sqrt(), along)

    @torch.no_grad()
    def off() -> float:
        return float(angle(functional.normalize(net(held_x), dim=1), held_y).mean().rad2deg())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            loss = angle(functional.normalize(net(x), dim=1), y).mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(angle=(1.0, loss)))
            step.update(adam)
            if step.every(100):
                with run.evaluation("other readings"):
                    step.record({"val/degrees": off()})
    return -off()
