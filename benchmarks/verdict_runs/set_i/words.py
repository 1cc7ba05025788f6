"""Strangers' loops on sequences: an engine, reviews, names of cities, and fables."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS


def engine(folder: Path, seed: int, *, clip: str = "after backward", total: int = 220) -> float:
    """Tell from a record of an engine how many of its knocks came from the left; returns the negative mean error.

    Args:
        folder: run folder.
        seed: seed.
        clip: when gradients are clipped: "after backward" or "before backward".
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(107 * seed + 3)

    def records(count: int) -> tuple[Tensor, Tensor]:
        side = torch.randint(0, 2, (count, 30), generator=draw)
        knock = (torch.rand(count, 30, generator=draw) < 0.3).float()
        heard = torch.stack([knock, (2.0 * side - 1) * knock], -1)
        heard = heard + 0.05 * torch.randn(count, 30, 2, generator=draw)
        return heard, ((side * knock).sum(1, keepdim=True) - 4.5)

    x, y = records(600)
    held, held_y = records(200)
    rnn = nn.RNN(2, 32, nonlinearity="relu", batch_first=True)
    out = nn.Linear(32, 1)
    with torch.no_grad():
        rnn.all_weights[0][1].copy_(torch.eye(32) + 0.03 * torch.randn(32, 32))
    parameters = [*rnn.parameters(), *out.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    @torch.no_grad()
    def off() -> float:
        return float((out(rnn(held)[0][:, -1]) - held_y).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(rnn=rnn, out=out, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            pick = torch.randint(len(x), (32,))
            optimizer.zero_grad()
            loss = functional.mse_loss(out(rnn(x[pick])[0][:, -1]), y[pick])
            if clip == "before backward":
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            loss.backward()
            if clip == "after backward":
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            step.observe(Terms(mse=(1.0, loss)))
            step.update(optimizer)
            if step.every(55):
                with run.evaluation("other engines"):
                    step.record({"knocks_off": off()})
    return -off()


WORDS = 40
"""Size of the vocabulary of the reviews; 0 is padding."""


def opinions(seed: int, count: int, salt: int) -> tuple[list[Tensor], Tensor]:
    """Return reviews of 8 to 30 words, and whether they recommend: what counts is said in the last third."""
    draw = torch.Generator().manual_seed(109 * seed + salt)
    labels = torch.randint(0, 2, (count,), generator=draw)
    texts: list[Tensor] = []
    for label in labels.tolist():
        length = int(torch.randint(8, 31, (1,), generator=draw))
        text = torch.randint(11, WORDS, (length,), generator=draw)
        for _ in range(3):
            place = int(torch.randint(length - max(length // 3, 3), length, (1,), generator=draw))
            text[place] = int(torch.randint(1, 6, (1,), generator=draw)) + 5 * label
        texts.append(text)
    return texts, labels


def reviews(
    folder: Path,
    seed: int,
    *,
    longest: int = 30,
    table: int = WORDS,
    held_table: bool = False,
    by_length: bool = False,
    total: int = 260,
) -> float:
    """Tell whether a review recommends; returns the accuracy on other reviews.

    Args:
        folder: run folder.
        seed: seed.
        longest: number of words after which a review is cut.
        table: rows of the table of words.
        held_table: whether the table of words keeps its random values.
        by_length: whether batches hold reviews of similar length.
        total: number of steps.
    """
    torch.manual_seed(seed)
    texts, labels = opinions(seed, 500, 1)
    others, other_labels = opinions(seed, 200, 2)

    def padded(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        cut = [text[:longest] for text in batch]
        lengths = torch.tensor([len(text) for text in cut])
        return nn.utils.rnn.pad_sequence(cut, batch_first=True), lengths

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(table, 16, padding_idx=0)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.verdict = nn.Linear(24, 2)

        def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
            states, _ = self.gru(self.words(ids))
            return self.verdict(states[torch.arange(len(ids)), lengths - 1])

    reader = Reader()
    reader.words.requires_grad_(not held_table)
    adam = torch.optim.Adam([p for p in reader.parameters() if p.requires_grad], lr=5e-3)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))

    @torch.no_grad()
    def accuracy() -> float:
        # Each review by itself, as it arrives.
        right = 0
        for text, label in zip(others, other_labels.tolist(), strict=True):
            ids = torch.zeros(1, 30, dtype=torch.long)
            ids[0, : min(len(text), longest)] = text[:longest]
            right += int(reader(ids, torch.tensor([min(len(text), longest)])).argmax()) == label
        return right / len(others)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(reader=reader, adam=adam)
        run.resume()
        for step in run.steps(total):
            if by_length:
                start = int(torch.randint(len(texts) - 24, (1,)))
                rows = order[start : start + 24]
            else:
                rows = torch.randint(len(texts), (24,)).tolist()
            loss = functional.cross_entropy(reader(*padded([texts[i] for i in rows])), labels[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(loss=(1.0, loss)), sample=[f"review {i}" for i in rows])
            step.update(adam, clip=5.0)
            if step.every(130):
                with run.evaluation("new reviews"):
                    step.record({"accuracy": accuracy()})
    return accuracy()


def cities(folder: Path, seed: int, *, ignored: int = -100, rare: float = 1.0, epochs: int = 10) -> float:
    """Tag the names of persons (1) and cities (2) among other words (0); returns the mean recall of the three.

    Args:
        folder: run folder.
        seed: seed.
        ignored: label that the loss leaves out; padded words have the label -100.
        rare: chance that a sentence with a name stays in the training.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(113 * seed + 2)

    def sentences(count: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(20, 60, (count, 12), generator=draw)
        tags = torch.zeros(count, 12, dtype=torch.long)
        for cue, kind in ((2, 1), (3, 2)):
            place = torch.randint(0, 11, (count,), generator=draw)
            some = torch.rand(count, generator=draw) < 0.5
            rows = torch.arange(count)[some]
            words[rows, place[some]] = cue
            words[rows, place[some] + 1] = torch.randint(60, 75, (len(rows),), generator=draw)
            tags[rows, place[some] + 1] = kind
        # A name without its cue before it belongs to the second kind that was written over the first.
        before = torch.cat([torch.zeros(count, 1, dtype=torch.long), words[:, :-1]], 1)
        tags = torch.where((words >= 60) & (before == 2), 1, torch.where((words >= 60) & (before == 3), 2, 0))
        lengths = torch.randint(6, 13, (count, 1), generator=draw)
        beyond = torch.arange(12) >= lengths
        return words.masked_fill(beyond, 0), tags.masked_fill(beyond, -100)

    x, y = sentences(700)
    keep = (y <= 0).all(1).logical_not() & (torch.rand(len(x), generator=draw) < rare) | (y <= 0).all(1)
    x, y = x[keep], y[keep]
    held_x, held_y = sentences(200)
    if ignored != -100:
        y = torch.where(y == -100, ignored, y)
    table = nn.Embedding(75, 16)
    tagger = nn.LSTM(16, 24, bidirectional=True, batch_first=True)
    head = nn.Linear(48, 3)
    everything = nn.ModuleList([table, tagger, head])
    optimizer = torch.optim.NAdam(everything.parameters(), lr=4e-3)
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, y), batch_size=20, seed=seed)

    @torch.no_grad()
    def score() -> float:
        found = head(tagger(table(held_x))[0]).argmax(-1)
        return float(torch.stack([(found == kind)[held_y == kind].float().mean() for kind in range(3)]).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(everything=everything, optimizer=optimizer, loader=loader)
        run.resume()
        for epoch in range(loader.epoch, epochs):
            for words, tags in loader:
                step = run.begin_step(total=epochs * len(loader))
                logits = head(tagger(table(words))[0])
                loss = functional.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=ignored)
                optimizer.zero_grad()
                loss.backward()
                step.observe(Terms(tags=(1.0, loss)))
                step.update(optimizer)
                run.end_step()
            if epoch % 2:
                with run.evaluation("dev"):
                    run.record({"dev/score": score()})
    return score()


class Block(nn.Module):
    """Attention and a feed-forward network, with adapters of low rank behind both."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.forth = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next states."""
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, attn_mask=later, need_weights=False)[0]
        return x + self.forth(self.norms[1](x)) + self.up(self.down(x))


class Teller(nn.Module):
    """A small language model."""

    def __init__(self, rank: int, *, saved: str) -> None:
        super().__init__()
        self.letters = nn.Embedding(16, 32)
        self.places = nn.Parameter(0.1 * torch.randn(24, 32))
        self.blocks = nn.ModuleList([Block(32, rank), Block(32, rank)])
        self.out = nn.Linear(32, 16)
        self.saved = saved

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next letters."""
        x = self.letters(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            if self.saved == "no" or not self.training:
                x = block(x)
            elif self.saved == "reentrant":
                x = checkpoint(block, x, use_reentrant=True)
            else:
                x = checkpoint(block, x, use_reentrant=False)
        return self.out(x)


def tales(seed: int, count: int, shift: int) -> Tensor:
    """Return texts of 16 letters; each letter follows from the two before it, with another rule for other shifts."""
    draw = torch.Generator().manual_seed(127 * seed + shift)
    text = torch.zeros(count, 16, dtype=torch.long)
    text[:, :2] = torch.randint(16, (count, 2), generator=draw)
    for i in range(2, 16):
        text[:, i] = (text[:, i - 1] + (1 + shift) * text[:, i - 2] + shift).remainder(16)
    return text


def fables(
    folder: Path,
    seed: int,
    *,
    saved: str = "no",
    trained: str = "adapters",
    lr: float = 1e-2,
    warm_up: float = 0.1,
    first: int = 220,
    total: int = 160,
) -> float:
    """Adapt a small language model, trained here first, to other texts; returns its accuracy on letters of them.

    Args:
        folder: run folder.
        seed: seed.
        saved: what of the forward pass is computed again: "no", "yes", or "reentrant" of the older kind.
        trained: "adapters" or "all".
        lr: learning rate.
        warm_up: share of the steps over which the rate rises.
        first: steps of the first training, which is not recorded.
        total: number of steps.
    """
    torch.manual_seed(seed)
    teller = Teller(8, saved="no")

    def loss_of(texts: Tensor) -> Tensor:
        return functional.cross_entropy(teller(texts[:, :-1]).flatten(0, 1)[:], texts[:, 1:].flatten())

    old = tales(seed, 2000, 0)
    before = torch.optim.Adam(teller.parameters(), lr=3e-3)
    for _ in range(first):
        before.zero_grad()
        loss_of(old[torch.randint(len(old), (48,))]).backward()
        before.step()
    teller.saved = saved
    if trained == "adapters":
        for name, parameter in teller.named_parameters():
            parameter.requires_grad_("down" in name or "up" in name or name == "out.bias")
    texts = tales(seed, 1500, 1)
    held = tales(seed + 500, 200, 1)
    optimizer = torch.optim.AdamW([p for p in teller.parameters() if p.requires_grad], lr=lr)

    def factor(k: int) -> float:
        rise = max(int(warm_up * total), 1)
        return min((k + 1) / rise, (total - k) / max(total - rise, 1))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    @torch.no_grad()
    def accuracy() -> float:
        teller.eval()
        found = teller(held[:, :-1]).argmax(-1)
        teller.train()
        return float((found == held[:, 1:])[:, 2:].float().mean())

    def batches() -> Iterator[Tensor]:
        while True:
            yield from texts[torch.randperm(len(texts))].split(48)

    arriving = batches()
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(teller=teller, optimizer=optimizer, scheduler=scheduler)
        run.resume()
        for step in run.steps(total):
            loss = loss_of(next(arriving))
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(next_letter=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            scheduler.step()
            if step.every(40):
                with run.evaluation("held-out texts"):
                    step.record({"eval/accuracy": accuracy()})
    return accuracy()
