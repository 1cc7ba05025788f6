"""Strangers' loops on sequences: ballads, turbines in the wind, and visas that a learned network is adapted to."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

WORDS = 24
"""Words of the ballads; 0 fills up the lines."""
LINE = 20
"""Words of the longest line."""


def lines_of(count: int, table: Tensor, draw: torch.Generator) -> Tensor:
    """Return lines of ballads, shape [count, LINE]: each word mostly follows from the two before it."""
    length = torch.randint(6, LINE + 1, (count,), generator=draw)
    words = torch.randint(1, WORDS, (count, LINE), generator=draw)
    for i in range(2, LINE):
        follows = table[words[:, i - 2] % 4, words[:, i - 1]]
        surprise = torch.rand(count, generator=draw) < 0.1
        words[:, i] = torch.where(surprise, words[:, i], follows)
    return torch.where(torch.arange(LINE) < length[:, None], words, 0)


class Bard(nn.Module):
    """A decoder of two layers.

    Attributes:
        causal: whether a word sees only those before it.
    """

    def __init__(self, *, causal: bool, tied: bool, drop: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 48)
        self.places = nn.Parameter(0.02 * torch.randn(LINE, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=drop, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, WORDS, bias=False)
        nn.init.normal_(self.words.weight, std=0.1)
        if tied:
            self.out.weight = self.words.weight
        self.causal = causal

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of the next word at each place."""
        size = words.shape[1]
        x = self.words(words) + self.places[:size]
        mask = torch.triu(torch.full((size, size), -math.inf), 1) if self.causal else None
        return self.out(self.norm(self.layers(x, mask)))


