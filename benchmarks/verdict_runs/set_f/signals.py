"""Signals: speech under noise, clouds on a radar, pictures of leaves and of birds."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import TOOLKIT, Catalogue, Declared, Metric, Run, Terms
from verdict_runs.supervised import NO_SINKS

LONG = 512
WINDOW = 64


def speech(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return clean sounds [n, 512] of a few gliding tones, and the same with noise."""
    draw = torch.Generator().manual_seed(73 * seed + salt)
    t = torch.arange(LONG) / LONG
    pitch = 12 + 30 * torch.rand(count, 1, generator=draw)
    glide = 16 * torch.rand(count, 1, generator=draw) - 8
    phase = 6.28 * (pitch * t + glide * t.square())
    begin = 0.5 * torch.rand(count, 1, generator=draw)
    loud = torch.sigmoid(60 * (t - begin)) * torch.sigmoid(60 * (begin + 0.5 - t))
    clean = loud * (phase.sin() + 0.5 * (2 * phase).sin() + 0.3 * (3 * phase).sin())
    return clean, clean + 0.8 * torch.randn(count, LONG, generator=draw)


def stft(sound: Tensor) -> Tensor:
    """Return the spectrum over time, [n, 33, 33]."""
    return torch.stft(sound, WINDOW, WINDOW // 4, window=torch.hann_window(WINDOW), return_complex=True)


def ratio(found: Tensor, clean: Tensor) -> Tensor:
    """Return the ratio of signal to distortion of each sound in decibels, whatever its scale."""
    scale = (found * clean).sum(1, keepdim=True) / clean.square().sum(1, keepdim=True)
    wanted = scale * clean
    return 10 * (wanted.square().sum(1) / (found - wanted).square().sum(1)).log10()


def denoise(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    late: int = 0,
    batch: int = 16,
    total: int = 120,
) -> float:
    """Clean speech by a mask on its spectrum; returns the gain in decibels on held-out sounds.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        late: samples by which the clean recording lags behind the noisy one.
        batch: number of sounds in a batch.
        total: number of steps.
    """
    torch.manual_seed(seed)
    clean, noisy = speech(seed, 400, 1)
    held_clean, held_noisy = speech(seed, 60, 2)
    target = clean.roll(late, 1)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2),
        nn.PReLU(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.PReLU(),
        nn.Conv2d(12, 1, 3, padding=1),
        nn.Sigmoid(),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.98))

    def mask(spectrum: Tensor) -> Tensor:
        return net(spectrum.abs().log1p()[:, None])[:, 0]

    @torch.no_grad()
    def gain() -> float:
        spectrum = stft(held_noisy)
        found = mask(spectrum) * spectrum
        sound = torch.istft(found, WINDOW, WINDOW // 4, window=torch.hann_window(WINDOW), length=LONG)
        return float((ratio(sound, held_clean) - ratio(held_noisy, held_clean)).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(clean), (batch,))
            spectrum = stft(noisy[rows])
            wanted = stft(target[rows])
            made = mask(spectrum) * spectrum
            terms = Terms(
                magnitude=(1.0, (made.abs() - wanted.abs()).square().mean()),
                complex=(0.5, (made - wanted).abs().square().mean()),
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=5.0)
            if step.every(30):
                with run.evaluation("held-out sounds"):
                    step.record({"Validation/si_sdr_gain": gain()})
    return gain()


PIXELS = 16


def clouds(seed: int, count: int, salt: int) -> Tensor:
    """Return films of drifting clouds, [n, 5, 16, 16], in 0 to 1."""
    draw = torch.Generator().manual_seed(67 * seed + salt)
    y, x = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    film = torch.zeros(count, 5, PIXELS, PIXELS)
    drift = 5 * torch.rand(count, 2, generator=draw) - 2.5
    for _ in range(3):
        place = PIXELS * torch.rand(count, 2, generator=draw)
        size = 1.5 + 1.5 * torch.rand(count, 1, 1, generator=draw)
        for t in range(5):
            now = (place + t * drift) % PIXELS
            dx = (x - now[:, 0, None, None] + PIXELS / 2) % PIXELS - PIXELS / 2
            dy = (y - now[:, 1, None, None] + PIXELS / 2) % PIXELS - PIXELS / 2
            film[:, t] += 0.5 * (-(dx.square() + dy.square()) / (2 * size.square())).exp()
    return film.clamp(0, 1)


def radar(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    layout: str = "permuted",
    target: str = "next",
    brighter: int = 0,
    total: int = 130,
) -> float:
    """Forecast the next picture of a radar from four; returns how much better than the last picture it is.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        layout: how the time of a training film becomes its first axis: "permuted", or "viewed".
        target: "next", or "last" (the last picture that the network sees).
        brighter: largest gray level that an augmentation adds to the bytes of a film.
        total: number of steps.
    """
    torch.manual_seed(seed)
    films = clouds(seed, 500, 1)
    held = clouds(seed, 100, 2)
    stored = films.permute(0, 2, 3, 1).contiguous()  # as files have it: height, width, time
    model = nn.Sequential(
        nn.Conv2d(4, 24, 5, padding=2, padding_mode="circular"),
        nn.GELU(),
        nn.Conv2d(24, 24, 5, padding=2, padding_mode="circular"),
        nn.GELU(),
        nn.Conv2d(24, 1, 3, padding=1, padding_mode="circular"),
    )
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 15))

    def batch() -> Tensor:
        some = stored[torch.randint(len(stored), (16,))]
        if brighter:
            light = torch.randint(brighter // 2, brighter, (16, 1, 1, 1), dtype=torch.uint8)
            some = ((255 * some).to(torch.uint8) + light).float() / 255
        if layout == "viewed":
            return some.reshape(16, 5, PIXELS, PIXELS)
        return some.permute(0, 3, 1, 2)

    @torch.no_grad()
    def skill() -> float:
        error = (model(held[:, :4])[:, 0] - held[:, 4]).square().mean()
        return 1 - float(error / (held[:, 3] - held[:, 4]).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt, warmup=warmup)
        run.resume()
        for step in run.steps(total):
            films = batch()
            made = model(films[:, :4])[:, 0]
            loss = functional.mse_loss(made, films[:, 4 if target == "next" else 3])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(mse=(1.0, loss)))
            step.update(opt, clip=1.0)
            warmup.step()
            if step.every(26):
                with run.evaluation("held-out films"):
                    step.record({"Test/skill": skill()})
    return skill()


