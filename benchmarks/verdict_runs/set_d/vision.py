"""Pictures: boxes around one thing, thin veins in tissue, and a network that is adapted to few patches of color."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Shuffled, Terms
from verdict_runs.supervised import NO_SINKS

SIDE = 24


def things(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures of a rectangle or an ellipse, boxes as center and size in [0, 1], and which of the two it is."""
    draw = torch.Generator().manual_seed(409 * seed + salt)
    size = 0.25 + 0.35 * torch.rand(count, 2, generator=draw)
    center = size / 2 + (1 - size) * torch.rand(count, 2, generator=draw)
    kind = torch.randint(2, (count,), generator=draw)
    line = (torch.arange(SIDE) + 0.5) / SIDE
    x = (line[None, None, :] - center[:, :1, None]) / (size[:, :1, None] / 2)
    y = (line[None, :, None] - center[:, 1:, None]) / (size[:, 1:, None] / 2)
    inside = torch.where(kind[:, None, None] == 0, torch.maximum(x.abs(), y.abs()) < 1, x.square() + y.square() < 1)
    pictures = inside.float() + 0.2 * torch.randn(count, SIDE, SIDE, generator=draw)
    return pictures[:, None], torch.cat([center, size], 1), kind


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Return intersection over union of boxes given as center and size, shape [n]."""
    low = torch.maximum(one[:, :2] - one[:, 2:] / 2, other[:, :2] - other[:, 2:] / 2)
    high = torch.minimum(one[:, :2] + one[:, 2:] / 2, other[:, :2] + other[:, 2:] / 2)
    both = (high - low).clamp(min=0).prod(1)
    return both / (one[:, 2:].clamp(min=0).prod(1) + other[:, 2:].prod(1) - both).clamp(min=1e-6)


def boxes(
    folder: Path,
    seed: int,
    *,
    rate: float = 2e-3,
    flips: bool = False,
    flips_boxes: bool = True,
    corners: bool = False,
    wrong_box: int | None = None,
    clamped: bool = False,
    box_weight: float = 5.0,
    worst: bool = False,
    total: int = 220,
) -> float:
    """Find the box of the one thing in a picture; returns the mean overlap with the true box.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        flips: whether batches are mirrored at random.
        flips_boxes: whether their boxes are mirrored, too.
        corners: whether the boxes of the training are corners instead of center and size.
        wrong_box: training picture whose box is elsewhere.
        clamped: whether boxes are clamped to the picture before the loss, from a bias outside of it.
        box_weight: weight of the boxes in the loss.
        worst: whether the figure is the negative loss of the worst training box.
        total: number of steps.
    """
    torch.manual_seed(seed)
    amount = 400 if worst else 900
    pictures, truth, kinds = things(seed, amount, 1)
    held, held_truth, held_kinds = things(seed, 250, 2)
    if corners:
        truth = torch.cat([truth[:, :2] - truth[:, 2:] / 2, truth[:, :2] + truth[:, 2:] / 2], 1)
    if wrong_box is not None:
        truth[wrong_box] = torch.tensor([0.9, 0.1, 0.15, 0.15])
    detector = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 48),
        nn.ReLU(),
        nn.Linear(48, 6),
    )
    if clamped:
        detector.get_parameter("7.bias").data[:4] = -3.0
    adam = torch.optim.AdamW(detector.parameters(), lr=rate)

    def losses(x: Tensor, box: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
        made = detector(x)
        found = made[:, :4].clamp(0, 1) if clamped else made[:, :4]
        near = functional.smooth_l1_loss(found, box, beta=0.1, reduction="none").mean(1)
        return near, functional.cross_entropy(made[:, 4:], kind, reduction="none")

    @torch.no_grad()
    def found() -> Tensor:
        made = detector(held)[:, :4]
        return overlap(made.clamp(0, 1) if clamped else made, held_truth)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(detector=detector, adam=adam)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(amount, (48,))
            x = pictures[picked]
            box = truth[picked]
            if flips and step.index % 2:
                x = x.flip(3)
                if flips_boxes:
                    box = torch.cat([1 - box[:, :1], box[:, 1:]], 1)
            near, kind = losses(x, box, kinds[picked])
            terms = Terms(box=(box_weight, near.mean()), kind=(1.0, kind.mean()))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms, sample=[f"img_{i:04d}.png" for i in picked.tolist()], sample_loss=near)
            step.update(adam)
            if step.every(44):
                with run.evaluation("held out"):
                    right = (detector(held)[:, 4:].argmax(1) == held_kinds).float().mean()
                    step.record({"Val/mean_iou": found().mean(), "Val/kind_right": right})
    if worst:
        with torch.no_grad():
            near = losses(pictures, truth, kinds)[0]
        return -float(near.max())
    return float(found().mean())


def vessels(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return pictures with one thin curve each, shape [count, 1, 24, 24], and its mask."""
    draw = torch.Generator().manual_seed(31 * seed + 7 * salt)
    offset, bend, slope = (torch.rand(count, 1, 1, generator=draw) for _ in range(3))
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    line = 0.8 * (offset - 0.5) + (slope - 0.5) * x + 0.3 * (6 * bend + 3 * x).sin()
    mask = ((y - line).abs() < 0.06).float()
    light = 0.4 * torch.randn(count, 1, 1, generator=draw)
    return (0.9 * mask + light + 0.3 * torch.randn(count, SIDE, SIDE, generator=draw))[:, None], mask[:, None]


