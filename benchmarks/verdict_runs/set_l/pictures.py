"""Strangers' loops on pictures: signposts, lakes seen from above, and padlocks on a door."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def arrows(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return photos of signs, shape [count, 1, 16, 16], and their kinds: left, right or up, on round or square ones."""
    kind = torch.randint(6, (count,), generator=draw)
    axis = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    place = 0.15 * torch.randn(count, 2, 1, 1, generator=draw)
    across, down = x - place[:, 0], y - place[:, 1]
    turned = torch.where(
        (kind % 3 == 2)[:, None, None], down, torch.where((kind % 3 == 1)[:, None, None], -across, across)
    )
    aside = torch.where((kind % 3 == 2)[:, None, None], across, down)
    arrow = (turned > -0.5) & (turned < 0.3) & (aside.abs() < 0.7 * (turned + 0.5))
    square = torch.maximum(across.abs(), down.abs()) < 0.8
    round_ = across.square() + down.square() < 0.75
    board = torch.where((kind < 3)[:, None, None], square, round_)
    picture = 0.3 * board.float() + 0.6 * arrow.float() + 0.2 * torch.randn(count, 16, 16, generator=draw)
    return 0.4 + 0.5 * picture[:, None], kind


class Signs(nn.Module):
    """Names signs, in the form of a module that knows its own losses.

    Attributes:
        trunk: layers on pictures.
        head: layers on features.
        held: how the trunk is run: "learned", "without gradients", or "again" in the backward pass.
        smoothing: label smoothing.
    """

    def __init__(self, drop: float, smoothing: float, held: str) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(384, 64), nn.ReLU(), nn.Dropout(drop), nn.Linear(64, 6))
        self.held = held
        self.smoothing = smoothing

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the kinds."""
        if self.held == "without gradients":
            with torch.no_grad():
                features = self.trunk(x)
        elif self.held == "again":
            features = checkpoint(self.trunk, x, use_reentrant=False)
        else:
            features = self.trunk(x)
        return self.head(features)

    def training_step(self, x: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch; targets are kinds, or a share of each kind."""
        return functional.cross_entropy(self(x), target, label_smoothing=self.smoothing)

    @torch.no_grad()
    def validation_step(self, x: Tensor, y: Tensor) -> float:
        """Return the accuracy."""
        return float((self(x).argmax(1) == y).float().mean())


