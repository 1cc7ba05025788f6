"""Pictures: moths by their wings, heads in a crowd, organs in a slice, currents between two pictures, a postcard."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS

SIDE = 14
SPECIES = 6


def wings(seed: int, count: int, salt: int, wrong: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return pictures of wings [n, 1, 14, 14] and the species, of which a share is wrong."""
    draw = torch.Generator().manual_seed(53 * seed + salt)
    species = torch.randint(SPECIES, (count,), generator=draw)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    angle = (species % 3) * 0.7 + 0.12 * torch.randn(count, generator=draw)
    often = 0.8 + 0.5 * torch.div(species, 3, rounding_mode="floor") + 0.05 * torch.randn(count, generator=draw)
    start = 6.3 * torch.rand(count, generator=draw)
    along = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    bands = (often[:, None, None] * along + start[:, None, None]).sin()
    noise = 1.4 * torch.randn(count, SIDE, SIDE, generator=draw)
    other = torch.randint(SPECIES, (count,), generator=draw)
    mislabeled = torch.rand(count, generator=draw) < wrong
    return (0.5 + 0.25 * (bands + noise))[:, None], torch.where(mislabeled, other, species)


class Caught(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Pictures in memory, of which another part is erased each time."""

    def __init__(self, pictures: Tensor, species: Tensor, *, in_place: bool) -> None:
        self.pictures = pictures
        self.species = species
        self.in_place = in_place

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.pictures[index]
        if not self.in_place:
            picture = picture.clone()
        top, left = torch.randint(SIDE - 6, (2,)).tolist()
        picture[:, top : top + 7, left : left + 7] = 0.5
        return picture.clone(), self.species[index]


class Branch(nn.Module):
    """A residual branch that is left out now and then."""

    def __init__(self, width: int, left_out: float) -> None:
        super().__init__()
        self.left_out = left_out
        self.norm = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return features with those of the branch added."""
        if self.training and self.left_out and float(torch.rand(())) < self.left_out:
            return x
        change = self.conv(functional.relu(self.norm(x)))
        return x + (change if self.training else (1 - self.left_out) * change)


def moths(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    in_place: bool = False,
    sampler: str = "none",
    at_once: int = 48,
    exposures: int = 1,
    cleared: str = "before each update",
    mixed: bool = False,
    left_out: float = 0.0,
    wrong: float = 0.0,
    count: int = 240,
    epochs: int = 30,
    cyclic: bool = False,
) -> float:
    """Name moths; returns the accuracy on held-out pictures.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        in_place: whether the augmentation changes the stored pictures.
        sampler: weights of the weighted sampler: one per "picture" or one per "species"; "none" for a plain order.
        at_once: pictures in a batch.
        exposures: batches per update.
        cleared: when gradients are cleared: "before each update", or "before each batch".
        mixed: whether pictures and labels are mixed in pairs.
        left_out: chance that a branch is left out.
        wrong: share of wrong labels in the training data.
        count: number of training pictures.
        epochs: number of epochs.
        cyclic: whether the rate goes up and down.
    """
    torch.manual_seed(seed)
    pictures, species = wings(seed, count, 1, wrong)
    held, held_species = wings(seed, 500, 2)
    data = Caught(pictures, species, in_place=in_place)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        Branch(16, left_out),
        Branch(16, left_out),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(64, SPECIES),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=20 * lr, momentum=0.9, weight_decay=1e-4)
    batches_per_epoch = count // at_once
    total = epochs * batches_per_epoch // exposures
    if cyclic:
        schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 4 * lr, 20 * lr, step_size_up=max(total // 6, 1))
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    if sampler == "none":
        loader = ResumableLoader(data, batch_size=at_once, seed=seed, drop_last=True)
    else:
        share = 1 / torch.bincount(species, minlength=SPECIES)
        weights = share[species] if sampler == "picture" else share
        chosen = torch.multinomial(weights, count, replacement=True)
        loader = ResumableLoader(
            torch.utils.data.Subset(data, chosen.tolist()), batch_size=at_once, seed=seed, drop_last=True
        )

    @torch.no_grad()
    def accuracy() -> float:
        return float((net(held).argmax(1) == held_species).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, loader=loader, schedule=schedule)
        run.resume()
        arriving = run.batches(loader)
        for step in run.steps(total):
            optimizer.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(exposures):
                x, y = next(arriving)
                if mixed:
                    keep = float(torch.distributions.Beta(0.6, 0.6).sample())
                    other = torch.randperm(len(x))
                    logits = net(keep * x + (1 - keep) * x[other])
                    loss = keep * functional.cross_entropy(logits, y)
                    loss = loss + (1 - keep) * functional.cross_entropy(logits, y[other])
                else:
                    loss = functional.cross_entropy(net(x), y)
                if cleared == "before each batch":
                    optimizer.zero_grad()
                terms = Terms(species=(1.0, loss))
                (terms.total / exposures).backward()
                parts.append((1 / exposures, terms.detach()))
            step.observe(Terms.merged(parts))
            step.update(optimizer)
            schedule.step()
            if step.every(max(total // 8, 1)):
                with run.evaluation("held-out moths"):
                    net.eval()
                    step.record({"Val/accuracy": accuracy()})
                    net.train()
    net.eval()
    return accuracy()


def gatherings(seed: int, count: int, salt: int, most: int = 14) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures of crowds [n, 1, 24, 24], densities of heads of the same size, and numbers of heads."""
    draw = torch.Generator().manual_seed(67 * seed + salt)
    grid = torch.arange(24.0)
    pictures = torch.zeros(count, 24, 24)
    density = torch.zeros(count, 24, 24)
    heads = torch.randint(2, most, (count,), generator=draw)
    for i in range(count):
        place = 2 + 20 * torch.rand(int(heads[i]), 2, generator=draw)
        away = (grid[None, :, None] - place[:, 0, None, None]) ** 2 + (grid[None, None] - place[:, 1, None, None]) ** 2
        spots = (-away / 3).exp()
        pictures[i] = spots.amax(0)
        density[i] = (spots / spots.sum((1, 2), keepdim=True)).sum(0)
    pictures += 0.15 * torch.randn(count, 24, 24, generator=draw)
    return pictures[:, None], density[:, None], heads.float()


def crowds(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    shrunk: str = "by sums",
    easy_first: bool = False,
    total: int = 220,
) -> float:
    """Count heads by their density; returns the negative mean error of held-out counts, in heads.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        shrunk: how the density is brought to the size of the output: "by sums" or "by interpolation".
        easy_first: whether pictures with few heads come first.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, density, heads = gatherings(seed, 500, 1)
    held, _, held_heads = gatherings(seed, 150, 2)
    if shrunk == "by sums":
        target = 16 * functional.avg_pool2d(density, 4)
    else:
        target = functional.interpolate(density, scale_factor=0.25, mode="bilinear", antialias=True)
    csr = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(24, 1, 1),
    )
    adam = torch.optim.Adam(csr.parameters(), lr=lr)
    order = heads.argsort()

    @torch.no_grad()
    def error() -> float:
        return float((csr(held).sum((1, 2, 3)) - held_heads).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(csr=csr, adam=adam)
        run.resume()
        for step in run.steps(total):
            known = len(x)
            if easy_first:
                known = min(len(x), 100 + 4 * step.index)
            rows = order[torch.randint(known, (24,))]
            terms = Terms(density=(10.0, functional.mse_loss(csr(x[rows]), target[rows])))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(44):
                with run.evaluation("other pictures"):
                    step.record({"Eval/mean_error_heads": error()})
    return -error()


def slices(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return slices of a body [n, 1, 20, 20] and what is where: 0 for fat, 1 to 3 for organs; 255 is not annotated."""
    draw = torch.Generator().manual_seed(43 * seed + salt)
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    kinds = torch.zeros(count, 20, 20, dtype=torch.long)
    for kind, (cy, cx, radius) in enumerate(((7, 6, 4.5), (12, 13, 4.0), (5, 14, 2.5)), start=1):
        place = 1.5 * torch.randn(count, 2, generator=draw)
        size = radius + 0.5 * torch.randn(count, generator=draw)
        away = (y - cy - place[:, 0, None, None]) ** 2 + (x - cx - place[:, 1, None, None]) ** 2
        kinds[away < size[:, None, None] ** 2] = kind
    level = torch.tensor([0.2, 0.5, 0.65, 0.9])[kinds]
    pictures = level + 0.15 * torch.randn(count, 20, 20, generator=draw)
    rim = functional.max_pool2d(kinds.float()[:, None], 3, 1, 1) != -functional.max_pool2d(
        -kinds.float()[:, None], 3, 1, 1
    )
    annotated = kinds.clone()
    annotated[rim[:, 0]] = 255
    return pictures[:, None], annotated


def organs(
    folder: Path,
    seed: int,
    *,
    lr: float = 8e-3,
    unknown: str = "ignored",
    count: int = 160,
    epochs: int = 14,
) -> float:
    """Find organs in slices; returns the mean overlap of the four kinds where the truth is known.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        unknown: what becomes of pixels that are not annotated: "ignored", or "clamped" to the last kind.
        count: number of slices.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    x, kinds = slices(seed, count, 1)
    held, held_kinds = slices(seed, 80, 2)
    if unknown == "clamped":
        kinds = kinds.clamp(max=3)

    class Hourglass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU())
            self.below = nn.Sequential(
                nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()
            )
            self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
            self.out = nn.Sequential(nn.Conv2d(24, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1))

        def forward(self, picture: Tensor) -> Tensor:
            fine = self.into(picture)
            return self.out(torch.cat([fine, self.up(self.below(fine))], 1))

    unet = Hourglass()
    opt = torch.optim.RAdam(unet.parameters(), lr=lr)
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, kinds), batch_size=16, seed=seed)

    def overlaps(logits: Tensor, truth: Tensor) -> Tensor:
        known = truth != 255
        found = logits.argmax(1)
        shares: list[Tensor] = []
        for kind in range(4):
            both = (known & (found == kind) & (truth == kind)).sum()
            either = (known & ((found == kind) | (truth == kind))).sum()
            shares.append(both / either.clamp(min=1))
        return torch.stack(shares)

    def dice(logits: Tensor, truth: Tensor) -> Tensor:
        known = (truth != 255)[:, None]
        chance = logits.softmax(1) * known
        wanted = functional.one_hot(truth.clamp(max=3), 4).movedim(-1, 1) * known
        shared = (chance * wanted).sum((0, 2, 3))
        return 1 - ((2 * shared + 1) / (chance.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)).mean()

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(unet=unet, opt=opt, loader=loader)
        run.resume()
        for epoch in range(loader.epoch, epochs):
            for picture, truth in loader:
                step = run.begin_step(total=epochs * len(loader))
                logits = unet(picture)
                terms = Terms(
                    cross_entropy=(1.0, functional.cross_entropy(logits, truth, ignore_index=255)),
                    dice=(0.5, dice(logits, truth)),
                )
                opt.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt)
                run.end_step()
            if epoch % 3 == 2:
                with run.evaluation("held-out slices"), torch.no_grad():
                    shares = overlaps(unet(held), held_kinds)
                    run.record({f"Overlap/kind_{i}": float(share) for i, share in enumerate(shares)})
    with torch.no_grad():
        return float(overlaps(unet(held), held_kinds).mean())