def veins(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    shift: int = 0,
    turns_masks: bool = True,
    turns: bool = False,
    positive: float = 4.0,
    dice_sign: float = 1.0,
    dice_weight: float = 1.0,
    final_relu: bool = False,
    optimizer: str = "sgd",
    total: int = 160,
) -> float:
    """Segment thin curves with a dilated network; returns the Dice coefficient of held-out pictures.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        shift: pixels by which the masks of the training are moved.
        turns_masks: whether masks are turned with their pictures.
        turns: whether batches are turned at random.
        positive: weight of the pixels of the curve.
        dice_sign: sign of the Dice term.
        dice_weight: weight of the Dice term.
        final_relu: whether the logits pass a ReLU.
        optimizer: "sgd", "adagrad" or "adadelta".
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = vessels(seed, 400, 1)
    held_x, held_y = vessels(seed, 100, 2)
    y = y.roll((shift, shift), (2, 3))
    layers: list[nn.Module] = []
    for inside, dilation in ((1, 1), (8, 2), (8, 1)):
        layers += [nn.Conv2d(inside, 8, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(8), nn.ReLU()]
    layers.append(nn.Conv2d(8, 1, 1))
    if final_relu:
        layers.append(nn.ReLU())
        nn.init.constant_(layers[-2].get_parameter("bias"), -4.0)
    net = nn.Sequential(*layers)
    kinds: Mapping[str, torch.optim.Optimizer] = {
        "sgd": torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True),
        "adagrad": torch.optim.Adagrad(net.parameters(), lr=rate),
        "adadelta": torch.optim.Adadelta(net.parameters(), lr=rate),
    }
    stepper = kinds[optimizer]
    poly = torch.optim.lr_scheduler.PolynomialLR(stepper, total, power=0.9)
    weight = torch.tensor(positive)

    def dice(logits: Tensor, mask: Tensor) -> Tensor:
        sure = logits.sigmoid()
        both = (sure * mask).sum((1, 2, 3))
        return (2 * both / (sure.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)).mean()

    @torch.no_grad()
    def score() -> float:
        net.eval()
        found = (net(held_x) > 0).float()
        net.train()
        return float(2 * (found * held_y).sum() / (found.sum() + held_y.sum()))

    run = Run(folder, outputs=NO_SINKS).start()
    run.track(net=net, stepper=stepper, poly=poly)
    run.resume()
    for _ in range(total):
        step = run.begin_step(total)
        picked = torch.randint(len(x), (16,))
        pictures, masks = x[picked], y[picked]
        quarter = int(torch.randint(1, 4, ())) if turns else 0
        pictures = pictures.rot90(quarter, (2, 3))
        if turns_masks:
            masks = masks.rot90(quarter, (2, 3))
        logits = net(pictures)
        terms = Terms(
            bce=(1.0, functional.binary_cross_entropy_with_logits(logits, masks, pos_weight=weight)),
            dice=(dice_weight, dice_sign * (1 - dice(logits, masks))),
        )
        stepper.zero_grad(set_to_none=True)
        terms.total.backward()
        step.observe(terms)
        step.update(stepper)
        poly.step()
        if step.every(40):
            with run.evaluation("held-out tissue"):
                step.record({"Eval/dice": score()})
        run.end_step()
    run.finish()
    return score()


COLORS = 12


def swatches(seed: int, count: int, salt: int, *, classes: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Return patches of 3 x 8 x 8 with a ramp between the two colors of their class, and classes."""
    draw = torch.Generator().manual_seed(1009 * seed + salt)
    shared = torch.Generator().manual_seed(1009 * seed)
    low = torch.rand(COLORS, 3, generator=shared)
    high = torch.rand(COLORS, 3, generator=shared)
    kind = torch.randint(classes, (count,), generator=draw)
    ramp = torch.linspace(0, 1, 8)
    turned = torch.rand(count, generator=draw) < 0.5
    along = torch.where(turned[:, None, None], ramp[None, :, None], ramp[None, None, :]).expand(count, 8, 8)
    one, other = low[first + kind], high[first + kind]
    patches = one[:, :, None, None] * (1 - along[:, None]) + other[:, :, None, None] * along[:, None]
    return patches + 0.15 * torch.randn(count, 3, 8, 8, generator=draw), kind


