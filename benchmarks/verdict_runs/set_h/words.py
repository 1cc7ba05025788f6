"""Words and sounds: tags of words cut into pieces, a dialect of a known language, whales in stereo."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Saving, Terms
from verdict_runs.supervised import NO_SINKS

WORDS = 60
TAGS = 5


def sentences(seed: int, count: int, salt: int) -> list[tuple[list[int], list[int]]]:
    """Return sentences of words, and a tag for each word, which depends on the word and on the one before it."""
    world = torch.Generator().manual_seed(11 * seed)
    tag_of = torch.randint(TAGS, (WORDS, 3), generator=world)
    draw = torch.Generator().manual_seed(11 * seed + salt)
    made: list[tuple[list[int], list[int]]] = []
    for _ in range(count):
        length = int(torch.randint(6, 13, (1,), generator=draw))
        words = torch.randint(WORDS, (length,), generator=draw).tolist()
        tags = [int(tag_of[word, words[i - 1] // 20 if i else 0]) for i, word in enumerate(words)]
        made.append((words, tags))
    return made


def cut(words: list[int]) -> tuple[list[int], list[int]]:
    """Cut words into pieces from 1 on: rare words into two or three; return also the word that each piece is of."""
    pieces: list[int] = []
    owners: list[int] = []
    for i, word in enumerate(words):
        found = [word] if word < 35 else [35 + word % 5, 40 + word // 5] if word < 50 else [57, 58, word]
        pieces += [piece + 1 for piece in found]
        owners += [i] * len(found)
    return pieces, owners


def pieces(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    laid_on: str = "first pieces",
    wrong: float = 0.0,
    epochs: int = 5,
) -> float:
    """Tag words that are cut into pieces; returns the accuracy of tags of held-out words.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        laid_on: where the tags of a sentence are laid: on the "first pieces" of its words, or on the pieces "in turn".
        wrong: share of wrong tags in the training.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)

    def encode(made: list[tuple[list[int], list[int]]], most: int, how: str) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(len(made), most, dtype=torch.long)
        tags = torch.full((len(made), most), -100)
        for row, (words, labels) in enumerate(made):
            found, owners = cut(words)
            for place, piece in enumerate(found[:most]):
                ids[row, place] = piece
                if how == "in turn" and place < len(labels):
                    tags[row, place] = labels[place]
                elif how == "first pieces" and (place == 0 or owners[place] != owners[place - 1]):
                    tags[row, place] = labels[owners[place]]
        return ids, tags

    ids, tags = encode(sentences(seed, 1500, 1), 32, laid_on)
    held_ids, held_tags = encode(sentences(seed, 200, 2), 32, "first pieces")
    if wrong:
        other = torch.randint(TAGS, tags.shape)
        tags = torch.where((torch.rand(tags.shape) < wrong) & (tags >= 0), other, tags)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.piece = nn.Embedding(64, 32, padding_idx=0)
            self.reads = nn.GRU(32, 40, batch_first=True, bidirectional=True)
            self.drop = nn.Dropout(0.1)
            self.tag = nn.Linear(80, TAGS)

        def forward(self, found: Tensor) -> Tensor:
            return self.tag(self.drop(self.reads(self.drop(self.piece(found)))[0]))

    tagger = Tagger()
    optim = torch.optim.AdamW(tagger.parameters(), lr=lr, weight_decay=0.01)
    loader = ResumableLoader(torch.utils.data.TensorDataset(ids, tags), batch_size=32, seed=seed, drop_last=True)
    total = epochs * len(loader)
    linear = torch.optim.lr_scheduler.LambdaLR(optim, lambda i: min(1.0, (i + 1) / 20) * max(0.0, 1 - i / total))

    @torch.no_grad()
    def accuracy() -> float:
        tagger.eval()
        known = held_tags >= 0
        share = (tagger(held_ids).argmax(2) == held_tags)[known].float().mean()
        tagger.train()
        return float(share)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(tagger=tagger, optim=optim, linear=linear, loader=loader)
        run.resume()
        for _ in range(loader.epoch, epochs):
            for found, wanted in loader:
                step = run.begin_step(total=total)
                loss = functional.cross_entropy(tagger(found).flatten(0, 1), wanted.flatten(), ignore_index=-100)
                optim.zero_grad()
                loss.backward()
                step.observe(Terms(tags=(1.0, loss)))
                step.update(optim, clip=1.0)
                linear.step()
                if (run.step_index + 1) % len(loader) == 0:
                    with run.evaluation("held-out sentences"):
                        step.record({"eval/token_accuracy": accuracy()})
                run.end_step()
    return accuracy()


class LowRank(nn.Module):
    """A frozen layer with a small update beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer and its update give."""
        return self.layer(x) + 2 * x @ self.down.T @ self.up.T


