"""Sequences: a transformer that reverses words, a tagger of padded sentences, a forecast of seasons."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS

LETTERS = 14
LENGTH = 7


class Reverser(nn.Module):
    """A transformer without a causal mask.

    Args:
        positions: whether it knows the places of the letters.
        dropout: share of activations that training drops.
        cut: whether the head sees a detached encoding.
    """

    def __init__(self, *, positions: bool, dropout: float, cut: bool = False, width: int = 48) -> None:
        super().__init__()
        self.cut = cut
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) if positions else torch.zeros(1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=dropout, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits, shape [batch, length, letters]."""
        hidden = self.body(self.letters(words) + self.places)
        return self.head(hidden.detach() if self.cut else hidden)


def words(seed: int, count: int) -> Tensor:
    """Return random words."""
    return torch.randint(LETTERS, (count, LENGTH), generator=torch.Generator().manual_seed(9000 + seed))


def reversal(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    positions: bool = True,
    shift: int = 0,
    dropout: float = 0.0,
    stays_in_eval: bool = False,
    renewed: bool = False,
    cut: bool = False,
    tracks_optimizer: bool = True,
    stop: int = 0,
    watched: str = "accuracy",
    total: int = 260,
) -> float:
    """Reverse words of seven letters.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        positions: whether the model knows places.
        shift: number of places by which the training targets are rolled.
        dropout: dropout.
        stays_in_eval: whether the evaluation forgets ``train()``.
        renewed: whether the layers are made anew after the optimizer.
        cut: whether the head sees a detached encoding.
        tracks_optimizer: whether checkpoints hold the optimizer.
        stop: step at which the run stops and is continued by a second process; 0 for one part.
        watched: figure: "accuracy", "mode" (training mode at the end) or "moments" (kept over the stop).
        total: number of steps.
    """
    data = words(seed, 3000)
    held = words(seed + 500, 300)
    kept = 1.0
    model = None
    for first, last in ((0, stop), (stop, total)) if stop else ((0, total),):
        torch.manual_seed(seed + first)
        model = Reverser(positions=positions, dropout=dropout, cut=cut)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
        if renewed:
            model.body = Reverser(positions=positions, dropout=dropout).body
        loader = ResumableLoader(TensorDataset(data, data.flip(1).roll(shift, 1)), batch_size=64, seed=seed)
        items = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
        if not tracks_optimizer:
            del items["optimizer"]
        with Run(folder, outputs=NO_SINKS) as run:
            run.track(**items)
            run.resume()
            if first:
                kept = float(bool(optimizer.state_dict()["state"]))
            for step, (x, y) in zip(run.steps(last), run.batches(loader), strict=False):
                loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                terms = Terms(cross_entropy=(1.0, loss))
                step.observe(terms)
                step.update(optimizer, clip=1.0)
                schedule.step()
                if step.every(52):
                    model.eval()
                    with torch.no_grad():
                        right = (model(held).argmax(-1) == held.flip(1)).float().mean()
                    step.record({"Eval/letters_right": right})
                    if not stays_in_eval:
                        model.train()
    assert model is not None  # noqa: S101  there is at least one part
    if watched == "moments":
        return kept
    if watched == "mode":
        return float(model.training)
    model.eval()
    with torch.no_grad():
        return float((model(held).argmax(-1) == held.flip(1)).float().mean())


PLACES = 40
TAGS = 6