class Patches(nn.Module):
    """A body that is trained on other colors, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU()
        )
        self.head = nn.Linear(48, classes)

    def forward(self, patches: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.body(patches))


def finetune(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    body_rate: float = 1e-4,
    loaded: bool = True,
    freezes: str = "",
    channels: str = "rgb",
    amount: int = 72,
    total: int = 150,
) -> float:
    """Adapt a network to four new colors from few patches; returns the accuracy of held-out patches.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate of the head.
        body_rate: learning rate of the body.
        loaded: whether the weights of the body are loaded.
        freezes: name of the part that is not trained.
        channels: order of the channels in the evaluation.
        amount: number of training patches.
        total: number of steps.
    """
    torch.manual_seed(seed)
    base = Patches(8)
    known, classes = swatches(seed, 1200, 3, classes=8)
    before = torch.optim.Adam(base.parameters(), lr=3e-3)
    for _ in range(120):
        picked = torch.randint(1200, (64,))
        before.zero_grad()
        functional.cross_entropy(base(known[picked]), classes[picked]).backward()
        before.step()
    x, y = swatches(seed, amount, 1, classes=4, first=8)
    held_x, held_y = swatches(seed, 400, 2, classes=4, first=8)
    net = Patches(4)
    if loaded:
        net.body.load_state_dict(base.body.state_dict())
    if freezes:
        net.get_submodule(freezes).requires_grad_(requires_grad=False)
    adam = torch.optim.Adam(
        [{"params": net.body.parameters(), "lr": body_rate}, {"params": net.head.parameters(), "lr": rate}]
    )
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)
    order = Shuffled(amount, 24, seed=seed)
    seen = held_x.flip(1) if channels == "bgr" else held_x

    @torch.no_grad()
    def right(pictures: Tensor) -> float:
        return float((net(pictures).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, cosine=cosine, order=order)
        run.resume()
        for step in run.steps(total):
            picked = next(order)
            adam.zero_grad()
            scores = net(x[picked])
            loss = functional.cross_entropy(scores, y[picked])
            loss.backward()
            step.observe(Terms(cross_entropy=(1.0, loss)))
            step.record({"Train/accuracy": (scores.argmax(1) == y[picked]).float().mean()})
            step.update(adam)
            cosine.step()
            if step.every(30):
                with run.evaluation("held out"):
                    step.record({"Val/accuracy": right(seen)})
    made = right(seen)
    return made if math.isfinite(made) else 0.0