KINDS = 10


def leaves(seed: int, count: int, salt: int, noise: float = 0.2) -> tuple[Tensor, Tensor]:
    """Return pictures [n, 1, 16, 16] of leaves with a shape and a grain, and their kinds."""
    draw = torch.Generator().manual_seed(79 * seed + salt)
    kind = torch.randint(KINDS, (count,), generator=draw)
    y, x = torch.meshgrid(torch.linspace(-1, 1, PIXELS), torch.linspace(-1, 1, PIXELS), indexing="ij")
    middle = 0.5 * torch.rand(count, 2, 1, 1, generator=draw) - 0.25
    dx = x - middle[:, 0]
    dy = y - middle[:, 1]
    lobes = (kind % 5 + 1)[:, None, None]
    turn = 0.4 * torch.rand(count, 1, 1, generator=draw)
    edge = 0.55 + 0.2 * (lobes * (torch.atan2(dy, dx) + turn)).cos()
    inside = torch.sigmoid(14 * (edge - (dx.square() + dy.square()).sqrt()))
    grain = (9 * torch.where(kind[:, None, None] < 5, dx, dy)).sin()
    picture = inside * (1 + 0.6 * grain) - 0.5 + noise * torch.randn(count, PIXELS, PIXELS, generator=draw)
    return picture[:, None], kind


