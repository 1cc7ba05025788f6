"""Pictures: joints of a hand, sharper tiles, strings of signs read column by column."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

SIDE = 16


def hands(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return pictures of a cross and a ring, shape [count, 1, 16, 16], and their places x, y in [-1, 1]."""
    draw = torch.Generator().manual_seed(101 * seed + salt)
    line = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(line, line, indexing="ij")
    places = 1.5 * torch.rand(count, 2, 2, generator=draw) - 0.75
    dx = x - places[:, :, 0, None, None]
    dy = y - places[:, :, 1, None, None]
    cross = (-60 * torch.minimum(dx[:, 0].abs(), dy[:, 0].abs()).square() - 12 * (dx[:, 0] ** 2 + dy[:, 0] ** 2)).exp()
    ring = (-60 * ((dx[:, 1] ** 2 + dy[:, 1] ** 2 + 1e-6).sqrt() - 0.3).square()).exp()
    made = cross + ring + 0.15 * torch.randn(count, SIDE, SIDE, generator=draw)
    return made[:, None], places


class Joints(nn.Module):
    """Heat maps of two joints, and their centers.

    Args:
        over: dimensions of the softmax, "pixels" or "joints".
    """

    def __init__(self, over: str) -> None:
        super().__init__()
        self.over = over
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 5, padding=2),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 2, 1),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the places of the joints, shape [batch, 2, 2]."""
        heat = self.body(pictures)
        heat = heat.flatten(2).softmax(2).view_as(heat) if self.over == "pixels" else heat.softmax(1)
        line = torch.linspace(-1, 1, SIDE)
        return torch.stack([(heat.sum(2) * line).sum(2), (heat.sum(3) * line).sum(2)], 2)


def joints(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.1,
    over: str = "pixels",
    in_pixels: bool = False,
    mirrors: str = "none",
    exchanged: bool = False,
    mode: str = "eval",
    batch: int = 16,
    amount: int = 800,
    total: int = 120,
) -> float:
    """Find two joints with Nesterov's momentum; returns the share of held-out joints that are found.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        over: dimensions of the softmax.
        in_pixels: whether the targets are in pixels.
        mirrors: "none", "both" (pictures and targets), or "targets".
        exchanged: whether the evaluation reads rows as x.
        mode: mode of the model in the evaluation.
        batch: number of pictures in a batch.
        amount: number of training pictures.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = hands(seed, amount, 1)
    held_x, held_y = hands(seed, 100, 2)
    if in_pixels:
        y = (y + 1) / 2 * (SIDE - 1)
    net = Joints(over)
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, total)

    @torch.no_grad()
    def found(pictures: Tensor, places: Tensor) -> float:
        made = net(pictures)
        if exchanged:
            made = made.flip(2)
        return float(((made - places).norm(dim=2) < 0.2).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, sgd=sgd, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (batch,))
            pictures, places = x[chosen], y[chosen]
            if mirrors != "none" and torch.rand(()) < 0.5:
                places = places * torch.tensor([-1.0, 1.0])
                if mirrors == "both":
                    pictures = pictures.flip(3)
            loss = functional.smooth_l1_loss(net(pictures), places, beta=0.1)
            sgd.zero_grad()
            loss.backward()
            step.observe(Terms(places=(1.0, loss)))
            step.update(sgd)
            schedule.step()
            if step.every(24):
                with run.evaluation("held-out hands"):
                    net.train(mode == "train")
                    step.record({"Val/found": found(held_x, held_y)})
    net.eval()
    return found(held_x, held_y)


