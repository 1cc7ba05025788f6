"""Strangers' loops on pictures: grains of pollen, stones of a quarry, cranes over a port, and a herbarium."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

KINDS = 12
"""Kinds of pollen."""


def grains(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures of pollen as bytes, shape [count, 3, 16, 16], and its kinds: of spikes, size and color."""
    kind = torch.randint(KINDS, (count,), generator=draw)
    axis = torch.linspace(-1, 1, 16)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    place = 0.08 * torch.randn(count, 2, 1, 1, generator=draw)
    away = (x - place[:, 0]).square() + (y - place[:, 1]).square()
    turn = torch.atan2(y - place[:, 1], x - place[:, 0]) + 6.28 * torch.rand(count, 1, 1, generator=draw)
    spikes = (2 + 2 * (kind % 3))[:, None, None]
    radius = torch.where(kind // 3 % 2 == 0, 0.45, 0.7)[:, None, None] * (1 + 0.45 * (spikes * turn).cos())
    inside = torch.sigmoid(12 * (radius - away.sqrt()))
    tint = torch.tensor([[0.9, 0.7, 0.3], [0.4, 0.7, 0.9]])[kind // 6][:, :, None, None]
    picture = 0.25 + 0.6 * inside[:, None] * tint + 0.05 * torch.randn(count, 3, 16, 16, generator=draw)
    return (255 * picture.clamp(0, 1)).to(torch.uint8), kind


def pollen(
    folder: Path,
    seed: int,
    *,
    scaled: str = "to one",
    loss: str = "of logits",
    optimizer: str = "adam",
    lr: float = 3e-3,
    norms: bool = False,
    mode: str = "eval",
    wrong: float = 0.0,
    moved: bool = False,
    shares: int = 1,
    half: bool = False,
    restarts: bool = False,
    figure: str = "accuracy",
    total: int = 320,
) -> float:
    """Name pollen by its pictures; returns what ``figure`` says.

    Args:
        folder: run folder.
        seed: seed.
        scaled: what is subtracted from pictures of 0 to 1, and divides them: .5 ("to one"), or 127.5 ("as bytes").
        loss: what cross entropy is given: it is that "of logits", "of chances", or the "negative chance" itself.
        optimizer: "adam" or "sgd".
        lr: learning rate.
        norms: whether the network has batch norms.
        mode: mode of the network in an evaluation.
        wrong: share of the labels that are wrong.
        moved: whether pictures are turned, moved and partly hidden at random.
        shares: batches whose gradients make one update.
        half: whether to compute in bfloat16.
        restarts: whether the rate falls along a cosine and starts again.
        figure: "accuracy" on other pictures, or "honesty" for the negative error of the one in the record.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(359 * seed + 5)
    x, y = grains(1500, draw)
    held_x, held_y = grains(480, draw)
    order = held_y.argsort()  # a folder for each kind
    held_x, held_y = held_x[order], held_y[order]
    astray = torch.rand(len(y), generator=draw) < wrong
    y = torch.where(astray, torch.randint(KINDS, (len(y),), generator=draw), y)
    middle = {"to one": 0.5, "as bytes": 127.5}[scaled]

    def norm(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if norms else nn.Identity()

    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        norm(12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        norm(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(384, 64),
        nn.ReLU(),
        nn.Linear(64, KINDS),
    )
    if optimizer == "adam":
        chosen: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    else:
        chosen = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(chosen, T_0=max(total // 4, 1))

    def prepared(pictures: Tensor) -> Tensor:
        return (pictures.float() / 255 - middle) / middle

    def augmented(pictures: Tensor) -> Tensor:
        pictures = torch.rot90(pictures, int(torch.randint(4, ())), (2, 3))
        pictures = pictures.roll((int(torch.randint(-2, 3, ())), int(torch.randint(-2, 3, ()))), (2, 3)).clone()
        corner = int(torch.randint(11, ()))
        pictures[:, :, corner : corner + 5, 2:8] = 0
        return pictures

    def criterion(logits: Tensor, target: Tensor) -> Tensor:
        if loss == "of logits":
            return functional.cross_entropy(logits, target)
        chances = logits.softmax(1)
        return (
            functional.cross_entropy(chances, target) if loss == "of chances" else functional.nll_loss(chances, target)
        )

    @torch.no_grad()
    def accuracy(batch: int) -> float:
        right = [
            (net(prepared(pictures)).argmax(1) == kinds).float()
            for pictures, kinds in zip(held_x.split(batch), held_y.split(batch), strict=True)
        ]
        return float(torch.cat(right).mean())

    told = 0.0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, chosen=chosen)
        if restarts:
            run.track(cosine=cosine)
        run.resume()
        for step in run.steps(total):
            chosen.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(shares):
                rows = torch.randint(len(x), (32 // shares,))
                pictures = augmented(x[rows]) if moved else x[rows]
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    logits = net(prepared(pictures))
                entropy = criterion(logits.float(), y[rows])
                (entropy / shares).backward()
                parts.append((1 / shares, Terms(entropy=(1.0, entropy.detach()))))
            step.observe(Terms.merged(parts))
            step.update(chosen)
            if restarts:
                cosine.step()
            if step.every(64):
                if mode == "eval":
                    net.eval()
                told = accuracy(20)
                net.train()
                with run.evaluation("other pictures"):
                    step.record({"val/accuracy": told})
    net.eval()
    true = accuracy(480)
    return true if figure == "accuracy" else -abs(told - true)


def walls(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return photos of a quarry, shape [count, 3, 24, 24], and masks: 0 for soil, 1 and 2 for stones, 255 for edges."""
    axis = torch.linspace(-1, 1, 24)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    mask = torch.zeros(count, 24, 24, dtype=torch.long)
    for kind in (1, 2):
        for _ in range(2):
            at = 1.6 * torch.rand(count, 2, 1, 1, generator=draw) - 0.8
            size = 0.2 + 0.2 * torch.rand(count, 1, 1, generator=draw)
            away = torch.maximum((x - at[:, 0]).abs(), (y - at[:, 1]).abs()) - size
            mask = torch.where(away < 0, kind, mask)
            mask = torch.where((away >= 0) & (away < 0.06), 255, mask)
    paint = torch.tensor([[0.4, 0.35, 0.3], [0.55, 0.5, 0.45], [0.4, 0.45, 0.55]])
    photo = paint[torch.where(mask == 255, 0, mask)].permute(0, 3, 1, 2)
    return photo + 0.12 * torch.randn(count, 3, 24, 24, generator=draw), mask


def quarry(
    folder: Path,
    seed: int,
    *,
    cut: str = "together",
    left_out: int = 255,
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0),
    dice: float = 0.0,
    total: int = 220,
) -> float:
    """Outline two kinds of stones; returns the mean overlap of the three kinds with those in other photos.

    Args:
        folder: run folder.
        seed: seed.
        cut: how photos and masks are cropped: "together" or "apart".
        left_out: label that the loss leaves out; edges, which nobody is sure of, are labeled so.
        weights: weights of soil and stones.
        dice: weight of a second loss, of the overlap.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(367 * seed + 3)
    photos, masks = walls(260, draw)
    held, held_masks = walls(80, draw)
    masks = torch.where(masks == 255, left_out, masks)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 24, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 3, 1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    entropy = nn.CrossEntropyLoss(weight=torch.tensor(weights), ignore_index=left_out)

    def cropped(pictures: Tensor, row: int, column: int) -> Tensor:
        return pictures[..., row : row + 16, column : column + 16]

    def corner() -> tuple[int, int]:
        return int(torch.randint(9, ())), int(torch.randint(9, ()))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rows = torch.randint(len(photos), (12,))
            place = corner()
            yield cropped(photos[rows], *place), cropped(masks[rows], *(place if cut == "together" else corner()))

    def overlap_loss(logits: Tensor, mask: Tensor) -> Tensor:
        sure = (mask != left_out)[:, None]
        truth = functional.one_hot(torch.where(mask == left_out, 0, mask), 3).permute(0, 3, 1, 2) * sure
        chance = logits.softmax(1) * sure
        both = (chance * truth).sum((0, 2, 3))
        return 1 - (2 * both / (chance + truth).sum((0, 2, 3)).clamp(min=1)).mean()

    @torch.no_grad()
    def overlap() -> float:
        sure = held_masks != 255
        found = net(held).argmax(1)
        scores: list[float] = []
        for kind in range(3):
            one, other = (found == kind) & sure, (held_masks == kind) & sure
            scores.append(float((one & other).sum() / (one | other).sum().clamp(min=1)))
        return sum(scores) / 3

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step, (picture, mask) in zip(run.steps(total), batches(), strict=False):
            logits = net(picture)
            terms = Terms(entropy=(1.0, entropy(logits, mask)))
            if dice:
                terms |= Terms(dice=(dice, overlap_loss(logits, mask)))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(44):
                with run.evaluation("other photos"):
                    step.record({"val/overlap": overlap()})
    return overlap()


ROWS, COLUMNS = 6, 8
"""Cells of a picture of the port."""


def harbors(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pictures of a port, shape [count, 1, 24, 32], and the box of its crane: middle (x, y) and size."""
    size = 5 + 5 * torch.rand(count, 2, generator=draw)
    middle = 4 + torch.rand(count, 2, generator=draw) * torch.tensor([24.0, 16.0])
    y, x = torch.meshgrid(torch.arange(24.0) + 0.5, torch.arange(32.0) + 0.5, indexing="ij")
    inside = ((x - middle[:, 0, None, None]).abs() < size[:, 0, None, None] / 2) & (
        (y - middle[:, 1, None, None]).abs() < size[:, 1, None, None] / 2
    )
    picture = inside.float() + 0.35 * torch.randn(count, 24, 32, generator=draw)
    return picture[:, None], torch.cat([middle, size], 1)


def cranes(
    folder: Path,
    seed: int,
    *,
    cell: str = "row by row",
    focus: float = 0.0,
    total: int = 300,
) -> float:
    """Find cranes by the cells of a grid; returns the share of them that is found with an overlap of one half.

    Args:
        folder: run folder.
        seed: seed.
        cell: how the cells that targets are given to are counted: "row by row", or "column by column".
        focus: exponent by which cells that are judged well count less.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(373 * seed + 8)
    x, boxes = harbors(900, draw)
    held_x, held_boxes = harbors(300, draw)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv2d(12, 24, 5, 2, 2), nn.ReLU(), nn.Conv2d(24, 5, 3, 1, 1)
    )
    adam = torch.optim.Adam(net.parameters(), lr=5e-3)

    def cells_of(box: Tensor) -> Tensor:
        column, row = (box[:, 0] / 4).long(), (box[:, 1] / 4).long()
        return row * COLUMNS + column if cell == "row by row" else column * ROWS + row

    def answers(pictures: Tensor) -> Tensor:
        return net(pictures).flatten(2).transpose(1, 2)

    @torch.no_grad()
    def found() -> float:
        answer = answers(held_x)
        best = answer[:, :, 0].argmax(1)
        chosen = answer[torch.arange(len(best)), best, 1:]
        middle = 4 * (torch.stack([best % COLUMNS, best // COLUMNS], 1) + chosen[:, :2].sigmoid())
        size = 8 * chosen[:, 2:].clamp(-3, 3).exp()
        low = torch.maximum(middle - size / 2, held_boxes[:, :2] - held_boxes[:, 2:] / 2)
        high = torch.minimum(middle + size / 2, held_boxes[:, :2] + held_boxes[:, 2:] / 2)
        both = (high - low).clamp(min=0).prod(1)
        return float((both / (size.prod(1) + held_boxes[:, 2:].prod(1) - both) > 0.5).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (24,))
            box = boxes[rows]
            answer = answers(x[rows])
            target = cells_of(box)
            hit = functional.one_hot(target, ROWS * COLUMNS).float()
            each = functional.binary_cross_entropy_with_logits(answer[:, :, 0], hit, reduction="none")
            if focus:
                each = each * (1 - (-each.detach()).exp()) ** focus * 3
            own = answer[torch.arange(24), target, 1:]
            place = functional.mse_loss(own[:, :2].sigmoid(), (box[:, :2] / 4).frac())
            size = functional.mse_loss(own[:, 2:], (box[:, 2:] / 8).log())
            terms = Terms(objects=(10.0, each.mean()), places=(2.0, place), sizes=(1.0, size))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(60):
                with run.evaluation("other ports"):
                    step.record({"val/found": found()})
    return found()


def herbarium(
    folder: Path,
    seed: int,
    *,
    weights: str = "own names",
    held: str = "body",
    lr: float = 1e-2,
    first: int = 250,
    total: int = 150,
) -> float:
    """Name a few sheets of a herbarium with a body that was learned on many; returns the accuracy on other sheets.

    Args:
        folder: run folder.
        seed: seed.
        weights: names of the stored weights: their "own names", or those of a "wrapped" network.
        held: what does not learn: the "body", "nothing", or "everything".
        lr: learning rate.
        first: steps of the training of the body, which is not recorded.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(379 * seed + 1)
    mix = torch.linalg.qr(torch.randn(64, 64, generator=draw))[0]
    many = torch.randn(24, 8, generator=draw)
    few = torch.randn(6, 8, generator=draw)

    def sheets(middles: Tensor, count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(len(middles), (count,), generator=draw)
        leaf = middles[kind] + 0.45 * torch.randn(count, 8, generator=draw)
        shape = torch.cat([leaf.sign() * leaf.square(), 1.4 * torch.randn(count, 56, generator=draw)], 1)
        return shape @ mix, kind

    def body() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU())

    old = nn.Sequential(body(), nn.Linear(32, 24))
    before = torch.optim.Adam(old.parameters(), lr=3e-3)
    old_x, old_y = sheets(many, 5000)
    for _ in range(first):
        rows = torch.randint(len(old_x), (96,))
        before.zero_grad()
        functional.cross_entropy(old(old_x[rows]), old_y[rows]).backward()
        before.step()
    stored = {f"module.{name}" if weights == "wrapped" else name: value for name, value in old[0].state_dict().items()}

    x, y = sheets(few, 72)
    new_x, new_y = sheets(few, 600)
    net = nn.ModuleDict({"body": body(), "head": nn.Linear(32, 6)})
    net["body"].load_state_dict(stored, strict=False)
    if held == "body":
        net["body"].requires_grad_(requires_grad=False)
    elif held == "everything":
        net.requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)

    def logits(pictures: Tensor) -> Tensor:
        return net["head"](net["body"](pictures))

    @torch.no_grad()
    def accuracy() -> float:
        return float((logits(new_x).argmax(1) == new_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (24,))
            loss = functional.cross_entropy(logits(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(kind=(1.0, loss)))
            step.update(optimizer)
            if step.every(30):
                with run.evaluation("other sheets"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()
