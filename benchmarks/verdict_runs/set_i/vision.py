"""Strangers' loops on pictures: mushrooms, parcels on a belt, lesions, and the needle of a compass."""

import itertools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def caps(seed: int, count: int, salt: int, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return pictures of mushrooms [n, 3, 16, 16], and whether each is poisonous: its cap has spots."""
    draw = torch.Generator().manual_seed(89 * seed + salt)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    bad = torch.rand(count, generator=draw) < share
    center = 8 + 2 * torch.rand(count, 2, 1, 1, generator=draw) - 1
    cap = ((x - center[:, 0]) ** 2 / 30 + (y - center[:, 1]) ** 2 / 16 < 1).float()
    phase = 6.3 * torch.rand(count, 2, 1, 1, generator=draw)
    spots = ((1.6 * x + phase[:, 0]).sin() * (1.6 * y + phase[:, 1]).sin() > 0.45).float()
    color = 0.3 + 0.5 * torch.rand(count, 3, 1, 1, generator=draw)
    pictures = color * cap[:, None] + 0.35 * (cap * spots)[:, None] * bad[:, None, None, None]
    return pictures + 0.1 * torch.randn(count, 3, 16, 16, generator=draw), bad.long()


def mushrooms(
    folder: Path,
    seed: int,
    *,
    outputs: int = 2,
    drop: float = 0.1,
    half: bool = False,
    cyclic: bool = False,
    share: float = 0.5,
    epochs: int = 8,
) -> float:
    """Tell poisonous mushrooms; returns the mean of both recalls on other pictures.

    Args:
        folder: run folder.
        seed: seed.
        outputs: number of logits.
        drop: what is handed to the dropout.
        half: whether to compute in float16, with a scaler.
        cyclic: whether the rate goes up and down.
        share: share of poisonous ones in the training.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    train = TensorDataset(*caps(seed, 480, 1, share))
    test_x, test_y = caps(seed, 300, 2)
    loader = DataLoader(train, batch_size=24, shuffle=True)
    cnn = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(384, 48),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(48, outputs),
    )
    optimizer = torch.optim.Adam(cnn.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, (1 - share) / share]) if share != 0.5 else None)
    scheduler = (
        torch.optim.lr_scheduler.CyclicLR(optimizer, 3e-4, 4e-3, step_size_up=20, cycle_momentum=False)
        if cyclic
        else torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    )
    scaler = torch.amp.GradScaler("cpu", enabled=half, init_scale=2.0**12)

    @torch.no_grad()
    def recall() -> float:
        logits = cnn(test_x)
        found = logits.argmax(1) if outputs > 1 else (logits[:, 0] > 0).long()
        return float(torch.stack([(found == test_y)[test_y == kind].float().mean() for kind in (0, 1)]).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(cnn=cnn, optimizer=optimizer, scheduler=scheduler)
        run.resume()
        for _epoch in range(epochs):
            for images, labels in loader:
                step = run.begin_step(total=epochs * len(loader))
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16, enabled=half):
                    logits = cnn(images)
                loss = criterion(logits.float(), labels if outputs > 1 else labels[:, None].float())
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                step.observe(Terms(cross_entropy=(1.0, loss)))
                step.update(optimizer)
                scaler.update()
                scheduler.step()
                run.end_step()
            with run.evaluation("validation"):
                cnn.eval()
                run.record({"val/recall": recall()})
                cnn.train()
    cnn.eval()
    return recall()


KINDS = 3
"""Kinds of parcels, besides none."""