def sentences(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sentences of two to five words in forty places, their tags, and which places are words."""
    draw = torch.Generator().manual_seed(31 * seed + salt)
    lengths = torch.randint(2, 6, (count, 1), generator=draw)
    tokens = torch.randint(1, 30, (count, PLACES), generator=draw)
    real = torch.arange(PLACES) < lengths
    table = torch.randint(1, TAGS, (31,), generator=torch.Generator().manual_seed(31 * seed))
    before = torch.cat([torch.zeros(count, 1, dtype=torch.long), tokens[:, :-1]], dim=1)
    tags = 1 + (table[tokens] + table[before]) % (TAGS - 1)
    return tokens * real, tags * real, real


def tagging(folder: Path, seed: int, *, padding_counts: bool = False, rate: float = 0.5) -> float:
    """Tag words of padded sentences with a bidirectional GRU and SGD; returns the share of right tags of words."""
    torch.manual_seed(seed)
    tokens, tags, _ = sentences(seed, 800, 1)
    held_tokens, held_tags, held_real = sentences(seed, 200, 2)
    embedding = nn.Embedding(31, 24)
    rnn = nn.GRU(24, 32, batch_first=True, bidirectional=True)
    head = nn.Linear(64, TAGS)
    net = nn.ModuleList([embedding, rnn, head])
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    criterion = nn.CrossEntropyLoss(ignore_index=-100 if padding_counts else 0)

    def scores(x: Tensor) -> Tensor:
        return head(rnn(embedding(x))[0])

    def right() -> float:
        found = scores(held_tokens)[..., 1:].argmax(-1) + 1
        return float((found == held_tags)[held_real].float().mean())

    run = Run(folder, outputs=NO_SINKS).start()
    run.track(net=net, sgd=sgd)
    run.resume()
    order = torch.Generator().manual_seed(seed)
    for _epoch in range(7):
        for picked in torch.randperm(800, generator=order).split(32):
            step = run.begin_step(175)
            sgd.zero_grad()
            loss = criterion(scores(tokens[picked]).transpose(1, 2), tags[picked])
            loss.backward()
            step.observe(Terms(tag=(1.0, loss)))
            step.update(sgd, clip=2.0)
            if step.every(25):
                with run.evaluation("sentences"):
                    step.record({"Eval/tags_right": right()})
            run.end_step()
    run.finish()
    with torch.no_grad():
        return right()


def seasons(seed: int, salt: int, count: int) -> tuple[Tensor, Tensor]:
    """Return series of 24 values, shape [count, 24, 1], in units of thousands, and their next value."""
    draw = torch.Generator().manual_seed(7 * seed + salt)
    phase = 6.28 * torch.rand(count, 1, generator=draw)
    pace = 0.35 + 0.25 * torch.rand(count, 1, generator=draw)
    level = 4000 + 200 * torch.randn(count, 1, generator=draw)
    time = torch.arange(25)
    series = level + 900 * (pace * time + phase).sin() + 40 * torch.randn(count, 25, generator=draw)
    return series[:, :24, None], series[:, 24:]


class Forecast(nn.Module):
    """A recurrent encoder and a head.

    Args:
        kind: "gru", or "rnn" for a plain network with ReLU and recurrent weights ``gain``.
        gain: recurrent weights of the plain network.
    """

    def __init__(self, *, kind: str, gain: float) -> None:
        super().__init__()
        self.encoder: nn.Module
        if kind == "gru":
            self.encoder = nn.GRU(1, 32, batch_first=True)
        else:
            self.encoder = nn.RNN(1, 32, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.encoder.get_parameter("weight_hh_l0"))
            with torch.no_grad():
                self.encoder.get_parameter("weight_hh_l0").mul_(gain)
        self.head: nn.Module = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, series: Tensor) -> Tensor:
        """Return the next value, shape [batch, 1]."""
        hidden = self.encoder(series)[1][0]
        return self.head(hidden)


def forecast(
    folder: Path,
    seed: int,
    *,
    rate: float = 5e-3,
    kind: str = "gru",
    gain: float = 1.0,
    clip: float | None = 1.0,
    scaled_evaluation: bool = True,
    total: int = 260,
) -> float:
    """Forecast a season in a ``while`` loop; returns the explained share of the variance.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        kind: kind of the recurrent network.
        gain: recurrent weights of a plain one.
        clip: limit of the gradient norm.
        scaled_evaluation: whether the evaluation scales its input as the training does.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = seasons(seed, 1, 1200)
    held_x, held_y = seasons(seed, 2, 300)
    center = float(x.mean())
    spread = float(x.std())
    model = Forecast(kind=kind, gain=gain)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=rate)
    plateau = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.993)

    @torch.no_grad()
    def explained() -> float:
        series = (held_x - center) / spread if scaled_evaluation else held_x
        made = model(series) * spread + center
        return 1 - float((made - held_y).square().mean() / held_y.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, schedule=plateau)
        run.resume()
        done = 0
        while done < total:
            step = run.begin_step(total)
            picked = torch.randint(len(x), (48,))
            loss = functional.smooth_l1_loss(model((x[picked] - center) / spread), (y[picked] - center) / spread)
            model.zero_grad()
            loss.backward()
            step.observe(Terms(huber=(1.0, loss)))
            step.update(optimizer, clip=clip)
            plateau.step()
            done += 1
            if done % 65 == 0:
                with run.evaluation("held out"):
                    step.record({"Validation/explained": explained()})
            run.end_step()
    return explained() if math.isfinite(explained()) else -1e9