def dialect(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    head: str = "classifier",
    rank: int = 0,
    rows: int = 500,
    total: int = 240,
) -> float:
    """Tune a model of a language for a dialect; returns the accuracy on held-out texts.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate of the new head.
        head: part of the names by which the parameters of the new head are recognized; all others get a small rate.
        rank: rank of the updates of frozen layers; 0 to tune them as they are.
        rows: number of training texts.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(83 * seed + 5)
    topic = torch.randn(9, 90, generator=draw)

    def texts(count: int, kinds: int, shift: float) -> tuple[Tensor, Tensor]:
        y = torch.randint(kinds, (count,), generator=draw)
        often = (1.1 * topic[y] + shift * topic[(y + 4) % 9]).softmax(1)
        return torch.multinomial(often, 25, replacement=True, generator=draw), y

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(90, 32)
            self.encoder = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
            self.classifier = nn.Linear(64, 9)

        def forward(self, words: Tensor) -> Tensor:
            return self.classifier(self.encoder(self.embed(words)).mean(1))

    reader = Reader()
    x, y = texts(3000, 9, 0.0)
    before = torch.optim.Adam(reader.parameters(), lr=3e-3)
    for _ in range(120):
        rows_now = torch.randint(len(x), (64,))
        before.zero_grad()
        functional.cross_entropy(reader(x[rows_now]), y[rows_now]).backward()
        before.step()

    x, y = texts(rows, 6, 0.5)
    held, held_y = texts(600, 6, 0.5)
    reader.classifier = nn.Linear(64, 6)
    if rank:
        reader.embed.requires_grad_(requires_grad=False)
        for i in (0, 2):
            reader.encoder[i] = LowRank(cast("nn.Linear", reader.encoder[i]), rank)
    new = [p for name, p in reader.named_parameters() if p.requires_grad and (head in name or rank)]
    old = [p for name, p in reader.named_parameters() if p.requires_grad and not (head in name or rank)]
    groups: list[dict[str, Any]] = [{"params": new, "lr": lr}, {"params": old, "lr": 1e-5}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.01)

    @torch.no_grad()
    def accuracy() -> float:
        return float((reader(held).argmax(1) == held_y).float().mean())

    def objective(batch: tuple[Tensor, Tensor]) -> Terms:
        words, kind = batch
        return Terms(topic=(1.0, functional.cross_entropy(reader(words), kind, label_smoothing=0.05)))

    with Run(folder, outputs=NO_SINKS, saving=Saving(every=100)) as run:
        run.track(reader=reader, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(len(x), (32,))
            step.backward(objective, (x[picked], y[picked]))
            step.update(optimizer, clip=1.0)
            if step.every(30):
                with run.evaluation("dev"):
                    step.record({"dev/accuracy": accuracy()})
    return accuracy()


class Rounded(torch.autograd.Function):
    """Round weights to a few levels, with the slope of the identity."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, bits: int) -> Tensor:  # noqa: ARG004  the signature of torch
        """Return rounded weights."""
        step = weights.abs().max() / (2 ** (bits - 1) - 1)
        return (weights / step).round() * step

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004  the signature of torch
        """Pass the gradient on."""
        return grads[0], None


def whales(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    repeated: str = "each twice",
    bits: int = 0,
    total: int = 220,
) -> float:
    """Name whales in recordings of two channels, each of which is a sample; returns the accuracy on held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        repeated: how labels are repeated for the channels: "each twice", or the whole list "in turn".
        bits: bits to which the weights are rounded in training; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(47 * seed + 9)

    def recordings(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(5, (count,), generator=draw)
        t = torch.linspace(0, 1, 512)
        low = 18 + 9 * kind + 1.5 * torch.randn(count, generator=draw)
        sweep = torch.tensor([14.0, -8.0, 4.0, -14.0, 8.0])[kind]
        start = 6.3 * torch.rand(count, 2, 1, generator=draw)
        loud = 0.4 + torch.rand(count, 2, 1, generator=draw)
        call = (6.283 * (low[:, None, None] * t + sweep[:, None, None] * t**2) + start).sin()
        return loud * call + 1.2 * torch.randn(count, 2, 512, generator=draw), kind

    sound, kind = recordings(500)
    held, held_kind = recordings(250)
    window = torch.hann_window(64)

    def mel(waves: Tensor) -> Tensor:
        spectrum = torch.stft(waves.flatten(0, 1), 64, 32, window=window, return_complex=True).abs()
        return (spectrum + 1e-3).log()[:, None]

    inputs = mel(sound)
    labels = kind.repeat_interleave(2) if repeated == "each twice" else kind.repeat(2)
    held_inputs = mel(held)
    weights = nn.ParameterList(
        [
            nn.Parameter(torch.randn(12, 1, 5, 3) / 15**0.5),
            nn.Parameter(torch.randn(24, 12, 3, 3) / 108**0.5),
            nn.Parameter(torch.randn(5, 24 * 8) / 192**0.5),
        ]
    )
    norms = nn.ModuleList([nn.BatchNorm2d(12), nn.BatchNorm2d(24)])
    opt = torch.optim.NAdam([*weights, *norms.parameters()], lr=lr)

    def scores(x: Tensor) -> Tensor:
        kept = [Rounded.apply(w, bits) if bits else w for w in weights]
        x = functional.max_pool2d(norms[0](functional.conv2d(x, kept[0], padding=(2, 1))).relu(), 2)
        x = functional.max_pool2d(norms[1](functional.conv2d(x, kept[1], padding=1)).relu(), (2, 8))
        return x.flatten(1) @ kept[2].T

    @torch.no_grad()
    def accuracy() -> float:
        norms.eval()
        both = scores(held_inputs).reshape(-1, 2, 5).softmax(2).mean(1)
        norms.train()
        return float((both.argmax(1) == held_kind).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(weights=weights, norms=norms, opt=opt)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(inputs), (40,))
            found = scores(inputs[rows])
            terms = Terms(whale=(1.0, functional.cross_entropy(found, labels[rows])))
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            step.record({"batch/accuracy": float((found.argmax(1) == labels[rows]).float().mean())})
            if step.every(55):
                with run.evaluation("held-out recordings"):
                    step.record({"valid/accuracy": accuracy()})
    return accuracy()
