"""Vision: fields seen from the air, buoys on the sea, a body that is tuned to another task."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

SIZE = 32
COVERS = 5


def farmland(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return pictures [n, 3, 32, 32] of meadows, ponds, stubble, woods and roads, and the cover of each pixel."""
    draw = torch.Generator().manual_seed(83 * seed + salt)
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    cover = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for kind in (2, 3, 1):
        middle = 1.6 * torch.rand(count, 2, 1, 1, generator=draw) - 0.8
        radius = 0.25 + 0.25 * torch.rand(count, 1, 1, generator=draw)
        inside = (x - middle[:, 0]).abs().pow(3) + (y - middle[:, 1]).abs().pow(3) < radius.pow(3)
        cover[inside] = kind
    angle = 3.14 * torch.rand(count, 1, 1, generator=draw)
    aside = torch.rand(count, 1, 1, generator=draw) - 0.5
    cover[(angle.cos() * x + angle.sin() * y - aside).abs() < 0.07] = 4
    paint = torch.tensor([[0.3, 0.6, 0.2], [0.2, 0.3, 0.6], [0.7, 0.6, 0.3], [0.15, 0.4, 0.15], [0.6, 0.6, 0.6]])
    picture = paint[cover].permute(0, 3, 1, 2) + 0.12 * torch.randn(count, 3, SIZE, SIZE, generator=draw)
    return picture, cover


def overlap(found: Tensor, wanted: Tensor) -> float:
    """Return the mean intersection over union of the covers."""
    each = [
        ((found == k) & (wanted == k)).sum() / ((found == k) | (wanted == k)).sum().clamp(min=1) for k in range(COVERS)
    ]
    return float(torch.stack(each).mean())


def acres(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    resized: str = "nearest",
    weighted: str = "no",
    focus: float = 0.0,
    labeled: float = 1.0,
    total: int = 160,
) -> float:
    """Tell what covers each acre; returns the mean overlap with the true covers of held-out pictures.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        resized: how masks come to the size of the network: "nearest", or "as pictures" (numbers are averaged).
        weighted: weights of the covers: "no", "by frequency" (what is rare counts more), or "upside down".
        focus: exponent of the focal loss.
        labeled: share of the pixels that have a label.
        total: number of steps.
    """
    torch.manual_seed(seed)
    pictures, covers = farmland(seed, 300, 1)
    held, held_covers = farmland(seed, 80, 2)
    half = SIZE // 2

    def small(mask: Tensor) -> Tensor:
        if resized == "nearest":
            return mask[:, ::2, ::2]
        # Annotations come coarse, at an eighth of the resolution, and grow to that of the network.
        coarse = functional.interpolate(mask[:, None].float(), (8, 8), mode="area")
        return functional.interpolate(coarse, (half, half), mode="bilinear")[:, 0].round().long()

    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, COVERS, 3, padding=1),
    )
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.PolynomialLR(adam, total, power=0.9)
    counts = torch.bincount(covers.flatten(), minlength=COVERS).float()
    weight = None
    if weighted == "by frequency":
        weight = counts.mean() / counts
    elif weighted == "upside down":
        weight = counts / counts.mean()

    @torch.no_grad()
    def mean_overlap() -> float:
        return overlap(net(held).argmax(1), held_covers[:, ::2, ::2])

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(pictures), (12,))
            target = small(covers[rows])
            unknown = torch.rand(target.shape) > labeled
            target = target.masked_fill(unknown, 255)
            each = functional.cross_entropy(net(pictures[rows]), target, weight, ignore_index=255, reduction="none")
            loss = ((1 - (-each).exp()).pow(focus) * each)[~unknown].mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(pixels=(1.0, loss)))
            step.update(adam)
            schedule.step()
            if step.every(32):
                with run.evaluation("held-out pictures"):
                    step.record({"Eval/mean_iou": mean_overlap()})
    return mean_overlap()


CELLS = 6