def ballads(
    folder: Path,
    seed: int,
    *,
    causal: bool = True,
    shifted: bool = True,
    tied: bool = False,
    drop: float = 0.0,
    warm_up: int = 30,
    cosine: bool = False,
    accumulate: int = 1,
    half: bool = False,
    growing: bool = False,
    lr: float = 4e-3,
    evaluated: int = 40,
    total: int = 260,
) -> float:
    """Learn to continue ballads; returns the accuracy of the next word in other ballads, told only what came before it.

    Args:
        folder: run folder.
        seed: seed.
        causal: whether a word sees only those before it.
        shifted: whether the target of a word is the next one.
        tied: whether the first and the last layer share their weights.
        drop: dropout.
        warm_up: steps in which the rate rises.
        cosine: whether the rate then falls to 0.
        accumulate: batches whose gradients make one update.
        half: whether to compute in bfloat16.
        growing: whether lines are cut short at first.
        lr: learning rate.
        evaluated: steps between evaluations; 0 for none.
        total: number of updates.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(557 * seed + 5)
    table = torch.randint(1, WORDS, (4, WORDS), generator=draw)
    lines = lines_of(1500, table, draw)
    held = lines_of(200, table, draw)
    bard = Bard(causal=causal, tied=tied, drop=drop)
    chosen = torch.optim.AdamW(bard.parameters(), lr=lr, weight_decay=0.01)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(total - warm_up, 1)
        return 0.5 * (1 + math.cos(math.pi * done)) if cosine else 1.0

    schedule = torch.optim.lr_scheduler.LambdaLR(chosen, rate)

    def next_word_loss(words: Tensor) -> Tensor:
        if shifted:
            logits, target = bard(words[:, :-1]), words[:, 1:]
        else:
            logits, target = bard(words), words
        return functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=0)

    @torch.no_grad()
    def held_loss() -> float:
        bard.eval()
        loss = float(next_word_loss(held))
        bard.train()
        return loss

    @torch.no_grad()
    def accuracy() -> float:
        bard.eval()
        right = []
        for size in range(2, LINE):
            known = held[held[:, size] > 0]
            right.append((bard(known[:, :size])[:, -1].argmax(1) == known[:, size]).float())
        bard.train()
        return float(torch.cat(right).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(bard=bard, chosen=chosen, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            size = max(5, min(LINE, 2 * LINE * (step.index + 1) // total)) if growing else LINE
            chosen.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(accumulate):
                words = lines[torch.randint(len(lines), (32 // accumulate,)), :size]
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    loss = next_word_loss(words)
                (loss / accumulate).backward()
                parts.append((1 / accumulate, Terms(next_word=(1.0, loss.detach()))))
            step.observe(Terms.merged(parts))
            step.update(chosen, clip=1.0)
            schedule.step()
            if evaluated and step.every(evaluated):
                with run.evaluation("other ballads"):
                    step.record({"val/loss": held_loss()})
    return accuracy()


def powers(count: int, draw: torch.Generator) -> Tensor:
    """Return the power of a turbine over time, in kW, shape [count]: gusts, a daily wave, and what remains."""
    time = torch.arange(count)
    noise = torch.randn(count, generator=draw)
    series = torch.zeros(count)
    value = 0.0
    slope = 0.0
    for i, push in enumerate(noise.tolist()):
        slope = 0.9 * slope - 0.12 * value + 0.25 * push
        value += slope
        series[i] = value
    daily = (2 * math.pi * time / 24).sin()
    return 600 + 120 * (series.tanh() * 1.2 + 0.8 * daily * (1 + 0.4 * series.tanh()))


class Forecast(nn.Module):
    """Foretells the next values from a window by a recurrent network."""

    def __init__(self, ahead: int, drop: float) -> None:
        super().__init__()
        self.memory = nn.GRU(1, 40, batch_first=True)
        self.drop = nn.Dropout(drop)
        self.out = nn.Linear(40, ahead)

    def forward(self, window: Tensor) -> Tensor:
        """Return the next values for windows of shape [count, size]."""
        states, _ = self.memory(window[..., None])
        return self.out(self.drop(states[:, -1]))


def turbines(
    folder: Path,
    seed: int,
    *,
    scaled: str = "by the training",
    window: str = "before",
    decay: float = 1.0,
    drop: float = 0.0,
    restarts: int = 0,
    target: str = "own",
    lr: float = 5e-3,
    evaluated: int = 50,
    hours: int = 2400,
    total: int = 300,
) -> float:
    """Foretell the power of a turbine for four hours; returns the explained share of its variance in a later season.

    Args:
        folder: run folder.
        seed: seed.
        scaled: whether values are scaled: "by the training", or "not".
        window: hours that the network is given: those "before" the ones that it foretells, or also the "first" of them.
        decay: factor of the learning rate at each step.
        drop: chance to drop a feature.
        restarts: steps after which a cosine of the learning rate begins anew; 0 for none.
        target: whether a window is given its "own" next hours, or those of "another" window.
        lr: learning rate.
        evaluated: steps between evaluations; 0 for none.
        hours: hours to learn from.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(563 * seed + 8)
    size, ahead = 24, 4
    past = powers(hours, draw)
    check = powers(500, draw)
    later = powers(900, draw)

    def scale(series: Tensor) -> Tensor:
        return series if scaled == "not" else (series - past.mean()) / past.std()

    def windows(series: Tensor) -> tuple[Tensor, Tensor]:
        cut = series.unfold(0, size + ahead, 1)
        given = cut[:, ahead:] if window == "first" else cut[:, :size]
        return given, cut[:, size:]

    x, y = windows(scale(past))
    check_x, check_y = windows(scale(check))
    model = Forecast(ahead, drop)
    adam = torch.optim.Adam(model.parameters(), lr=lr)
    if restarts:
        schedule: torch.optim.lr_scheduler.LRScheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            adam, restarts
        )
    else:
        schedule = torch.optim.lr_scheduler.ExponentialLR(adam, decay)

    def objective(batch: tuple[Tensor, Tensor]) -> Terms:
        return Terms(mse=(1.0, functional.mse_loss(model(batch[0]), batch[1])))

    @torch.no_grad()
    def explained() -> float:
        model.eval()
        cut = scale(later).unfold(0, size + ahead, 1)
        error = (model(cut[:, :size]) - cut[:, size:]).square().mean()
        model.train()
        return 1 - float(error / cut[:, size:].var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (48,))
            step.backward(objective, (x[rows], y[rows] if target == "own" else y[rows.roll(1)]))
            step.update(adam)
            schedule.step()
            if evaluated and step.every(evaluated):
                with run.evaluation("other weeks"):
                    model.eval()
                    step.record({"val/loss": objective((check_x, check_y))["mse"].value})
                    model.train()
    return explained()