def currents(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    grid: str = "of one",
    total: int = 300,
) -> float:
    """Learn without truth how far the water moved between two pictures; returns the negative error in pixels.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        grid: coordinates in which the second picture is sampled: "of one" (from -1 to 1) or "of pixels".
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(19 * seed + 6)
    size = 16

    def pairs(count: int) -> tuple[Tensor, Tensor]:
        wide = torch.randn(count, 1, 12, 12, generator=draw)
        wide = functional.interpolate(wide, size=(40, 40), mode="bicubic")
        moved = 6 * torch.rand(count, 2, generator=draw) - 3
        still = base(count)
        first = functional.grid_sample(wide, still * (size - 1) / 39, align_corners=True)
        second = functional.grid_sample(wide, (still * (size - 1) - 2 * moved[:, None, None]) / 39, align_corners=True)
        return torch.cat([first, second], 1), moved

    def base(count: int) -> Tensor:
        along = torch.linspace(-1, 1, size)
        y, x = torch.meshgrid(along, along, indexing="ij")
        return torch.stack([x, y], -1).expand(count, size, size, 2)

    x, _ = pairs(1500)
    held, held_moved = pairs(300)
    flow = nn.Sequential(
        nn.Conv2d(2, 24, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 2),
    )
    optimizer = torch.optim.Adam(flow.parameters(), lr=lr)

    def photometric(pair: Tensor) -> Terms:
        moved = flow(pair)
        by = moved if grid == "of pixels" else 2 * moved / (size - 1)
        back = functional.grid_sample(pair[:, 1:], base(len(pair)) + by[:, None, None], align_corners=True)
        inside = functional.grid_sample(
            torch.ones_like(back), base(len(pair)) + by[:, None, None].detach(), align_corners=True
        )
        difference = ((back - pair[:, :1]).square() + 1e-6).sqrt()
        return Terms(
            photometric=(1.0, (difference * inside).sum() / inside.sum().clamp(min=1)),
            small=(1e-3, moved.square().mean()),
        )

    @torch.no_grad()
    def endpoint() -> float:
        return float((flow(held) - held_moved).norm(dim=1).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(flow=flow, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            step.backward(photometric, x[torch.randint(len(x), (32,))])
            step.update(optimizer, clip=10.0)
            if step.every(60):
                with run.evaluation("held-out pairs"):
                    step.record({"Eval/endpoint_error": endpoint()})
    return -endpoint()


class Sine(nn.Module):
    """A layer with a sine behind it."""

    def __init__(self, inputs: int, outputs: int, *, first: bool, begun: str) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        if begun == "siren":
            bound = 1 / inputs if first else (6 / inputs) ** 0.5 / 30
            nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return sines."""
        return (30 * self.linear(x)).sin()


