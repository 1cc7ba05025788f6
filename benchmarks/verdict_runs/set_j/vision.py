"""Strangers' loops on pictures: semaphore signals, puppets, sonar strips, and a mosaic on a body learned before."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS


def signalers(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures, shape [count, 1, 12, 12], of people whose arm points up, level or down to one of two sides."""
    kind = torch.randint(6, (count,), generator=draw)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    place = 5.5 + 0.7 * torch.randn(count, 1, 1, generator=draw)
    side = torch.where(kind < 3, -1.0, 1.0)[:, None, None]
    lift = (kind % 3 - 1).float()[:, None, None]
    body = (-((x - place) ** 2)).exp() * (y > 3)
    along = (x - place) * side
    arm = (-((y - 5.5 - lift * along) ** 2)).exp() * ((along > 0) & (along < 5))
    picture = torch.maximum(body, arm) + 0.45 * torch.randn(count, 12, 12, generator=draw)
    return picture[:, None], kind


def semaphore(
    folder: Path,
    seed: int,
    *,
    turned: str = "as they are",
    horizon: int = 0,
    lr: float = 0.1,
    batch: int = 24,
    drop: float = 0.0,
    shares: int = 1,
    half: bool = False,
    schedule: str = "cosine",
    total: int = 240,
) -> float:
    """Read semaphore signals; returns the accuracy on other signalers.

    Args:
        folder: run folder.
        seed: seed.
        turned: how pictures are augmented: "as they are", "left and right", or "a little" aside.
        horizon: steps of the cosine; 0 for all of them.
        lr: learning rate.
        batch: number of pictures of a batch.
        drop: chance to drop a feature.
        shares: batches whose gradients make one update.
        half: whether to compute in half precision, with a scaler.
        schedule: "cosine", or "restarts" of it.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(211 * seed + 3)
    x, y = signalers(1200, draw)
    held_x, held_y = signalers(500, draw)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(drop),
        nn.Linear(144, 6),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    if schedule == "restarts":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=total // 3)
    else:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=horizon or total)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=half)

    def augmented(pictures: Tensor) -> Tensor:
        if turned == "left and right":
            over = torch.rand(len(pictures), 1, 1, 1) < 0.5
            return torch.where(over, pictures.flip(-1), pictures)
        if turned == "a little":
            return pictures.roll(int(torch.randint(-1, 2, (1,))), dims=2)
        return pictures

    @torch.no_grad()
    def accuracy() -> float:
        net.eval()
        share = (net(held_x).argmax(1) == held_y).float().mean()
        net.train()
        return float(share)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, scheduler=scheduler)
        if half:
            run.track(scaler=scaler)
        run.resume()
        for step in run.steps(total):
            optimizer.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(shares):
                rows = torch.randint(len(x), (batch // shares,))
                with torch.autocast("cpu", torch.float16, enabled=half):
                    logits = net(augmented(x[rows]))
                loss = functional.cross_entropy(logits.float(), y[rows])
                scaler.scale(loss / shares).backward()
                parts.append((1 / shares, Terms(signal=(1.0, loss.detach()))))
            step.observe(Terms.merged(parts))
            if half:
                step.update(optimizer, scaler=scaler)
            else:
                step.update(optimizer)
            scheduler.step()
            if step.every(40):
                with run.evaluation("other signalers"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()


JOINTS = 5
"""Head, left hand, right hand, left foot, right foot."""


def dolls(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures of puppets that face us, shape [count, 1, 16, 16], and their joints, shape [count, 5, 2]."""
    center = 0.15 * torch.randn(count, 2, generator=draw)
    joints = torch.tensor([[0.0, -0.6], [0.45, -0.1], [-0.45, -0.1], [0.25, 0.6], [-0.25, 0.6]])
    joints = joints + center[:, None] + 0.1 * torch.randn(count, JOINTS, 2, generator=draw)
    axis = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    away = (x - joints[:, :, 0, None, None]) ** 2 + (y - joints[:, :, 1, None, None]) ** 2
    picture = (-away / 0.02).exp().sum(1)
    return (picture + 0.1 * torch.randn(count, 16, 16, generator=draw))[:, None], joints