class LowRank(nn.Module):
    """A layer that is held, and a change of it of low rank that learns.

    Attributes:
        held: the layer.
        down: first factor of the change.
        up: second factor.
    """

    def __init__(self, held: nn.Linear, rank: int) -> None:
        super().__init__()
        self.held = held
        self.down = nn.Parameter(torch.randn(rank, held.in_features) / held.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(held.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the changed layer."""
        return self.held(x) + 2.0 * (x @ self.down.T) @ self.up.T


def visas(
    folder: Path,
    seed: int,
    *,
    made: str = "after the layers",
    learns: str = "low rank",
    unfrozen: int = 0,
    drop: float = 0.0,
    lr: float = 1e-2,
    first: int = 300,
    total: int = 220,
) -> float:
    """Adapt a network that knows old forms of visas to new ones; returns the accuracy on other new forms.

    Args:
        folder: run folder.
        seed: seed.
        made: whether the optimizer is made "after the layers" of low rank are put in, or "before" them.
        learns: what learns: a change of "low rank" and the head, the "head", or "all".
        unfrozen: step from which all learns; 0 for none.
        drop: chance to drop a feature.
        lr: learning rate.
        first: steps of the training on old forms, which is not recorded.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(569 * seed + 1)
    hidden = torch.randn(30, 8, generator=draw) / 5
    old_way, new_way = torch.randn(2, 8, 6, generator=draw)
    turn = torch.linalg.qr(torch.randn(30, 30, generator=draw))[0]

    def forms(count: int, *, new: bool) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 30, generator=draw)
        kind = ((1.2 * x @ hidden).sin() @ (new_way if new else old_way)).argmax(1)
        mixed = 0.7 * x + 0.5 * x @ turn
        return mixed if new else x, kind

    net = nn.Sequential(
        nn.Linear(30, 160), nn.GELU(), nn.Linear(160, 160), nn.GELU(), nn.Dropout(drop), nn.Linear(160, 6)
    )
    x, y = forms(6000, new=False)
    early = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(first):
        rows = torch.randint(len(x), (128,))
        early.zero_grad()
        functional.cross_entropy(net(x[rows]), y[rows]).backward()
        early.step()
    x, y = forms(2500, new=True)
    held_x, held_y = forms(800, new=True)
    head = nn.Linear(160, 6)
    net[-1] = head
    body = list(net[:-1].parameters())
    for parameter in body:
        parameter.requires_grad_(learns == "all")
    earlier = list(net.parameters())
    if learns == "low rank":
        for i in (0, 2):
            layer = net[i]
            if isinstance(layer, nn.Linear):
                net[i] = LowRank(layer, 8)
    chosen = earlier if made == "before" else list(net.parameters())
    adam = torch.optim.AdamW([one for one in chosen if one.requires_grad or unfrozen], lr=lr)

    @torch.no_grad()
    def accuracy() -> float:
        net.eval()
        right = float((net(held_x).argmax(1) == held_y).float().mean())
        net.train()
        return right

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            if unfrozen and step.index == unfrozen:
                run.event("phase", name="all layers")
                for parameter in body:
                    parameter.requires_grad_(requires_grad=True)
            rows = torch.randint(len(x), (64,))
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(entropy=(1.0, loss)))
            step.update(adam)
            if step.every(44):
                with run.evaluation("other forms"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()