def signposts(
    folder: Path,
    seed: int,
    *,
    cleared: str = "first",
    held: str = "learned",
    normalized: str = "always",
    flipped: bool = False,
    mode: str = "train and eval",
    smoothing: float = 0.0,
    drop: float = 0.2,
    mixed: float = 0.0,
    averaged: bool = False,
    half: bool = False,
    one_cycle: bool = False,
    wrong: float = 0.0,
    rows: int = 900,
    batch: int = 32,
    lr: float = 2e-3,
    figure: str = "accuracy",
    epochs: int = 9,
) -> float:
    """Name signs; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        cleared: when gradients are cleared: "first", "before the update", or "never".
        held: how the trunk is run: "learned", "without gradients", or "again" in the backward pass.
        normalized: when pictures get mean 0 and spread 1: "always", or in "training" only.
        flipped: whether half of the pictures are mirrored.
        mode: "train and eval", or "eval" from the first evaluation on, which comes before the training.
        smoothing: label smoothing.
        drop: chance to drop a feature.
        mixed: strength of mixup; 0 for none.
        averaged: whether the weights of the last third are averaged.
        half: whether to compute in bfloat16.
        one_cycle: whether the rate rises and falls once.
        wrong: share of the labels that are wrong.
        rows: number of pictures to learn from.
        batch: pictures of a batch.
        lr: learning rate.
        figure: "accuracy" on other pictures, or "mode" for the share of steps in training mode.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(523 * seed + 6)
    x, y = arrows(rows, draw)
    held_x, held_y = arrows(600, draw)
    astray = torch.rand(rows, generator=draw) < wrong
    y = torch.where(astray, torch.randint(6, (rows,), generator=draw), y)
    module = Signs(drop, smoothing, held)
    chosen = torch.optim.Adam(module.parameters(), lr=lr)
    total = epochs * (rows // batch)
    cycle = torch.optim.lr_scheduler.OneCycleLR(chosen, max_lr=lr, total_steps=total) if one_cycle else None
    average = torch.optim.swa_utils.AveragedModel(module) if averaged else None
    middle, scale = (x.mean(), x.std())

    def normalize(pictures: Tensor) -> Tensor:
        return (pictures - middle) / scale

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(epochs):
            for picked in torch.randperm(rows)[: rows // batch * batch].split(batch):
                pictures, kinds = normalize(x[picked]), y[picked]
                if flipped:
                    mirrored = torch.rand(len(picked)) < 0.5
                    pictures = torch.where(mirrored[:, None, None, None], pictures.flip(3), pictures)
                yield pictures, kinds

    def validate() -> float:
        if mode != "train":
            module.eval()
        score = module.validation_step(normalize(held_x) if normalized == "always" else held_x, held_y)
        if mode == "train and eval":
            module.train()
        return score

    in_training = 0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(module=module, chosen=chosen)
        if cycle is not None:
            run.track(cycle=cycle)
        if average is not None:
            run.track(average=average)
        run.resume()
        for step, (drawn, kinds) in zip(run.steps(total), batches(), strict=False):
            if step.index % (2 * rows // batch) == 0:
                step.record({"val/accuracy": validate()})
            in_training += module.training
            pictures, target = drawn, kinds
            if mixed:
                share = float(torch.distributions.Beta(mixed, mixed).sample())
                other = torch.randperm(len(kinds))
                pictures = share * pictures + (1 - share) * pictures[other]
                both = functional.one_hot(kinds, 6).float()
                target = share * both + (1 - share) * both[other]
            if cleared == "first":
                chosen.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = module.training_step(pictures, target)
            loss.backward()
            if cleared == "before the update":
                chosen.zero_grad()
            step.observe(Terms(entropy=(1.0, loss)))
            step.update(chosen)
            if cycle is not None:
                cycle.step()
            if average is not None and step.index > 2 * total / 3:
                average.update_parameters(module)
    if figure == "mode":
        return in_training / total
    judged: nn.Module = module
    if average is not None:
        torch.optim.swa_utils.update_bn(normalize(x).split(100), average)
        judged = average
    judged.eval()
    with torch.no_grad():
        pictures = normalize(held_x) if normalized == "always" else held_x
        return float((judged(pictures).argmax(1) == held_y).float().mean())


def landscapes(count: int, share: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures from above, shape [count, 3, 24, 24], and masks of lakes of 0 and 1.

    Args:
        count: number of pictures.
        share: about the share of a picture that is water.
        draw: generator.
    """
    axis = torch.linspace(-1, 1, 24)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    water = torch.zeros(count, 24, 24, dtype=torch.bool)
    for _ in range(2):
        place = 1.6 * torch.rand(count, 2, 1, 1, generator=draw) - 0.8
        size = (2.4 * share) ** 0.5 * (0.6 + 0.4 * torch.rand(count, 2, 1, 1, generator=draw))
        water |= ((x - place[:, 0]) / size[:, 0]).square() + ((y - place[:, 1]) / size[:, 1]).square() < 0.5
    ground = torch.tensor([0.35, 0.5, 0.25])[:, None, None]
    lake = torch.tensor([0.3, 0.42, 0.5])[:, None, None]
    picture = torch.where(water[:, None], lake, ground)
    return picture + 0.15 * torch.randn(count, 3, 24, 24, generator=draw), water[:, None].float()


class Shore(nn.Module):
    """A small network of two scales that outlines water.

    Attributes:
        ending: what the last layer gives: "logits" or "chances".
    """

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU())
        self.deep = nn.Conv2d(24, 1, 1)
        self.out = nn.Conv2d(36, 1, 3, padding=1)
        self.ending = ending

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the answer for each pixel, and that of the coarse scale."""
        fine = self.fine(x)
        coarse = self.coarse(fine)
        large = functional.interpolate(coarse, scale_factor=2.0, mode="bilinear")
        answer = self.out(torch.cat([fine, large], 1))
        return answer.sigmoid() if self.ending == "chances" else answer, self.deep(coarse)


def lakes(
    folder: Path,
    seed: int,
    *,
    masks: str = "0 and 1",
    ending: str = "logits",
    loss: str = "entropy",
    rare: bool = False,
    deep: float = 0.0,
    lr: float = 5e-3,
    total: int = 200,
) -> float:
    """Outline lakes; returns the overlap with those of other pictures.

    Args:
        folder: run folder.
        seed: seed.
        masks: numbers of the masks: "0 and 1", or "0 and 255".
        ending: what the network gives: "logits" or "chances".
        loss: "entropy", "dice", "of decisions" for the overlap after a threshold, or "both".
        rare: whether lakes are small.
        deep: weight of the loss of the coarse scale.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(541 * seed + 2)
    photos, water = landscapes(300, 0.02 if rare else 0.12, draw)
    held, held_water = landscapes(100, 0.02 if rare else 0.12, draw)
    labels = 255 * water if masks == "0 and 255" else water
    net = Shore(ending)
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    entropy = nn.BCEWithLogitsLoss()

    def dice(chance: Tensor, mask: Tensor) -> Tensor:
        return 1 - (2 * (chance * mask).sum() + 1) / (chance.sum() + mask.sum() + 1)

    def losses(picture: Tensor, mask: Tensor) -> Terms:
        answer, coarse = net(picture)
        terms = Terms()
        if loss in {"entropy", "both"}:
            terms |= Terms(entropy=(1.0, entropy(answer, mask)))
        if loss in {"dice", "both"}:
            terms |= Terms(dice=(1.0, dice(answer.sigmoid(), mask)))
        if loss == "of decisions":
            terms |= Terms(dice=(1.0, dice((answer.sigmoid() > 0.5).float(), mask)))
        if deep:
            terms |= Terms(deep=(deep, entropy(coarse, functional.max_pool2d(mask, 2))))
        return terms

    @torch.no_grad()
    def overlap() -> float:
        answer = net(held)[0]
        found = answer > (0.5 if ending == "chances" else 0.0)
        return float((found & (held_water > 0)).sum() / (found | (held_water > 0)).sum())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(photos), (12,))
            terms = losses(photos[rows], labels[rows])
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(40):
                with run.evaluation("other pictures"):
                    step.record({"val/overlap": overlap()})
    return overlap()