class Finder(nn.Module):
    """Finds the joints of a puppet.

    Attributes:
        share: share of the features that are dropped.
        inline: whether the forward pass drops features by a function, not by a module.
    """

    def __init__(self, share: float, *, inline: bool) -> None:
        super().__init__()
        self.near = nn.Conv2d(1, 8, 3, 2, 1)
        self.far = nn.Conv2d(8, 16, 3, 2, 1)
        self.drop = nn.Dropout(share)
        self.out = nn.Linear(256, 2 * JOINTS)
        self.share = share
        self.inline = inline

    def forward(self, x: Tensor) -> Tensor:
        """Return the joints, shape [count, 5, 2]."""
        x = self.far(self.near(x).relu()).relu().flatten(1)
        x = functional.dropout(x, self.share) if self.inline else self.drop(x)
        return self.out(x).view(-1, JOINTS, 2)


def puppets(
    folder: Path,
    seed: int,
    *,
    share: float = 0.2,
    inline: bool = False,
    over: str = "never",
    warm_up: int = 10,
    average: float = 0.0,
    epochs: int = 10,
) -> float:
    """Find the joints of puppets; returns the negative mean distance to the true ones.

    Args:
        folder: run folder.
        seed: seed.
        share: share of the features that are dropped.
        inline: whether features are dropped by a function in the forward pass.
        over: how half of the pictures are turned over: "never", "places" of the joints as well, or their "sides" too.
        warm_up: steps over which the rate rises.
        average: decay of the average of the weights that is evaluated; 0 for none.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(223 * seed + 1)
    x, y = dolls(700, draw)
    held_x, held_y = dolls(300, draw)
    finder = Finder(share, inline=inline)
    adam = torch.optim.Adam(finder.parameters(), lr=4e-3)
    rise = torch.optim.lr_scheduler.LinearLR(adam, 0.05, total_iters=warm_up)
    smooth = torch.optim.swa_utils.AveragedModel(
        finder, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average or 0.9)
    )
    judged = smooth if average else finder
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, y), batch_size=20, seed=seed)

    def turned_over(pictures: Tensor, joints: Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.rand(len(pictures)) < 0.5
        pictures = torch.where(chosen[:, None, None, None], pictures.flip(-1), pictures)
        mirrored = joints * torch.tensor([-1.0, 1.0])
        if over == "sides":
            mirrored = mirrored[:, [0, 2, 1, 4, 3]]
        return pictures, torch.where(chosen[:, None, None], mirrored, joints)

    @torch.no_grad()
    def off() -> float:
        judged.eval()
        distance = (judged(held_x) - held_y).norm(dim=2).mean()
        judged.train()
        return float(distance)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(finder=finder, adam=adam, rise=rise, loader=loader)
        if average:
            run.track(smooth=smooth)
        run.resume()
        for _ in range(loader.epoch, epochs):
            for seen, told in loader:
                step = run.begin_step(total=epochs * len(loader))
                pictures, joints = (seen, told) if over == "never" else turned_over(seen, told)
                loss = functional.mse_loss(finder(pictures), joints)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(joints=(1.0, loss)))
                step.update(adam)
                rise.step()
                if average:
                    smooth.update_parameters(finder)
                run.end_step()
            with run.evaluation("other puppets"):
                run.record({"val/distance": off()})
    return -off()


def strips(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return sonar strips of 64 echoes with a fish each, and its middle and length, shape [count, 2]."""
    length = 5 + 6 * torch.rand(count, generator=draw)
    middle = 8 + 48 * torch.rand(count, generator=draw)
    place = torch.arange(64.0) + 0.5
    fish = ((place - middle[:, None]).abs() < length[:, None] / 2).float()
    echo = 1.3 * fish + 0.4 * torch.randn(count, 64, generator=draw)
    return echo[:, None], torch.stack([middle, length], 1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of intervals, each given by its middle and length."""
    low = torch.maximum(one[..., 0] - one[..., 1] / 2, other[..., 0] - other[..., 1] / 2)
    high = torch.minimum(one[..., 0] + one[..., 1] / 2, other[..., 0] + other[..., 1] / 2)
    both = (high - low).clamp(min=0)
    return both / (one[..., 1] + other[..., 1] - both)


def sonar(
    folder: Path,
    seed: int,
    *,
    sizes: tuple[float, float] = (6.0, 10.0),
    focus: float = 0.0,
    total: int = 240,
) -> float:
    """Find fish in sonar strips from anchors; returns the share of them that is found with an overlap of one half.

    Args:
        folder: run folder.
        seed: seed.
        sizes: lengths of the two anchors of each place.
        focus: exponent by which anchors that are judged well count less.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(227 * seed + 8)
    x, fish = strips(900, draw)
    held_x, held_fish = strips(300, draw)
    places = 4 * torch.arange(16.0) + 2
    anchors = torch.stack([torch.stack([places, torch.full((16,), size)], 1) for size in sizes], 1)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Conv1d(16, 24, 5, 2, 2),
        nn.ReLU(),
        nn.Conv1d(24, 24, 5, 1, 2),
        nn.ReLU(),
        nn.Conv1d(24, 6, 1),
    )
    with torch.no_grad():
        net[-1].bias[:2] = -2.0
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)

    def heads(strip: Tensor) -> tuple[Tensor, Tensor]:
        out = net(strip)
        return out[:, :2].transpose(1, 2), out[:, 2:].transpose(1, 2).reshape(len(strip), 16, 2, 2)

    @torch.no_grad()
    def found() -> float:
        score, shift = heads(held_x)
        best = score.flatten(1).argmax(1)
        boxes = torch.stack(
            [anchors[..., 0] + 4 * shift[..., 0], anchors[..., 1] * shift[..., 1].clamp(-3, 3).exp()], -1
        ).flatten(1, 2)
        chosen = boxes[torch.arange(len(best)), best]
        return float((overlap(chosen, held_fish) > 0.5).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (24,))
            truth = fish[rows][:, None, None]
            score, shift = heads(x[rows])
            hit = (overlap(anchors, truth) > 0.5).float()
            wanted = torch.stack([(truth[..., 0] - anchors[..., 0]) / 4, (truth[..., 1] / anchors[..., 1]).log()], -1)
            each = functional.binary_cross_entropy_with_logits(score, hit, reduction="none")
            if focus:
                each = each * (1 - (-each.detach()).exp()) ** focus * 4
            off = functional.smooth_l1_loss(shift, wanted, reduction="none").sum(-1)
            terms = Terms(objects=(1.0, 4 * each.mean()), boxes=(1.0, (off * hit).sum() / hit.sum().clamp(min=1)))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(60):
                with run.evaluation("other strips"):
                    step.record({"val/found": found()})
    return found()


