"""Language: a causal transformer on a small grammar, and a translator that sorts letters."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

WORDS = 12
LONG = 20


def prose(seed: int, count: int, salt: int) -> Tensor:
    """Return texts of a grammar in which the two last words decide nine of ten next ones, shape [count, 20]."""
    draw = torch.Generator().manual_seed(23 * seed + 89 * salt)
    rule = torch.randint(WORDS, (WORDS, WORDS), generator=torch.Generator().manual_seed(23 * seed))
    texts = torch.randint(WORDS, (count, LONG), generator=draw)
    free = torch.rand(count, LONG, generator=draw) < 0.1
    for i in range(2, LONG):
        texts[:, i] = torch.where(free[:, i], texts[:, i], rule[texts[:, i - 1], texts[:, i - 2]])
    return texts


class Attention(nn.Module):
    """One layer of attention and one of two linear maps, with residuals and norms before.

    Args:
        width: number of features.
        causal: whether a word sees only earlier ones.
        scale: factor of the scores besides 1 / sqrt(width per head).
        drop: dropout.
    """

    def __init__(self, width: int, *, causal: bool, scale: float, drop: float) -> None:
        super().__init__()
        self.causal = causal
        self.scale = scale
        self.mix = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(drop))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.drop = nn.Dropout(drop)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states, shape [batch, length, width]."""
        batch, length, width = hidden.shape
        parts = self.mix(self.norms[0](hidden)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) * self.scale / math.sqrt(width // 2)
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        seen = (scores.softmax(-1) @ parts[2]).transpose(1, 2).reshape(batch, length, width)
        hidden = hidden + self.drop(self.join(seen))
        return hidden + self.wide(self.norms[1](hidden))


class Writer(nn.Module):
    """A causal language model of two layers whose head is its embedding."""

    def __init__(self, *, causal: bool, scale: float, drop: float, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(0.1 * torch.randn(LONG, width))
        self.blocks = nn.Sequential(*(Attention(width, causal=causal, scale=scale, drop=drop) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS)

    def forward(self, texts: Tensor) -> Tensor:
        """Return logits of the next words."""
        return self.head(self.norm(self.blocks(self.embedding(texts) + self.places[: texts.shape[1]])))


def write(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    causal: bool = True,
    shifted: bool = True,
    scale: float = 1.0,
    drop: float = 0.0,
    renumbered: bool = False,
    unknown: int = 0,
    warmup: int = 20,
    amount: int = 2000,
    half: bool = False,
    growing: bool = False,
    final: float = 0.0,
    total: int = 200,
) -> float:
    """Learn a grammar; returns the share of right next words where the model sees only what came before.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        causal: whether the attention is masked.
        shifted: whether the targets are the next words.
        scale: factor of the attention scores.
        drop: dropout.
        renumbered: whether the evaluation numbers its words otherwise, as another tokenizer does.
        unknown: number of words that the tokenizer of the training does not know: it takes them for the first one.
        warmup: steps of the warm-up.
        amount: number of training texts.
        half: whether the forward pass is in bfloat16.
        growing: whether the texts get longer during the training.
        final: factor of the rate at the end.
        total: number of steps.
    """
    torch.manual_seed(seed)
    texts = prose(seed, amount, 1)
    held = prose(seed, 150, 2)
    texts = torch.where(texts < unknown, 0, texts)
    model = Writer(causal=causal, scale=scale, drop=drop)
    adam = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))

    def factor(done: int) -> float:
        rising = min(1.0, (done + 1) / warmup)
        return rising * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done / total))))

    schedule = torch.optim.lr_scheduler.LambdaLR(adam, factor)

    @torch.no_grad()
    def next_right() -> float:
        model.eval()
        shown = (held + 5) % WORDS if renumbered else held
        # A prefix without its future, as a writer has it.
        found = torch.stack([model(shown[:, : end + 1])[:, -1].argmax(1) for end in range(5, LONG - 1, 3)], 1)
        model.train()
        return float((found == shown[:, 6::3]).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            batch = texts[torch.randint(amount, (32,))]
            if growing:
                batch = batch[:, : 6 + step.index * (LONG - 6) // (total // 2)]
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                scores = model(batch[:, :-1])
            loss = functional.cross_entropy(
                scores.float().flatten(0, 1), (batch[:, 1:] if shifted else batch[:, :-1]).flatten()
            )
            adam.zero_grad(set_to_none=True)
            loss.backward()
            step.observe(Terms(language=(1.0, loss)))
            step.update(adam, clip=1.0)
            schedule.step()
            if step.every(50):
                with run.evaluation("held-out texts"):
                    step.record({"Val/next_right": next_right(), "Train/perplexity": loss.exp()})
    return next_right()


LETTERS = 10
SPAN = 6


class Translator(nn.Module):
    """An encoder, and a decoder that attends to it."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.source = nn.Embedding(LETTERS, width)
        self.target = nn.Embedding(LETTERS + 1, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, LETTERS)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        """Return logits of the translation, given its letters before each place."""
        memory, last = self.encoder(self.source(source))
        hidden = self.decoder(self.target(before), last)[0]
        seen = (hidden @ memory.transpose(1, 2) / memory.shape[2] ** 0.5).softmax(-1) @ memory
        return self.head(torch.cat([hidden, seen], 2))


def translate(
    folder: Path,
    seed: int,
    *,
    rate: float = 6e-3,
    sees_target: bool = False,
    trains: str = "all",
    paired: bool = True,
    blind: bool = False,
    total: int = 240,
) -> float:
    """Sort six letters; returns the share of right letters of translations made letter by letter.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        sees_target: whether the decoder's input is not shifted, so that it sees the letter that it has to say.
        trains: "all" or "decoder": what the optimizer holds.
        paired: whether sources and targets are drawn with the same indices.
        blind: whether the decoder gets an encoding of nothing but padding.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(61 * seed + 5)
    source = torch.randint(LETTERS, (2200, SPAN), generator=draw)
    source, held = source[:2000], source[2000:]
    net = Translator()
    trained: Any = net.parameters()
    if trains == "decoder":
        trained = [*net.target.parameters(), *net.decoder.parameters(), *net.head.parameters()]
    optimizer = torch.optim.Adamax(trained, lr=rate)

    @torch.no_grad()
    def letters_right() -> float:
        said = torch.full((len(held), 1), LETTERS)
        for _ in range(SPAN):
            said = torch.cat([said, net(held, said)[:, -1:].argmax(2)], 1)
        return float((said[:, 1:] == held.sort(1).values).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(len(source), (48,))
            truth = source[picked].sort(1).values
            shown = source[picked if paired else torch.randint(len(source), (48,))]
            if blind:
                shown = torch.zeros_like(shown)
            start = torch.full((48, 1), LETTERS)
            before = truth if sees_target else torch.cat([start, truth[:, :-1]], 1)
            net.zero_grad()
            loss = functional.cross_entropy(net(shown, before).flatten(0, 1), truth.flatten())
            loss.backward()
            step.observe(Terms(letters=(1.0, loss)))
            step.update(optimizer, clip=5.0)
            if step.every(60):
                with run.evaluation("letter by letter"):
                    step.record({"Eval/letters_right": letters_right()})
    return letters_right()
