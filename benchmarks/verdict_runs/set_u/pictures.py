"""Sound trainings on small pictures: few pixels of interest, mixed samples, averages, half precision."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def stars(n: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of 24 pixels a side with one to three stars of four pixels, and masks of these."""
    mask = torch.zeros(n, 1, 24, 24)
    for i in range(n):
        for _ in range(int(torch.randint(1, 4, (1,), generator=gen))):
            r, c = (int(v) for v in torch.randint(23, (2,), generator=gen))
            mask[i, 0, r : r + 2, c : c + 2] = 1
    return 0.8 * mask + 0.3 * torch.randn(n, 1, 24, 24, generator=gen), mask


def astronomer(folder: Path, seed: int, *, total: int = 160) -> float:
    """Segment stars, a hundredth of all pixels, by Dice and cross-entropy; returns the Dice of other pictures."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(89 * seed + 1)
    x, y = stars(400, gen)
    xv, yv = stars(100, gen)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU())
    last = nn.Conv2d(12, 1, 1)
    net.append(last)
    if last.bias is not None:
        nn.init.constant_(last.bias, -4.0)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)

    def dice(chance: Tensor, truth: Tensor) -> Tensor:
        return (2 * (chance * truth).sum() + 1) / (chance.sum() + truth.sum() + 1)

    def scored() -> float:
        with torch.no_grad():
            return float(dice((net(xv) > 0).float(), yv))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(400, (16,))
            logit = net(x[i])
            terms = Terms(
                bce=(1.0, functional.binary_cross_entropy_with_logits(logit, y[i])),
                dice=(1.0, 1 - dice(logit.sigmoid(), y[i])),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(40):
                with run.evaluation("other pictures"):
                    step.record({"val/dice": scored()})
    return scored()


def finder(folder: Path, seed: int, *, total: int = 200) -> float:
    """Find the only star by a map of heat and an offset; returns the share found within a pixel and a half."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(97 * seed + 1)
    line = torch.arange(24.0)

    def sky(n: int) -> tuple[Tensor, Tensor]:
        place = 2 + 20 * torch.rand(n, 2, generator=gen)
        far = (line[None, :, None] - place[:, 0, None, None]).square() + (line - place[:, 1, None, None]).square()
        return ((-far / 2).exp() + 0.2 * torch.randn(n, 24, 24, generator=gen))[:, None], place

    x, place = sky(600)
    xv, pv = sky(200)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
    )
    heat, offset = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 2, 1)
    model = nn.ModuleDict({"body": body, "heat": heat, "offset": offset})
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)

    def found() -> tuple[float, float]:
        with torch.no_grad():
            h = body(xv)
            cell = heat(h).flatten(1).argmax(1)
            move = offset(h).flatten(2).gather(2, cell[:, None, None].expand(-1, 2, 1))[..., 0]
        away = (torch.stack([cell // 12, cell % 12], 1) * 2 + move - pv).norm(dim=1)
        return float((away < 1.5).float().mean()), float(away.median())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(600, (32,))
            h = body(x[i])
            cell = (place[i] / 2).long().clamp(0, 11)
            index = cell[:, 0] * 12 + cell[:, 1]
            chance = heat(h).flatten(1).sigmoid().clamp(1e-4, 1 - 1e-4)
            hot = functional.one_hot(index, 144)
            focal = -torch.where(hot > 0, (1 - chance).square() * chance.log(), chance.square() * (1 - chance).log())
            move = offset(h).flatten(2).gather(2, index[:, None, None].expand(-1, 2, 1))[..., 0]
            terms = Terms(heat=(1.0, focal.sum() / len(i)), offset=(0.5, functional.l1_loss(move, place[i] - 2 * cell)))
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(50):
                share, pixels = found()
                with run.evaluation("other skies"):
                    step.record({"val/within_1.5_px": share, "val/median_distance": pixels})
    return found()[0]


def shapes(n: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of 12 pixels a side and what is in them: a bar, a beam, a cross or a square."""
    kind = torch.randint(4, (n,), generator=gen)
    x = torch.zeros(n, 1, 12, 12)
    corner = torch.randint(5, (n, 2), generator=gen)
    for i in range(n):
        r, c = (int(v) for v in corner[i])
        if kind[i] in (0, 2):
            x[i, 0, r : r + 7, c + 3] = 1
        if kind[i] in (1, 2):
            x[i, 0, r + 3, c : c + 7] = 1
        if kind[i] == 3:
            x[i, 0, r + 1 : r + 6, c + 1 : c + 6] = 0.6
    return x + 0.45 * torch.randn(n, 1, 12, 12, generator=gen), kind


def shape_net(drop: float = 0.0, *, norm: bool = True) -> nn.Sequential:
    """Return a small convolutional network for shapes."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.BatchNorm2d(24) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(drop),
        nn.Linear(24 * 9, 4),
    )


def toy_shop(
    folder: Path,
    seed: int,
    *,
    trick: str = "mixup",
    drop: float = 0.0,
    batch: int = 32,
    rows: int = 800,
    total: int = 200,
) -> float:
    """Tell shapes; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        trick: "mixup", "smoothing", "sam" for two gradients a step, "swa" for an average of late weights, "checkpoint"
            for activations that are computed twice, "bfloat16", or "restarts" of the rate.
        drop: chance to drop a feature.
        batch: size of a batch.
        rows: number of training pictures.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(101 * seed + 1)
    x, y = shapes(rows, gen)
    xv, yv = shapes(400, gen)
    net = shape_net(drop, norm=batch > 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05 if batch > 1 else 0.004, momentum=0.9, weight_decay=5e-4)
    schedule = (
        torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, total // 3)
        if trick == "restarts"
        else torch.optim.lr_scheduler.CosineAnnealingLR(opt, total, eta_min=0.01 if trick == "swa" else 0.0)
    )
    average = torch.optim.swa_utils.AveragedModel(net)
    begin = int(0.7 * total)

    def out_of(features: Tensor) -> Tensor:
        if trick == "checkpoint":
            return net[6:](checkpoint(net[:6], features, use_reentrant=False))
        return net(features)

    def loss_of(features: Tensor, target: Tensor) -> Tensor:
        if trick == "mixup":
            share = float(torch.distributions.Beta(0.4, 0.4).sample())
            other = torch.randperm(len(features))
            out = out_of(share * features + (1 - share) * features[other])
            first = functional.cross_entropy(out, target)
            return share * first + (1 - share) * functional.cross_entropy(out, target[other])
        with torch.autocast("cpu", torch.bfloat16, enabled=trick == "bfloat16"):
            return functional.cross_entropy(
                out_of(features), target, label_smoothing=0.2 if trick == "smoothing" else 0.0
            )

    def accuracy(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            score = float((model(xv).argmax(1) == yv).float().mean())
        model.train()
        return score

    with Run(folder, outputs=NO_SINKS) as run:
        if trick == "swa":
            run.track(net=net, opt=opt, schedule=schedule, average=average)
        else:
            run.track(net=net, opt=opt, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(x), (batch,))
            loss = loss_of(x[i], y[i])
            opt.zero_grad()
            loss.backward()
            if trick == "sam":
                with torch.no_grad():
                    grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
                    size = torch.stack([g.norm() for g in grads]).norm()
                    moves = [0.05 * g / size for g in grads]
                    for p, move in zip(net.parameters(), moves, strict=True):
                        p.add_(move)
                opt.zero_grad()
                loss_of(x[i], y[i]).backward()
                with torch.no_grad():
                    for p, move in zip(net.parameters(), moves, strict=True):
                        p.sub_(move)
            step.observe(Terms(xent=(1.0, loss)))
            step.update(opt)
            schedule.step()
            if trick == "swa" and step.index >= begin:
                average.update_parameters(net)
            if step.every(max(total // 5, 1)):
                with run.evaluation("test"):
                    step.record({"test/top1": accuracy(net)})
    if trick == "swa":
        torch.optim.swa_utils.update_bn([x], average)
        return accuracy(average)
    return accuracy(net)