def sea(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures [n, 1, 24, 24] of buoys, boxes [n, 3, 4] (x, y, width, height), and which are there."""
    draw = torch.Generator().manual_seed(61 * seed + salt)
    y, x = torch.meshgrid(torch.arange(24) + 0.5, torch.arange(24) + 0.5, indexing="ij")
    picture = 0.15 * torch.randn(count, 24, 24, generator=draw) + 0.2 * (y / 3).sin()
    place = 3 + 18 * torch.rand(count, 3, 2, generator=draw)
    size = 3 + 4 * torch.rand(count, 3, 2, generator=draw)
    there = torch.rand(count, 3, generator=draw) < 0.5
    for i in range(3):
        dx = (x - place[:, i, 0, None, None]).abs() / (size[:, i, 0, None, None] / 2)
        dy = (y - place[:, i, 1, None, None]).abs() / (size[:, i, 1, None, None] / 2)
        body = torch.sigmoid(6 * (1 - torch.maximum(dx, dy)))
        picture = picture + 1.2 * body * there[:, i, None, None]
    return picture[:, None], torch.cat([place, size], 2), there


def boxes_overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of boxes given as center and size."""
    low = torch.maximum(a[..., :2] - a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2)
    high = torch.minimum(a[..., :2] + a[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2)
    both = (high - low).clamp(min=0).prod(-1)
    return both / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - both)


def buoys(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    cells: str = "row, column",
    measured_from: str = "corner",
    flips: bool = False,
    total: int = 220,
) -> float:
    """Find buoys with a grid of cells, each of which answers for what lies in it; returns the F1 score at overlap 0.4.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        cells: which cell answers in training: that at "row, column", or that at "column, row".
        measured_from: origin of places in training: the "corner" of a cell, as in decoding, or its "middle".
        flips: whether training pictures are mirrored, with their boxes.
        total: number of steps.
    """
    torch.manual_seed(seed)
    pictures, boxes, there = sea(seed, 600, 1)
    held, held_boxes, held_there = sea(seed, 120, 2)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 5, 1),
    )
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=20)

    def targets(box: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        who, which = real.nonzero(as_tuple=True)
        one = box[who, which]
        at = (one[:, :2] / 4).long().clamp(0, CELLS - 1)
        shift = one[:, :2] / 4 - at - (0.5 if measured_from == "middle" else 0.0)
        column, row = at.unbind(1)
        if cells == "column, row":
            column, row = row, column
        has = torch.zeros(len(box), CELLS, CELLS)
        has[who, row, column] = 1
        wanted = torch.zeros(len(box), 4, CELLS, CELLS)
        wanted[who, :, row, column] = torch.cat([shift, one[:, 2:] / 8], 1)
        return has, wanted

    @torch.no_grad()
    def f1() -> float:
        out = net(held)
        row, column = torch.meshgrid(torch.arange(CELLS), torch.arange(CELLS), indexing="ij")
        x = 4 * (out[:, 1] + column)
        y = 4 * (out[:, 2] + row)
        found = torch.stack([x, y, 8 * out[:, 3], 8 * out[:, 4]], -1)
        sure = out[:, 0] > 0
        peak = out[:, :1] == functional.max_pool2d(out[:, :1], 3, 1, 1)
        sure &= peak[:, 0]
        hits = 0
        for some, yes, real, is_real in zip(found, sure, held_boxes, held_there, strict=True):
            pairs = boxes_overlap(some[yes][:, None], real[is_real][None]) > 0.4
            hits += int(pairs.any(0).sum()) if pairs.numel() else 0
        return 2 * hits / max(1, int(sure.sum()) + int(held_there.sum()))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt, warm=warm)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(pictures), (32,))
            picture = pictures[rows]
            box = boxes[rows].clone()
            if flips and step.index % 2:
                picture = picture.flip(3)
                box[:, :, 0] = 24 - box[:, :, 0]
            has, wanted = targets(box, there[rows])
            out = net(picture)
            terms = Terms(
                objectness=(
                    1.0,
                    functional.binary_cross_entropy_with_logits(out[:, 0], has, pos_weight=torch.tensor(4.0)),
                ),
                box=(3.0, ((out[:, 1:] - wanted).abs().mean(1) * has).sum() / has.sum().clamp(min=1)),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt, clip=3.0)
            warm.step()
            if step.every(44):
                with run.evaluation("held-out sea"):
                    step.record({"Val/f1": f1()})
    return f1()