def mosaic(
    folder: Path,
    seed: int,
    *,
    body_mode: str = "eval",
    first: int = 250,
    total: int = 180,
) -> float:
    """Add a head for new stones to a body that was trained for others; returns the worse accuracy of the two heads.

    Args:
        folder: run folder.
        seed: seed.
        body_mode: mode of the frozen body in the training of the new head.
        first: steps of the training of the body, which is not recorded.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(229 * seed + 5)
    middles = torch.randn(2, 6, 16, generator=draw)
    light = 5.0 * torch.randn(16, generator=draw)

    def stones(count: int, new: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(6, (count,), generator=draw)
        shades = middles[new, kind] + 0.7 * torch.randn(count, 16, generator=draw)
        return (2.0 * shades + light if new else shades), kind

    old_x, old_y = stones(900, 0)
    new_x, new_y = stones(500, 1)
    tests = [stones(400, 0), stones(400, 1)]
    body = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU()
    )
    heads = [nn.Linear(48, 6), nn.Linear(48, 6)]
    before = torch.optim.Adam([*body.parameters(), *heads[0].parameters()], lr=3e-3)
    for _ in range(first):
        rows = torch.randint(len(old_x), (48,))
        before.zero_grad()
        functional.cross_entropy(heads[0](body(old_x[rows])), old_y[rows]).backward()
        before.step()
    body.requires_grad_(requires_grad=False)
    net = nn.ModuleDict({"body": body, "head": heads[1]})
    adam = torch.optim.Adam(heads[1].parameters(), lr=1e-2)

    @torch.no_grad()
    def accuracy(new: int) -> float:
        body.eval()
        x, y = tests[new]
        share = (heads[new](body(x)).argmax(1) == y).float().mean()
        body.train(mode=body_mode == "train")
        return float(share)

    body.train(mode=body_mode == "train")
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(new_x), (32,))
            loss = functional.cross_entropy(heads[1](body(new_x[rows])), new_y[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(stone=(1.0, loss)))
            step.update(adam)
            if step.every(45):
                with run.evaluation("new stones"):
                    step.record({"val/accuracy": accuracy(1)})
    return min(accuracy(0), accuracy(1))