def tiles(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return coarse tiles of 8 pixels and the sharp ones of 16 that they are made of."""
    draw = torch.Generator().manual_seed(211 * seed + salt)
    line = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(line, line, indexing="ij")
    angle, place, other = (torch.rand(count, 1, 1, generator=draw) for _ in range(3))
    across = x * (6.2832 * angle).cos() + y * (6.2832 * angle).sin()
    edges = (25 * (across - place + 0.5)).tanh()
    stripes = (7 * across + 6 * other).sin()
    sharp = (0.5 + 0.3 * edges + 0.15 * stripes)[:, None]
    return functional.avg_pool2d(sharp, 2), sharp


class Sharper(nn.Module):
    """Adds details to a tile that is twice as large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1, padding_mode="replicate"),
            nn.PReLU(),
            nn.Conv2d(24, 24, 3, padding=1, padding_mode="replicate"),
            nn.PReLU(),
            nn.Conv2d(24, 4, 3, padding=1, padding_mode="replicate"),
            nn.PixelShuffle(2),
        )

    def forward(self, coarse: Tensor) -> Tensor:
        """Return tiles of twice the size."""
        return functional.interpolate(coarse, scale_factor=2, mode="bilinear") + self.body(coarse)


def sharpen(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    loss: str = "charbonnier",
    flips: str = "none",
    twice: bool = False,
    wrong_tile: int = -1,
    worst: bool = False,
    scaler: float = 0.0,
    batch: int = 10,
    amount: int = 300,
    restarts: int = 0,
    total: int = 180,
) -> float:
    """Sharpen tiles; returns the gain of held-out PSNR over an interpolation, or how far the worst tile is off.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        loss: "charbonnier", or "psnr" (which is minimized).
        flips: "none", "both", or "targets".
        twice: whether the targets are normalized a second time.
        wrong_tile: tile whose target is that of another one; -1 for none.
        worst: whether the figure is the negative loss of the worst tile over that of the median one.
        scaler: initial factor of a gradient scaler for float16; 0 for none.
        batch: number of tiles in a batch.
        amount: number of training tiles.
        restarts: steps between restarts of the rate; 0 for a constant rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    coarse, sharp = tiles(seed, amount, 1)
    held_coarse, held_sharp = tiles(seed, 50, 2)
    mean, std = coarse.mean(), coarse.std()
    coarse, held_coarse = (coarse - mean) / std, (held_coarse - mean) / std
    sharp = (sharp - mean) / std
    if twice:
        sharp = (sharp - mean) / std
    if wrong_tile >= 0:
        sharp[wrong_tile] = sharp[(wrong_tile + 1) % amount].flip(-1)
    net = Sharper()
    adam = torch.optim.Adam(net.parameters(), lr=rate)
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(adam, restarts)
        if restarts
        else torch.optim.lr_scheduler.ConstantLR(adam, 1.0)
    )
    grades = torch.amp.GradScaler("cpu", init_scale=scaler, growth_interval=50) if scaler else None

    @torch.no_grad()
    def gain() -> float:
        made = net(held_coarse) * std + mean
        plain = functional.interpolate(held_coarse, scale_factor=2, mode="bilinear") * std + mean
        ratio = (plain - held_sharp).square().mean() / (made - held_sharp).square().mean()
        return 10 * math.log10(max(float(ratio), 1e-12)) if math.isfinite(float(ratio)) else -1e3

    order = torch.randperm(amount)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, schedule=schedule, **({} if grades is None else {"grades": grades}))
        run.resume()
        for step in run.steps(total):
            at = step.index * batch % (amount - batch + 1)
            if at < batch:
                order = torch.randperm(amount)
            chosen = order[at : at + batch]
            small, large = coarse[chosen], sharp[chosen]
            if flips != "none" and torch.rand(()) < 0.5:
                large = large.flip(3)
                if flips == "both":
                    small = small.flip(3)
            with torch.autocast("cpu", torch.float16, enabled=grades is not None):
                made = net(small).float()
            each = ((made - large).square() + 1e-6).sqrt().mean((1, 2, 3))
            if loss == "psnr":
                each = -10 * (made - large).square().mean((1, 2, 3)).log10()
            terms = Terms(detail=(1.0, each.mean()))
            adam.zero_grad()
            (terms.total if grades is None else grades.scale(terms.total)).backward()
            step.observe(terms, sample=[f"tile_{i:03d}" for i in chosen.tolist()], sample_loss=each.detach())
            step.update(adam, scaler=grades)
            schedule.step()
            if step.every(36):
                with run.evaluation("held-out tiles"):
                    step.record({"Val/gain": gain()})
    if worst:
        with torch.no_grad():
            far = ((net(coarse) - sharp).square() + 1e-6).sqrt().mean((1, 2, 3))
        return -float(far.max() / far.median())
    return gain()


SIGNS = 7
COLUMNS = 24


def strips(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return strips of 24 columns of 6 pixels that show four of seven signs, and the signs."""
    draw = torch.Generator().manual_seed(307 * seed + salt)
    shapes = torch.randn(SIGNS, 3, 6, generator=torch.Generator().manual_seed(307 * seed))
    signs = torch.randint(SIGNS, (count, 4), generator=draw)
    made = 0.25 * torch.randn(count, COLUMNS, 6, generator=draw)
    for place in range(4):
        start = 6 * place + torch.randint(4, (count,), generator=draw)
        for column in range(3):
            made[torch.arange(count), start + column] += shapes[signs[:, place], column]
    return made, signs