def doors(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures of doors, shape [count, 1, 32, 32], and boxes of their locks: middle and size, in pixels."""
    size = 6 + 8 * torch.rand(count, 2, generator=draw)
    middle = 8 + 16 * torch.rand(count, 2, generator=draw)
    y, x = torch.meshgrid(torch.arange(32.0) + 0.5, torch.arange(32.0) + 0.5, indexing="ij")
    inside = ((x - middle[:, 0, None, None]).abs() < size[:, 0, None, None] / 2) & (
        (y - middle[:, 1, None, None]).abs() < size[:, 1, None, None] / 2
    )
    planks = 0.2 * (x * 1.3).sin()
    picture = inside.float() + planks + 0.2 * torch.randn(count, 32, 32, generator=draw)
    return picture[:, None], torch.cat([middle, size], 1)


def overlaps(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the overlaps of boxes of middle and size, shape [count], and the generalized ones."""
    low = torch.maximum(first[:, :2] - first[:, 2:] / 2, second[:, :2] - second[:, 2:] / 2)
    high = torch.minimum(first[:, :2] + first[:, 2:] / 2, second[:, :2] + second[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    either = first[:, 2:].clamp(min=0).prod(1) + second[:, 2:].prod(1) - both
    least = torch.minimum(first[:, :2] - first[:, 2:] / 2, second[:, :2] - second[:, 2:] / 2)
    most = torch.maximum(first[:, :2] + first[:, 2:] / 2, second[:, :2] + second[:, 2:] / 2)
    hull = (most - least).prod(1)
    overlap = both / either.clamp(min=1e-6)
    return overlap, overlap - (hull - either) / hull.clamp(min=1e-6)


def padlocks(
    folder: Path,
    seed: int,
    *,
    unit: str = "shares of the picture",
    moved: str = "never",
    generalized: float = 0.0,
    lr: float = 2e-3,
    total: int = 360,
) -> float:
    """Find the lock on a door; returns the mean overlap with locks on other doors.

    Args:
        folder: run folder.
        seed: seed.
        unit: unit of the targets: "shares of the picture", or "pixels", where the network gives shares.
        moved: whether pictures are shifted at random: "never", "with boxes", or "without boxes".
        generalized: weight of the generalized overlap in the loss.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(547 * seed + 9)
    x, box = doors(1000, draw)
    held_x, held_box = doors(300, draw)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, 2, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
        nn.Sigmoid(),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)

    def targets(of: Tensor) -> Tensor:
        return of / 32 if unit == "shares of the picture" else of

    @torch.no_grad()
    def score() -> float:
        return float(overlaps(32 * net(held_x), held_box)[0].mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (32,))
            picture, of = x[rows], box[rows]
            if moved != "never":
                right, down = torch.randint(-6, 7, (2,)).tolist()
                picture = picture.roll((down, right), (2, 3))
                if moved == "with boxes":
                    of = of + torch.tensor([right, down, 0.0, 0.0])
            found = net(picture)
            terms = Terms(corners=(5.0, functional.l1_loss(found, targets(of))))
            if generalized:
                terms |= Terms(overlap=(generalized, 1 - overlaps(32 * found, of)[1].mean()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(60):
                with run.evaluation("other doors"):
                    step.record({"val/overlap": score()})
    return score()