def signs(seed: int, count: int, salt: int, task: int) -> tuple[Tensor, Tensor]:
    """Return measurements [n, 24] and which of six kinds they are, by a rule that depends on the task."""
    draw = torch.Generator().manual_seed(47 * seed + salt)
    rule = torch.Generator().manual_seed(19 * seed + task)
    mix = torch.randn(24, 6, generator=rule) / 24**0.5
    out = torch.randn(6, 6, generator=rule)
    x = torch.randn(count, 24, generator=draw)
    return x, (((x @ mix).abs() - 0.8) @ out).argmax(1)


def accents(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    first: int = 40,
    held_by: str = "all",
    average: str = "none",
    keeps: float = 0.997,
    penalty: float = 0.0,
    total: int = 600,
) -> float:
    """Tune a body that learned another task, its head first; returns the accuracy of held-out measurements.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        first: steps in which the head learns alone; -1 for all steps.
        held_by: parameters that the optimizer gets: "all", or those that need gradients "at the start".
        average: numbers of an average of the weights that is judged: "none", "float32" or "bfloat16".
        keeps: share of the average that a step keeps.
        penalty: weight of the distance from the weights before the tuning.
        total: number of steps.
    """
    torch.manual_seed(seed)
    old_x, old_y = signs(seed, 3000, 1, 1)
    body = nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 32), nn.Tanh())
    head = nn.Linear(32, 6)
    before = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(150):
        rows = torch.randint(len(old_x), (64,))
        before.zero_grad()
        functional.cross_entropy(head(body(old_x[rows])), old_y[rows]).backward()
        before.step()

    x, y = signs(seed, 4000, 2, 2)
    held_x, held_y = signs(seed, 600, 3, 2)
    head = nn.Linear(32, 6)
    tuned = nn.Sequential(body, head)
    start = [p.detach().clone() for p in body.parameters()]
    body.requires_grad_(requires_grad=False)
    chosen = [p for p in tuned.parameters() if p.requires_grad or held_by == "all"]
    optimizer = torch.optim.AdamW(chosen, lr=lr, weight_decay=1e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    mean = copy.deepcopy(tuned).requires_grad_(requires_grad=False)
    if average == "bfloat16":
        mean = mean.bfloat16()
    judged = tuned if average == "none" else mean
    kept: dict[str, Any] = {} if average == "none" else {"mean": mean}

    @torch.no_grad()
    def accuracy() -> float:
        inputs = held_x.bfloat16() if average == "bfloat16" else held_x
        return float((judged(inputs).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(tuned=tuned, optimizer=optimizer, cosine=cosine, **kept)
        run.resume()
        for step in run.steps(total):
            if step.index == first:
                body.requires_grad_()
                run.event("phase", name="all layers")
            rows = torch.randint(len(x), (64,))
            terms = Terms(names=(1.0, functional.cross_entropy(tuned(x[rows]), y[rows])))
            if penalty:
                moved = sum((p - q).square().sum() for p, q in zip(body.parameters(), start, strict=True))
                terms |= Terms(anchor=(penalty, torch.as_tensor(moved)))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            cosine.step()
            with torch.no_grad():
                for slow, fast in zip(mean.parameters(), tuned.parameters(), strict=True):
                    slow.lerp_(fast.to(slow.dtype), 1 - keeps)
            if step.every(100):
                with run.evaluation("held out"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()
