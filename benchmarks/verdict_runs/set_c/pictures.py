"""Pictures: a classifier of glyphs, a segmentation of cells, a photo as a sine network, embeddings of glyphs."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Shuffled, Terms
from verdict_runs.scenes import REAL
from verdict_runs.supervised import NO_SINKS

GLYPHS = 8


def glyphs(seed: int, count: int, *, salt: int = 1, noise: float = 0.35) -> tuple[Tensor, Tensor]:
    """Return noisy, shifted pictures of eight random glyphs, shape [count, 1, 14, 14], and their classes."""
    shapes = (torch.rand(GLYPHS, 1, 5, 5, generator=torch.Generator().manual_seed(4242)) > 0.5).float()
    shapes = functional.interpolate(shapes, scale_factor=2)
    draw = torch.Generator().manual_seed(100 * seed + salt)
    labels = torch.randint(GLYPHS, (count,), generator=draw)
    pictures = torch.zeros(count, 1, 14, 14)
    corners = torch.randint(5, (count, 2), generator=draw)
    for i in range(count):
        top, left = corners[i].tolist()
        pictures[i, :, top : top + 10, left : left + 10] = shapes[labels[i]]
    return pictures + noise * torch.randn(count, 1, 14, 14, generator=draw), labels


def glyph_network() -> nn.Sequential:
    """Return a convolutional network with batch normalization and global pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.SiLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, GLYPHS),
    )