class Reader(nn.Module):
    """Reads a strip in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.GRU(6, 24, batch_first=True, bidirectional=True)
        self.say = nn.Linear(48, SIGNS + 1)

    def forward(self, strip: Tensor) -> Tensor:
        """Return logits, shape [batch, columns, 8]; the last one is the blank."""
        return self.say(self.look(strip)[0])


def strings(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-2,
    blank: int = SIGNS,
    columns: int = COLUMNS,
    normalizes: str = "log",
    reverses: bool = False,
    average: float = 0.9,
    tracks_average: bool = True,
    stop: int = 0,
    total: int = 125,
) -> float:
    """Read strips by connectionist temporal classification; returns the share of held-out strips read without an error.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        blank: class that the loss takes for the blank.
        columns: lengths of the inputs that the loss gets.
        normalizes: "log" (log_softmax) or "plain" (softmax).
        reverses: whether the targets are read from right to left.
        average: decay of the average of the weights, which is evaluated.
        tracks_average: whether checkpoints hold the average.
        stop: step at which the run stops and is continued; 0 for a run in one part.
        total: number of steps.
    """
    x, y = strips(seed, 1000, 1)
    held_x, held_y = strips(seed, 200, 2)
    y = y.flip(1) if reverses else y
    figure = 0.0
    for part, end in enumerate([stop, total] if stop else [total]):
        torch.manual_seed(seed + part)
        net = Reader()
        mean = torch.optim.swa_utils.AveragedModel(
            net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average)
        )
        adam = torch.optim.Adam(net.parameters(), lr=rate)

        @torch.no_grad()
        def read(mean: nn.Module = mean) -> float:
            said = mean(held_x).argmax(2).tolist()
            right = 0
            for row, truth in zip(said, held_y.tolist(), strict=True):
                kept = [one for i, one in enumerate(row) if one != SIGNS and (i == 0 or one != row[i - 1])]
                right += kept == truth
            return right / len(said)

        with Run(folder, outputs=NO_SINKS) as run:
            run.track(net=net, adam=adam, **({"mean": mean} if tracks_average else {}))
            run.resume()
            for step in run.steps(end):
                chosen = torch.randint(len(x), (24,))
                scores = net(x[chosen]).transpose(0, 1)
                chances = scores.log_softmax(2) if normalizes == "log" else scores.softmax(2)
                lengths = torch.full((24,), columns)
                loss = functional.ctc_loss(chances, y[chosen], lengths, torch.full((24,), 4), blank=blank)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(ctc=(1.0, loss)))
                step.update(adam, clip=5.0)
                mean.update_parameters(net)
                if step.every(25):
                    with run.evaluation("held-out strips"):
                        step.record({"Val/read": read(), "Train/ctc": loss.detach()})
        figure = read()
    return figure
