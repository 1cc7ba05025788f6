"""Space: a region as a network, and shapes given as clouds of points."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def inside(points: Tensor) -> Tensor:
    """Return whether points of [-1, 1]^2 are inside of a ring with a bite or of a small disc."""
    radius = points.norm(dim=1)
    ring = (radius < 0.8) & (radius > 0.45) & ~((points[:, 0] > 0.1) & (points[:, 1].abs() < 0.25))
    return (ring | ((points - torch.tensor([0.05, 0.05])).norm(dim=1) < 0.2)).float()


def occupancy(
    folder: Path,
    seed: int,
    *,
    rate: float = 5e-3,
    octaves: float = 3.0,
    unit: float = 1.0,
    encoded: bool = True,
    diagonal: bool = False,
    amount: int = 1200,
    total: int = 240,
) -> float:
    """Learn a region from points; returns intersection over union on a grid.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        octaves: deviation of the random frequencies.
        unit: factor of the coordinates, such as that of pixels.
        encoded: whether the network sees sines of the coordinates.
        diagonal: whether both coordinates of the training points come from the same numbers.
        amount: number of training points.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(301 + seed)
    points = 2 * torch.rand(amount, 1 if diagonal else 2, generator=draw).expand(amount, 2) - 1
    labels = inside(points)
    directions = octaves * torch.randn(2, 32, generator=draw)
    line = torch.linspace(-1, 1, 48)
    grid = torch.cartesian_prod(line, line)
    truth = inside(grid)
    net = nn.Sequential(nn.Linear(64 if encoded else 2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    adam = torch.optim.Adam(net.parameters(), lr=rate)
    fall = torch.optim.lr_scheduler.MultiStepLR(adam, [total // 2, 3 * total // 4], 0.3)

    def logits(places: Tensor) -> Tensor:
        scaled = unit * places
        seen = torch.cat([(scaled @ directions).sin(), (scaled @ directions).cos()], 1) if encoded else scaled
        return net(seen)[:, 0]

    @torch.no_grad()
    def iou() -> float:
        found = logits(grid) > 0
        return float((found & (truth > 0)).sum() / (found | (truth > 0)).sum())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, fall=fall)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(amount, (200,))
            scores = logits(points[picked])
            loss = functional.binary_cross_entropy_with_logits(scores, labels[picked])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(occupancy=(1.0, loss)))
            step.record({"Train/accuracy": ((scores > 0).float() == labels[picked]).float().mean()})
            step.update(adam)
            fall.step()
            if step.every(48):
                with run.evaluation("grid"):
                    step.record({"Eval/iou": iou()})
    return iou()


CORNERS = 32


def clouds(seed: int, count: int, salt: int, *, turned: bool) -> tuple[Tensor, Tensor]:
    """Return clouds of 32 points on a ball, a cube, a disc or a bar, and which of the four."""
    draw = torch.Generator().manual_seed(13 * seed + 5 * salt)
    kind = torch.randint(4, (count,), generator=draw)
    noise = torch.randn(count, CORNERS, 3, generator=draw)
    ball = functional.normalize(noise, dim=2)
    cube = noise / noise.abs().amax(2, keepdim=True)
    disc = functional.normalize(noise[..., :2], dim=2)
    disc = torch.cat([disc * torch.rand(count, CORNERS, 1, generator=draw).sqrt(), 0.05 * noise[..., 2:]], 2)
    bar = torch.cat([1.2 * (2 * torch.rand(count, CORNERS, 1, generator=draw) - 1), 0.15 * noise[..., 1:]], 2)
    points = torch.stack([ball, cube, disc, bar])[kind, torch.arange(count)]
    if turned:
        points = points @ torch.linalg.qr(torch.randn(count, 3, 3, generator=draw))[0]
    return points * (0.8 + 0.4 * torch.rand(count, 1, 1, generator=draw)), kind


class CloudNetwork(nn.Module):
    """A network of each point, and one of the largest features.

    Args:
        pool: axis of the pooling: 1, the points, is right.
    """

    def __init__(self, pool: int) -> None:
        super().__init__()
        self.pool = pool
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, points: Tensor) -> Tensor:
        """Return logits, shape [batch, 4]."""
        features = self.each(points)
        pooled = features.amax(self.pool)
        return self.head(pooled if self.pool == 1 else pooled.mean(0).expand(len(points), -1))


def shapes(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    loss: str = "cross_entropy",
    pool: int = 1,
    turned: bool = True,
    clip: float | None = None,
    total: int = 280,
) -> float:
    """Tell four shapes from clouds of points; returns the accuracy on turned ones.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        loss: "cross_entropy", or "nll" of logits that no softmax has seen.
        pool: axis of the pooling.
        turned: whether the training clouds are turned as those of the evaluation.
        clip: limit of the gradient norm.
        total: number of steps.
    """
    torch.manual_seed(seed)
    amount = 900
    x, y = clouds(seed, amount, 1, turned=turned)
    held_x, held_y = clouds(seed, 300, 2, turned=True)
    net = CloudNetwork(pool)
    stepper = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.0)
    criterion = nn.NLLLoss(reduction="none") if loss == "nll" else nn.CrossEntropyLoss(reduction="none")

    @torch.no_grad()
    def right() -> float:
        return float((net(held_x).argmax(1) == held_y).float().mean())

    run = Run(folder, outputs=NO_SINKS).start()
    run.track(net=net, stepper=stepper)
    run.resume()
    order = torch.Generator().manual_seed(seed)
    done = 0
    while done < total:
        for picked in torch.randperm(amount, generator=order).split(32):
            if done == total:
                break
            step = run.begin_step(total)
            each = criterion(net(x[picked]), y[picked])
            stepper.zero_grad()
            each.mean().backward()
            step.observe(
                Terms(shape=(1.0, each.mean())), sample=[f"scan_{i:03d}.ply" for i in picked.tolist()], sample_loss=each
            )
            step.update(stepper, clip=clip)
            if step.every(40):
                with run.evaluation("turned clouds"):
                    step.record({"Test/accuracy": right()})
            run.end_step()
            done += 1
    run.finish()
    return right()