def classify(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    is_sorted: bool = False,
    mode: str = "eval",
    mislabeled: bool = False,
    per_batch: bool = False,
    decay: float = 5e-4,
    clip: float | None = None,
    same_seed: bool = False,
    raw_evaluation: bool = False,
    scaler: str = "",
    schedule: str = "step",
    smoothing: float = 0.0,
    drop: float = 0.0,
    epochs: int = 6,
    curriculum: bool = False,
    augment: bool = False,
) -> float:
    """Classify glyphs in epochs; returns the accuracy on clean data.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        is_sorted: whether the batches go through the data sorted by class.
        mode: mode of the model in evaluations: "eval" or "train".
        mislabeled: whether two classes have the label of another one.
        per_batch: whether the schedule of epochs is stepped at every batch.
        decay: weight decay.
        clip: limit of the gradient norm.
        same_seed: whether each epoch draws the same batches.
        raw_evaluation: whether the evaluation forgets to scale its pictures.
        scaler: autocast: "bfloat16", "float16" with a GradScaler, or "overflow" with one that cannot shrink.
        schedule: "step", "cycle" or "restarts".
        smoothing: label smoothing.
        drop: dropout before the last layer.
        epochs: number of epochs.
        curriculum: whether noisy pictures come later.
        augment: whether pictures are shifted at random.
    """
    torch.manual_seed(seed)
    x, y = glyphs(seed, 1024)
    held_x, held_y = glyphs(seed, 400, salt=2)
    center = x.mean()
    spread = x.std()
    shown = torch.where((y == 2) | (y == 6), 5, y) if mislabeled else y
    model = glyph_network()
    if drop:
        model.insert(7, nn.Dropout(drop))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
    batches = len(x) // 32
    scheduler: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.3)
    if schedule == "cycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * rate, total_steps=batches * epochs + 1)
    if schedule == "restarts":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2 * batches)
    grads = None
    if scaler in {"float16", "overflow"}:
        interval = 1 if scaler == "overflow" else 2000
        grads = torch.amp.GradScaler(
            "cpu",
            init_scale=2.0**14 if scaler == "float16" else 2.0**60,
            growth_factor=1.5,
            backoff_factor=0.5 if scaler == "float16" else 0.999,
            growth_interval=interval,
        )

    def loss_of(pictures: Tensor, labels: Tensor) -> Tensor:
        found = model(pictures)
        return functional.cross_entropy(found, labels, label_smoothing=smoothing)

    @torch.no_grad()
    def accuracy(*, clean: bool) -> float:
        pictures = held_x if raw_evaluation and not clean else (held_x - center) / spread
        if raw_evaluation and not clean:
            pictures = 255 * pictures
        return float((model(pictures).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        if grads is not None:
            run.track(scaler=grads)
        run.resume()
        steps = run.steps(batches * epochs)
        for epoch in range(epochs):
            if same_seed:
                torch.manual_seed(seed)
            order = torch.randint(len(x), (len(x),)) if same_seed else torch.randperm(len(x))
            if same_seed:
                order = order[:64].repeat(len(x) // 64)
            if is_sorted:
                order = shown.argsort(stable=True)
            if curriculum and epoch < epochs // 2:
                order = (x - x.clamp(0, 1)).square().mean(dim=(1, 2, 3)).argsort()[: len(x) // 2].repeat(2)
                order = order[torch.randperm(len(order))]
            for i in order.split(32):
                step = next(steps)
                pictures = (x[i] - center) / spread
                if augment:
                    pictures = pictures.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
                optimizer.zero_grad()
                if scaler:
                    kind = torch.bfloat16 if scaler == "bfloat16" else torch.float16
                    with torch.autocast("cpu", dtype=kind):
                        loss = loss_of(pictures, shown[i])
                else:
                    loss = loss_of(pictures, shown[i])
                if grads is None:
                    loss.backward()
                else:
                    grads.scale(loss).backward()
                    grads.unscale_(optimizer)
                step.observe(Terms(cross_entropy=(1.0, loss)))
                step.update(optimizer, clip=clip)
                if grads is not None:
                    grads.update()
                if schedule != "step" or per_batch:
                    scheduler.step()
            if schedule == "step" and not per_batch:
                scheduler.step()
            if mode == "eval":
                model.eval()
            step.record({"val/accuracy": accuracy(clean=False), "epoch": float(epoch)})
            if mode == "eval":
                model.train()
        next(steps, None)
    if mode == "train":
        # What such a model is worth to a user who asks for one picture after the other.
        with torch.no_grad():
            found = torch.cat([model((one[None] - center) / spread).argmax(1) for one in held_x])
        return float((found == held_y).float().mean())
    model.eval()
    return accuracy(clean=not raw_evaluation)


def cells(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return pictures with bright disks, shape [count, 1, 16, 16], and classes of pixels: outside, rim, inside."""
    draw = torch.Generator().manual_seed(17 * seed + salt)
    place = 5 + 6 * torch.rand(count, 2, 1, 1, generator=draw)
    size = 2.5 + 2.5 * torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    distance = ((x - place[:, 0]).square() + (y - place[:, 1]).square()).sqrt()
    labels = (distance < size).long() + (distance < size - 1.5).long()
    shade = torch.tensor([0.2, 0.9, 0.5])[labels]
    return (shade + 0.08 * torch.randn(count, 16, 16, generator=draw))[:, None], labels


class SmallUNet(nn.Module):
    """One level down, one up."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(10, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 10, 2, stride=2)
        self.leave = nn.Sequential(nn.Conv2d(20, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 3, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Return scores of pixels, shape [batch, 3, height, width]."""
        wide = self.enter(pictures)
        return self.leave(torch.cat([wide, self.up(self.down(wide))], dim=1))


def segment(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    axis: int = 1,
    total_loss: bool = False,
    dead: bool = False,
    inverted: int = -1,
    amount: int = 80,
    by_heart: bool = False,
    worst: bool = False,
    total: int = 160,
    dice: float = 0.5,
) -> float:
    """Segment cells with cross-entropy and a Dice term; every picture is named. Returns the mean IoU.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        axis: axis of the softmax.
        total_loss: whether the losses of pixels are summed.
        dead: whether the biases of the first layer are far below zero.
        inverted: picture whose mask is inverted; none if negative.
        amount: number of training pictures.
        by_heart: whether the training pictures are all that counts.
        worst: whether the figure is the negative ratio of the worst training picture's loss to the median one.
        total: number of steps.
        dice: weight of the Dice term.
    """
    torch.manual_seed(seed)
    x, y = cells(seed, amount, 1)
    held_x, held_y = (x, y) if by_heart else cells(seed, 60, 2)
    if inverted >= 0:
        y[inverted] = 2 - y[inverted]
    names = [f"slide-{i:02d}.tif" for i in range(amount)]
    net = SmallUNet()
    if dead:
        with torch.no_grad():
            for layer in (net.enter[0], net.down[1], net.leave[0]):
                assert isinstance(layer, nn.Conv2d)  # noqa: S101  all three are
                layer.bias.fill_(-8.0)  # pyright: ignore[reportOptionalMemberAccess]
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True)
    poly = torch.optim.lr_scheduler.PolynomialLR(optimizer, total, 0.9)

    def losses(pictures: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        chance = net(pictures).softmax(axis).clamp_min(1e-6)
        truth = functional.one_hot(classes, 3).movedim(-1, 1).float()
        entropy = -(truth * chance.log()).sum(dim=1).flatten(1)
        overlap = 2 * (chance * truth).sum((2, 3)) / (chance + truth).sum((2, 3))
        return entropy.sum(1) if total_loss else entropy.mean(1), 1 - overlap.mean(1)

    @torch.no_grad()
    def intersection() -> float:
        found = net(held_x).argmax(1)
        parts = [((found == k) & (held_y == k)).sum() / ((found == k) | (held_y == k)).sum() for k in range(3)]
        return float(torch.stack(parts).mean())

    order = Shuffled(amount, 8, seed=seed)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, poly=poly, order=order)
        run.resume()
        for step in run.steps(total):
            picked = next(order)
            entropy, overlap = losses(x[picked], y[picked])
            terms = Terms(entropy=(1.0, entropy.mean()), dice=(dice, overlap.mean()))
            optimizer.zero_grad(set_to_none=False)
            terms.total.backward()
            names_of_batch = [names[i] for i in picked.tolist()]
            step.observe(terms, sample=names_of_batch, sample_loss=(entropy + dice * overlap).detach())
            step.update(optimizer)
            poly.step()
            if step.every(40):
                with run.evaluation("slides"):
                    step.record({"train/iou" if by_heart else "Eval/iou": intersection()})
    if worst:
        with torch.no_grad():
            each = losses(x, y)[0]
        return -float(each.max() / each.median())
    return intersection()


class Sine(nn.Module):
    """A layer of a sine network (Sitzmann et al. 2020)."""

    def __init__(self, inputs: int, outputs: int, pace: float, *, first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.pace = pace
        bound = 1 / inputs if first else (6 / inputs) ** 0.5 / pace
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return sines."""
        return (self.pace * self.linear(x)).sin()


def photo(size: int) -> Tensor:
    """Return a real photo, shape [size, size, 3]."""
    path = sorted((REAL / "colmap_plush" / "images").iterdir())[20]
    with Image.open(path) as image:
        square = image.convert("RGB").resize((size, size), Image.Resampling.BOX)
    return torch.tensor(np.asarray(square, np.float32) / 255)


def sine_photo(
    folder: Path,
    seed: int,
    *,
    rate: float = 2e-3,
    pace: float = 12.0,
    smooth: float = 1e-4,
    cut: bool = False,
    kept: int = 0,
    memory: bool = False,
    final: float = 0.05,
    total: int = 220,
) -> float:
    """Fit a sine network to a photo with Adamax in full batches; returns the PSNR.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        pace: frequency of the sines.
        smooth: weight of a term on the size of slopes.
        cut: whether the color term is computed from a detached prediction.
        kept: floats that the loop keeps of each step.
        memory: whether the figure is the negative number of MB kept.
        final: factor of the rate at the end.
        total: number of steps.
    """
    torch.manual_seed(seed)
    colors = photo(28).reshape(-1, 3)
    line = torch.linspace(-1, 1, 28)
    points = torch.cartesian_prod(line, line)
    field = nn.Sequential(Sine(2, 40, pace, first=True), Sine(40, 40, pace, first=False), nn.Linear(40, 3))
    adamax = torch.optim.Adamax(field.parameters(), lr=rate)
    fall = torch.optim.lr_scheduler.LinearLR(adamax, 1.0, final, total)
    history: list[Tensor] = []

    def objective(batch: tuple[Tensor, Tensor]) -> Terms:
        places, truth = batch
        made = field(places)
        if cut:
            made = made.detach()
        moved = field(places + 0.01) - field(places)
        return Terms(color=(1.0, (made - truth).square().mean()), smooth=(smooth, (100 * moved).square().mean()))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, adamax=adamax, fall=fall)
        run.resume()
        for step in run.steps(total):
            terms = step.backward(objective, (points, colors))
            step.update(adamax)
            fall.step()
            if kept:
                history.append(torch.full((kept,), float(step.index)))
            if step.every(55):
                with run.evaluation("photo"):
                    error = (field(points) - colors).square().mean()
                    step.record({"Eval/psnr": -10 * error.log10()})
            del terms
    if memory:
        return -sum(4 * one.numel() for one in history) / 1e6
    with torch.no_grad():
        return float(-10 * (field(points) - colors).square().mean().log10())


def contrast(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    negatives: bool = True,
    paired: bool = True,
    temperature: float = 0.2,
    total: int = 150,
) -> float:
    """Learn embeddings in which two views of a glyph are close; returns the accuracy of nearest centers.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        negatives: whether the loss pushes other pictures away.
        paired: whether the second view is of the same picture.
        temperature: temperature of the similarities.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = glyphs(seed, 640, noise=0.0)
    held_x, held_y = glyphs(seed, 300, salt=2)
    body = nn.Sequential(nn.Flatten(), nn.Linear(196, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 16))
    adam = torch.optim.NAdam(body.parameters(), lr=rate)

    def view(pictures: Tensor) -> Tensor:
        moved = pictures.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
        return functional.normalize(body(moved + 0.3 * torch.randn_like(moved)), dim=1)

    @torch.no_grad()
    def nearest() -> float:
        known = body(x)
        centers = torch.stack([known[y == k].mean(0) for k in range(GLYPHS)])
        found = torch.cdist(body(held_x), centers).argmin(1)
        return float((found == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(body=body, adam=adam)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(len(x), (64,))
            # Several pictures of one glyph in a batch are positives of each other.
            same = (y[picked][:, None] == y[picked][None]).float()
            one = view(x[picked])
            other = view(x[picked] if paired else x[torch.randint(len(x), (64,))])
            likeness = one @ other.T / temperature
            if negatives:
                loss = -((likeness.log_softmax(1) * same).sum(1) / same.sum(1)).mean()
            else:
                loss = -(likeness * same).sum(1).div(same.sum(1)).mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(contrast=(1.0, loss)))
            step.update(adam)
            if step.every(30):
                with run.evaluation("nearest"):
                    step.record({"Eval/nearest": nearest(), "Eval/spread": body(held_x).std(0).mean()})
    return nearest()
