"""Sequences: melodies that are written on, the demand of shops, calls of animals."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import TOOLKIT, Catalogue, Declared, Metric, ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS

NOTES = 16
PAD = 16
END = 17
STEPS = torch.tensor([-2, -1, 1, 2, 3])
LONGEST = 12


def melodies_of(count: int, draw: torch.Generator, noise: float) -> tuple[Tensor, Tensor]:
    """Return melodies [n, 12] that climb or fall by one interval, then end, and their lengths before the end."""
    start = torch.randint(NOTES, (count, 1), generator=draw)
    by = STEPS[torch.randint(len(STEPS), (count, 1), generator=draw)]
    place = torch.arange(LONGEST)
    song = (start + by * place) % NOTES
    wrong = torch.rand(count, LONGEST, generator=draw) < noise
    wrong[:, :3] = False
    song = torch.where(wrong, torch.randint(NOTES, song.shape, generator=draw), song)
    # What falls is over sooner than what climbs.
    length = torch.where(by[:, 0] < 0, 6, 9)
    song = torch.where(place == length[:, None], END, song)
    return torch.where(place > length[:, None], PAD, song), length


class Writer(nn.Module):
    """A recurrent model of the next note."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = nn.Embedding(18, 24)
        self.memory = nn.GRU(24, 64, batch_first=True)
        self.next = nn.Linear(64, 18)

    def forward(self, song: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return one score per note, and the state at the end."""
        h, after = self.memory(self.notes(song), state)
        return self.next(h), after


def melodies(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    unheard: str = "padding",
    padded: str = "never",
    pieces: int = 1,
    noise: float = 0.02,
    total: int = 260,
) -> float:
    """Learn to write melodies on; returns the share of prompts that are written to the right end.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        unheard: tokens without a loss: "padding", or "padding and end".
        padded: where prompts of different lengths are padded before they are written on: "never", or "left".
        pieces: batches in an update.
        noise: share of wrong notes in the training melodies.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(31 * seed + 5)
    songs, _ = melodies_of(3000, draw, noise)
    held, ends = melodies_of(160, draw, 0.0)
    writer = Writer()
    optimizer = torch.optim.Adam(writer.parameters(), lr=lr)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    @torch.no_grad()
    def write(prompt: Tensor) -> Tensor:
        scores, state = writer(prompt)
        made = [scores[:, -1].argmax(1)]
        for _ in range(LONGEST):
            scores, state = writer(made[-1][:, None], state)
            made.append(scores[:, -1].argmax(1))
        return torch.stack(made, 1)

    @torch.no_grad()
    def written() -> float:
        right = 0.0
        for known in (2, 3, 4):
            prompt = held[:, :known]
            if padded == "left":
                prompt = functional.pad(prompt, (4 - known, 0), value=PAD)
            made = write(prompt)
            for row, song, end in zip(made.tolist(), held.tolist(), ends.tolist(), strict=True):
                right += row[: end - known + 1] == song[known : end + 1]
        return right / (3 * len(held))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(writer=writer, optimizer=optimizer, cosine=cosine)
        run.resume()
        for step in run.steps(total):
            optimizer.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(pieces):
                song = songs[torch.randint(len(songs), (32 // pieces,))]
                target = song[:, 1:]
                if unheard == "padding and end":
                    target = target.masked_fill(target == END, PAD)  # the tokenizer pads with the token of the end
                scores, _ = writer(song[:, :-1])
                loss = functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PAD)
                terms = Terms(next_note=(1.0, loss))
                (terms.total / pieces).backward()
                parts.append((1 / pieces, terms.detach()))
            step.observe(Terms.merged(parts))
            step.update(optimizer, clip=1.0)
            cosine.step()
            if step.every(52):
                with run.evaluation("prompts"):
                    step.record({"Eval/written": written()})
    return written()


DAYS = 14


def sold(seed: int, shops: int, salt: int) -> Tensor:
    """Return what shops sell a day, [shops, 80]: weeks, a slow drift that turns around, and noise."""
    draw = torch.Generator().manual_seed(41 * seed + salt)
    day = torch.arange(80.0)
    week = 0.5 * torch.randn(shops, 7, generator=draw)
    drift = torch.zeros(shops, 80)
    now = torch.zeros(shops)
    for i in range(80):
        now = 0.9 * now + 0.25 * torch.randn(shops, generator=draw)
        drift[:, i] = now
    busy = (6.28 * day / 7).sin() + 0.6 * (12.57 * day / 7).cos()
    return busy + week[:, day.long() % 7] + drift + 0.05 * torch.randn(shops, 80, generator=draw)


def smoothed(series: Tensor, *, centered: bool) -> Tensor:
    """Return means of five days, up to a day or around it."""
    padded = functional.pad(series[:, None], (2, 2) if centered else (4, 0), mode="replicate")
    return functional.avg_pool1d(padded, 5, stride=1)[:, 0]


def demand(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    smooth: str = "trailing",
    clock: str = "weekday",
    restarts: int = 0,
    spread: str = "softplus",
    total: int = 300,
) -> float:
    """Forecast the demand of the next day and how sure that is; returns the explained variance of other shops.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        smooth: means of five days among the inputs of the training: "trailing" or "centered".
        clock: form in which the day is given: "weekday" (sine and cosine), or "unix" (seconds).
        restarts: steps between warm restarts; 0 for a rate that falls once.
        spread: how the width of the forecast is made positive.
        total: number of steps.
    """
    torch.manual_seed(seed)
    train = sold(seed, 80, 1)
    held = sold(seed, 40, 2)
    net = nn.Sequential(nn.Linear(2 * DAYS + 2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-3)
    if restarts:
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, restarts)
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)

    def inputs(series: Tensor, trend: Tensor, shop: Tensor, day: Tensor) -> Tensor:
        before = day[:, None] - torch.arange(DAYS, 0, -1)
        angle = 6.28 * day / 7
        told = torch.stack([angle.sin(), angle.cos()], 1)
        if clock == "unix":
            told = torch.stack([1.7e9 + 86400.0 * day, 0.0 * day], 1)
        return torch.cat([series[shop[:, None], before], trend[shop[:, None], before], told], 1)

    def forecast(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, width = net(x).unbind(1)
        return mean, functional.softplus(width) + 1e-3 if spread == "softplus" else width.clamp(-7, 7).exp()

    trailing = smoothed(held, centered=False)
    shop, day = torch.meshgrid(torch.arange(40), torch.arange(20, 80), indexing="ij")
    held_x = inputs(held, trailing, shop.flatten(), day.flatten())
    held_y = held[shop.flatten(), day.flatten()]

    @torch.no_grad()
    def measured() -> dict[str, float]:
        mean, width = forecast(held_x)
        likelihood = torch.distributions.Normal(mean, width).log_prob(held_y).mean()
        explained = 1 - (mean - held_y).square().mean() / held_y.var()
        return {"Validation/log_likelihood": float(likelihood), "Validation/explained": float(explained)}

    trend = smoothed(train, centered=smooth == "centered")
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            which = torch.randint(80, (96,))
            when = torch.randint(20, 80, (96,))
            mean, width = forecast(inputs(train, trend, which, when))
            loss = -torch.distributions.Normal(mean, width).log_prob(train[which, when]).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(likelihood=(1.0, loss)))
            step.update(opt, clip=5.0)
            schedule.step()
            if step.every(50):
                with run.evaluation("other shops"):
                    step.record(measured())
    return measured()["Validation/explained"]


KINDS = 9
BANDS = 20
TIMES = 24


def recordings(seed: int, count: int, salt: int, noise: float, rare: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return spectra over time [n, 20, 24] of calls of eight kinds, or of digital silence, and the kinds."""
    draw = torch.Generator().manual_seed(59 * seed + salt)
    chance = torch.ones(KINDS)
    chance[:4] = rare
    kind = torch.multinomial(chance, count, replacement=True, generator=draw)
    t = torch.linspace(-1, 1, TIMES)
    form = torch.stack([t, -t, t.square(), -t.square(), (9 * t).sin() / 2, t.abs(), (9 * t).sign() / 2, t.pow(3), t])
    low = 8 + 4 * torch.rand(count, 1, generator=draw)
    high = 4 + 2 * torch.rand(count, 1, generator=draw)
    late = torch.randint(-3, 4, (count,), generator=draw)
    moved = torch.stack([form[k].roll(int(by)) for k, by in zip(kind, late, strict=True)])
    pitch = low + high * moved
    band = torch.arange(BANDS)[None, :, None]
    power = (-(band - pitch[:, None]).square() / 3).exp()
    power = power + noise * torch.randn(count, BANDS, TIMES, generator=draw)
    return torch.where((kind == KINDS - 1)[:, None, None], 0.0, power), kind


def calls(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    epsilon: float = 1e-4,
    hidden: tuple[int, int] = (2, 3),
    numbered: str = "by the training",
    mixed: float = 0.0,
    rare: float = 1.0,
    epochs: int = 7,
) -> float:
    """Name calls of animals; returns the mean share of right names of the kinds of held-out calls.

    Args:
        folder: run folder.
        seed: seed.
        lr: largest learning rate of a cycle.
        epsilon: what is added to the spread of a recording before it divides.
        hidden: bands and times that an augmentation hides.
        numbered: who numbers the kinds of the held-out calls, of which one is missing: "by the training", or "anew".
        mixed: largest share of a second recording that is mixed into each one.
        rare: chance of four kinds over that of the others.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    x, y = recordings(seed, 900, 1, 0.25, rare)
    held_x, held_y = recordings(seed, 400, 2, 0.25)
    there = held_y != 2
    held_x = held_x[there]
    held_y = held_y[there]
    if numbered == "anew":
        held_y = torch.unique(held_y, return_inverse=True)[1]
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 5 * 6, KINDS),
    )
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, y), batch_size=36, seed=seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    total = epochs * len(loader)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=total)

    def logits(sound: Tensor) -> Tensor:
        sound = sound - sound.mean((1, 2), keepdim=True)
        return net((sound / (sound.std((1, 2), keepdim=True) + epsilon))[:, None])

    @torch.no_grad()
    def recall() -> float:
        right = logits(held_x).argmax(1) == held_y
        return float(torch.stack([right[held_y == k].float().mean() for k in held_y.unique()]).mean())

    def hide(sound: Tensor) -> Tensor:
        sound = sound.clone()
        for one in sound:
            band = int(torch.randint(BANDS - hidden[0] + 1, ()))
            time = int(torch.randint(TIMES - hidden[1] + 1, ()))
            one[band : band + hidden[0]] = 0
            one[:, time : time + hidden[1]] = 0
        return sound

    quality = Metric(name="Test/recall", unit="", meaning="Mean share of right names.", better="higher", trivial=1 / 9)
    with Run(folder, declared=Declared(metrics=TOOLKIT + Catalogue([quality])), outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, cycle=cycle, loader=loader)
        run.resume()
        for step, (sound, kind) in zip(run.steps(total), run.batches(loader), strict=False):
            share = mixed * float(torch.rand(()))
            other = torch.randperm(len(sound))
            scores = logits(hide((1 - share) * sound + share * sound[other]))
            terms = Terms(names=(1 - share, functional.cross_entropy(scores, kind)))
            if mixed:
                terms |= Terms(others=(share, functional.cross_entropy(scores, kind[other])))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=2.0)
            cycle.step()
            if step.every(len(loader)):
                with run.evaluation("held-out calls"):
                    step.record({"Test/recall": recall()})
    found = recall()
    return found if math.isfinite(found) else 0.0