class Patches(nn.Module):
    """A small vision transformer on patches of 4 by 4 pixels.

    Args:
        drop: dropout.
        listed: whether the blocks are in a plain list.
        depth: number of blocks.
    """

    def __init__(self, *, drop: float, listed: bool, depth: int = 2) -> None:
        super().__init__()
        blocks = [
            nn.TransformerEncoderLayer(32, 4, 64, dropout=drop, batch_first=True, norm_first=True, activation="gelu")
            for _ in range(depth)
        ]
        self.embed = nn.Linear(16, 32)
        self.place = nn.Parameter(0.05 * torch.randn(16, 32))
        # A plain list hides its modules from `parameters()`.
        self.blocks = blocks if listed else nn.ModuleList(blocks)
        self.drop = nn.Dropout(drop)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, KINDS))

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per kind."""
        parts = self.embed(functional.unfold(x, 4, stride=4).transpose(1, 2)) + self.place
        for block in self.blocks:
            parts = block(parts)
        return self.head(self.drop(parts.mean(1)))


def foliage(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    drop: float = 0.05,
    listed: bool = False,
    noisy: float = 0.0,
    smoothing: float = 0.0,
    total: int = 200,
) -> float:
    """Name leaves with a transformer; returns the accuracy of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        drop: dropout.
        listed: whether the blocks are in a plain list.
        noisy: share of the labels that are random.
        smoothing: smoothing of the labels.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = leaves(seed, 2000, 1)
    held_x, held_y = leaves(seed, 400, 2)
    wrong = torch.rand(len(y)) < noisy
    y = torch.where(wrong, torch.randint(KINDS, (len(y),)), y)
    vit = Patches(drop=drop, listed=listed)
    optimizer = torch.optim.AdamW(vit.parameters(), lr=lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=total)
    accuracy_of = Metric(name="Eval/top1", unit="", meaning="Share of right names.", better="higher", trivial=1 / KINDS)

    @torch.no_grad()
    def top1(pictures: Tensor, names: Tensor) -> float:
        vit.eval()
        return float((vit(pictures).argmax(1) == names).float().mean())

    with Run(folder, declared=Declared(metrics=TOOLKIT + Catalogue([accuracy_of])), outputs=NO_SINKS) as run:
        run.track(vit=vit, optimizer=optimizer, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (48,))
            loss = functional.cross_entropy(vit(x[rows]), y[rows], label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(cross_entropy=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            schedule.step()
            if step.every(40):
                with run.evaluation("held-out leaves"):
                    step.record({"Eval/top1": top1(held_x, held_y)})
    return top1(held_x, held_y)


def conv_net(momentum: float) -> nn.Sequential:
    """Return a convolutional network with batch norms."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16, momentum=momentum),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32, momentum=momentum),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, KINDS),
    )


def birds(
    folder: Path,
    seed: int,
    *,
    lr: float = 0.05,
    momentum: float = 0.1,
    average: str = "none",
    frozen: int = 0,
    first: int = 0,
    restarts: int = 0,
    few: int = 1500,
    noisy: float = 0.0,
    total: int = 140,
) -> float:
    """Name pictures with a network of norms, perhaps from one that was trained before; returns the accuracy.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        momentum: share of a batch in the statistics of the norms.
        average: average of the weights that is evaluated: "none", "with norms" or "without norms".
        frozen: number of layers at the beginning that do not learn.
        first: steps of a training on other pictures before this one.
        restarts: steps between warm restarts; 0 for a rate that falls once.
        few: number of pictures.
        noisy: share of the labels that are random.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = leaves(seed, few, 3, 0.35)
    x = 3 * x + 4  # gray levels are not centered, as cameras give them
    held_x, held_y = leaves(seed, 400, 4, 0.35)
    held_x = 3 * held_x + 4
    wrong = torch.rand(len(y)) < noisy
    y = torch.where(wrong, torch.randint(KINDS, (len(y),)), y)
    net = conv_net(momentum)
    if first:
        other_x, other_y = leaves(seed, 1500, 5, 0.7)
        other_x = 3 * other_x + 4
        sgd = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        for _ in range(first):
            rows = torch.randint(len(other_x), (48,))
            sgd.zero_grad()
            functional.cross_entropy(net(other_x[rows]), other_y[rows]).backward()
            sgd.step()
        net[-1] = nn.Linear(512, KINDS)
    for layer in list(net.children())[:frozen]:
        layer.requires_grad_(requires_grad=False)
    sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr, momentum=0.9, nesterov=True)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, total)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, restarts) if restarts else cosine
    mean = copy.deepcopy(net).requires_grad_(requires_grad=False)
    kept: dict[str, Any] = {} if average == "none" else {"mean": mean}
    judged = net if average == "none" else mean

    @torch.no_grad()
    def accuracy() -> float:
        judged.eval()
        found = float((judged(held_x).argmax(1) == held_y).float().mean())
        judged.train()
        return found

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, sgd=sgd, schedule=schedule, **kept)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (48,))
            logits = net(x[rows])
            loss = functional.cross_entropy(logits, y[rows])
            sgd.zero_grad(set_to_none=True)
            loss.backward()
            step.observe(Terms(loss=(1.0, loss)))
            step.update(sgd)
            schedule.step()
            if average != "none":
                with torch.no_grad():
                    pairs = list(zip(mean.parameters(), net.parameters(), strict=True))
                    if average == "with norms":
                        pairs += [
                            (old, new)
                            for old, new in zip(mean.buffers(), net.buffers(), strict=True)
                            if old.is_floating_point()
                        ]
                    for old, new in pairs:
                        old.lerp_(new, 0.05)
            if step.every(20):
                step.record({"train/accuracy": (logits.argmax(1) == y[rows]).float().mean()})
                with run.evaluation("held out"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()