def belts(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return photos of a belt [n, 1, 32, 32], kinds of parcels per cell [n, 4, 4] with -1 for none, and their sizes."""
    draw = torch.Generator().manual_seed(97 * seed + salt)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    photos = 0.15 * torch.randn(count, 32, 32, generator=draw)
    kinds = torch.full((count, 4, 4), -1)
    sizes = torch.zeros(count, 4, 4)
    there = torch.rand(count, 4, 4, generator=draw) < 0.4
    kind = torch.randint(KINDS, (count, 4, 4), generator=draw)
    size = 2.0 + 1.8 * torch.rand(count, 4, 4, generator=draw)
    for row, column in itertools.product(range(4), range(4)):
        away = torch.stack([(x - 8 * column - 4).abs(), (y - 8 * row - 4).abs()])
        half = size[:, row, column, None, None]
        shapes = torch.stack(
            [away.amax(0) < half, away.norm(dim=0) < half, (away.amin(0) < 1.2) & (away.amax(0) < half)]
        )
        shown = shapes.gather(0, kind[None, :, row, column, None, None].expand(1, count, 32, 32))[0]
        photos += there[:, row, column, None, None] * shown
        kinds[:, row, column] = torch.where(there[:, row, column], kind[:, row, column], -1)
        sizes[:, row, column] = there[:, row, column] * size[:, row, column]
    return photos[:, None], kinds, sizes


def parcels(
    folder: Path,
    seed: int,
    *,
    first: int = 1,
    annotated: str = "as trained",
    summed: bool = True,
    total: int = 260,
) -> float:
    """Find parcels on a belt, in cells; returns the share of cells with the right kind and size within a pixel.

    Args:
        folder: run folder.
        seed: seed.
        first: number of the first kind; 0 is the background.
        annotated: pixels of the annotations: of the photo "as trained", or of the "full" one, four times as large.
        summed: whether the losses are added, instead of the last one being kept.
        total: number of steps.
    """
    torch.manual_seed(seed)
    photos, kinds, sizes = belts(seed, 300, 1)
    seen_photos, seen_kinds, seen_sizes = belts(seed, 100, 2)
    if annotated == "full":
        sizes = 4 * sizes
    labels = torch.where(kinds >= 0, kinds + first, 0)
    detector = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 5, 4, stride=4),
    )
    sgd = torch.optim.AdamW(detector.parameters(), lr=4e-3)

    @torch.no_grad()
    def score() -> float:
        out = detector(seen_photos)
        found = out[:, :4].argmax(1)
        wanted = torch.where(seen_kinds >= 0, seen_kinds + 1, 0)
        # Kinds are read as they were numbered in the training.
        as_numbered = torch.where(found > 0, found + 1 - first, 0)
        near = ((out[:, 4] - seen_sizes).abs() < 1) | (wanted == 0)
        there = wanted > 0
        return float(((as_numbered == wanted) & near)[there].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(detector=detector, sgd=sgd)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(photos), (20,))
            out = detector(photos[rows])
            there = labels[rows] > 0
            losses = {
                "kind": functional.cross_entropy(out[:, :4], labels[rows]),
                "size": functional.smooth_l1_loss(out[:, 4][there], sizes[rows][there]),
            }
            if not summed:
                losses = dict([list(losses.items())[-1]])
            terms = Terms(**{name: (1.0, value) for name, value in losses.items()})
            sgd.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(sgd)
            if step.every(65):
                with run.evaluation("another shift"):
                    detector.eval()
                    step.record({"eval/cells_right": score()})
                    detector.train()
    detector.eval()
    return score()


def scans(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return scans [n, 1, 24, 24], and masks of small bright lesions."""
    draw = torch.Generator().manual_seed(101 * seed + salt)
    y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    place = 4 + 16 * torch.rand(count, 2, 1, 1, generator=draw)
    radius = 1.3 + 1.2 * torch.rand(count, 1, 1, generator=draw)
    mask = ((x - place[:, 0]) ** 2 + (y - place[:, 1]) ** 2 < radius**2).float()
    tissue = functional.interpolate(torch.randn(count, 1, 6, 6, generator=draw), size=24, mode="bicubic")[:, 0]
    return (0.3 * tissue + 0.9 * mask + 0.2 * torch.randn(count, 24, 24, generator=draw))[:, None], mask[:, None]


def lesions(
    folder: Path,
    seed: int,
    *,
    overlap_of: str = "chances",
    mixed: bool = True,
    held_layers: int = 0,
    total: int = 200,
) -> float:
    """Outline lesions, which cover a hundredth of a scan; returns the mean overlap (Dice) on other scans.

    Args:
        folder: run folder.
        seed: seed.
        overlap_of: what the overlap in the loss is of: "chances" or "logits".
        mixed: whether cross-entropy is in the loss.
        held_layers: number of steps for which the first layer is held, as after a warm start.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, mask = scans(seed, 240, 1)
    other, other_mask = scans(seed, 80, 2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 12, 5, padding=2)
            self.deep = nn.Conv2d(12, 16, 3, padding=2, dilation=2)
            self.last = nn.Conv2d(28, 1, 3, padding=1)

        def forward(self, scan: Tensor) -> Tensor:
            near = self.first(scan).relu()
            return self.last(torch.cat([near, self.deep(near).relu()], 1))

    net = Net()
    optim = torch.optim.Adam(net.parameters(), lr=5e-3)

    def dice(found: Tensor, wanted: Tensor) -> Tensor:
        both = (found * wanted).sum((1, 2, 3))
        return (1 - (2 * both + 1) / (found.sum((1, 2, 3)) + wanted.sum((1, 2, 3)) + 1)).mean()

    def terms_of(batch: tuple[Tensor, Tensor]) -> Terms:
        scan, wanted = batch
        logits = net(scan)
        overlap = dice(logits.sigmoid() if overlap_of == "chances" else logits, wanted)
        if not mixed:
            return Terms(dice=(1.0, overlap))
        return Terms(dice=(1.0, overlap), bce=(1.0, functional.binary_cross_entropy_with_logits(logits, wanted)))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optim=optim)
        run.resume()
        for step in run.steps(total):
            net.first.requires_grad_(step.index >= held_layers)
            rows = torch.randint(len(x), (24,))
            step.backward(terms_of, (x[rows], mask[rows]))
            step.update(optim)
            if step.every(50):
                with run.evaluation("other patients"), torch.no_grad():
                    found = (net(other) > 0).float()
                    step.record({"dice/validation": 1 - float(dice(found, other_mask))})
    with torch.no_grad():
        return 1 - float(dice((net(other) > 0).float(), other_mask))


def dials(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return pictures of a compass [n, 1, 20, 20], and where its needle points, in degrees from 0 to 360."""
    draw = torch.Generator().manual_seed(103 * seed + salt)
    degrees = 360 * torch.rand(count, generator=draw)
    y, x = torch.meshgrid(torch.arange(20.0) - 9.5, torch.arange(20.0) - 9.5, indexing="ij")
    turn = (degrees * math.pi / 180)[:, None, None]
    along = x * turn.cos() + y * turn.sin()
    across = (y * turn.cos() - x * turn.sin()).abs()
    needle = ((along > 0) & (along < 8) & (across < 1.2)).float()
    return (needle + 0.2 * torch.randn(count, 20, 20, generator=draw))[:, None], degrees


def compass(folder: Path, seed: int, *, target: str = "direction", warm_up: int = 0, total: int = 320) -> float:
    """Read a compass; returns the negative mean error in degrees, around the circle.

    Args:
        folder: run folder.
        seed: seed.
        target: what the network learns: the "direction" as sine and cosine, or the "number" of degrees / 360.
        warm_up: steps over which the rate rises.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, degrees = dials(seed, 600, 1)
    held, held_degrees = dials(seed, 200, 2)
    radians = degrees * math.pi / 180
    y = torch.stack([radians.cos(), radians.sin()], 1) if target == "direction" else degrees[:, None] / 360
    reader = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 32),
        nn.ReLU(),
        nn.Linear(32, y.shape[1]),
    )
    opt = torch.optim.Adam(reader.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / max(warm_up, 1)))

    @torch.no_grad()
    def error() -> float:
        out = reader(held)
        found = torch.atan2(out[:, 1], out[:, 0]) * 180 / math.pi if target == "direction" else 360 * out[:, 0]
        off = (found - held_degrees).remainder(360)
        return float(torch.minimum(off, 360 - off).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(reader=reader, opt=opt, sched=sched)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(x), (32,))
            loss = (reader(x[i]) - y[i]).square().sum(1).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(squared=(1.0, loss)))
            step.update(opt)
            sched.step()
            if step.every(80):
                with run.evaluation("other days"):
                    step.record({"degrees_off": error()})
    return -error()