def postcard(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-4,
    begun: str = "siren",
    grid: str = "as stored",
    total: int = 350,
) -> float:
    """Fit a picture as a function of the place; returns the PSNR at pixels that were left out.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        begun: initial weights: "siren", or "plain" ones of torch.
        grid: places of the pixels: "as stored", or "columns first".
        total: number of steps.
    """
    torch.manual_seed(seed)
    height = 40
    width = 64
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    hills = (3 * x + (5 * y).sin()).sin() * 0.4 + 0.5
    sail = ((x - 0.3).abs() < 0.4 * (0.6 - y)).float() * (y.abs() < 0.6)
    sun = (-40 * ((x + 0.5) ** 2 + (y + 0.5) ** 2)).exp()
    stored = torch.stack([hills, 0.7 * sail + 0.2 * hills, sun + 0.3 * (9 * x * y).cos() * 0.5], -1).reshape(-1, 3)
    places = torch.stack([x, y], -1).reshape(-1, 2)
    trained = places
    if grid == "columns first":
        yy, xx = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="xy")
        trained = torch.stack([xx, yy], -1).reshape(-1, 2)
    draw = torch.Generator().manual_seed(seed + 4)
    left_out = torch.rand(len(stored), generator=draw) < 0.2
    seen = (~left_out).nonzero().flatten()
    siren = nn.Sequential(
        Sine(2, 48, first=True, begun=begun),
        Sine(48, 48, first=False, begun=begun),
        Sine(48, 48, first=False, begun=begun),
        nn.Linear(48, 3),
    )
    adam = torch.optim.Adam(siren.parameters(), lr=lr)

    @torch.no_grad()
    def psnr(which: Tensor, at: Tensor) -> float:
        return float(-10 * (siren(at[which]) - stored[which]).square().mean().log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(siren=siren, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = seen[torch.randint(len(seen), (512,))]
            terms = Terms(color=(1.0, functional.mse_loss(siren(trained[rows]), stored[rows])))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(50):
                with run.evaluation("pixels"):
                    step.record({"PSNR/left_out": psnr(left_out, trained), "PSNR/seen": psnr(seen, trained)})
    # What anyone sees who draws the picture, pixel by pixel.
    return psnr(left_out, places)
