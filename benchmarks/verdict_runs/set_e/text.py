"""Text: a causal transformer that enciphers, and one that fills gaps."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

LETTERS = 10
EQUALS = 10
PAD = 11
PROMPT = 5
LONG = 2 * PROMPT + 1


def ciphers(count: int, longest: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return "letters = enciphered letters", padded to 11, and where the answer is."""
    letters = torch.randint(LETTERS, (count, PROMPT), generator=draw)
    lengths = torch.randint(3, longest + 1, (count,), generator=draw)
    rows = torch.full((count, LONG), PAD)
    answers = torch.zeros(count, LONG, dtype=torch.bool)
    for length in range(3, longest + 1):
        some = lengths == length
        said = letters[some, :length]
        rows[some, : 2 * length + 1] = torch.cat(
            [said, torch.full((len(said), 1), EQUALS), (7 * said + 3) % LETTERS], 1
        )
        answers[some, length + 1 : 2 * length + 1] = True
    return rows, answers


class Decoder(nn.Module):
    """A transformer of two layers.

    Args:
        tokens: number of tokens.
        longest: number of places.
        positions: whether it knows places.
    """

    def __init__(self, tokens: int, longest: int, *, positions: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(tokens, 48)
        self.places = nn.Embedding(longest, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, tokens)
        self.positions = float(positions)

    def forward(self, rows: Tensor, *, mask: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """Return logits, shape [batch, length, tokens]."""
        places = self.positions * self.places.weight[: rows.shape[1]]
        return self.head(self.body(self.words(rows) + places, mask=mask, src_key_padding_mask=padding))


def encipher(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    scored: str = "answer",
    shift: int = 1,
    mask: str = "causal",
    positions: bool = True,
    micro: int = 1,
    anneals: str = "none",
    smoothing: float = 0.0,
    grows: bool = False,
    cut: bool = False,
    momentum: float = 0.9,
    total: int = 200,
) -> float:
    """Encipher letters; returns the share of right letters of answers said one by one.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        scored: tokens that the loss counts: "answer", "prompt" or "all".
        shift: distance of a target from its input.
        mask: "causal", or "reversed" (a token sees only later ones).
        positions: whether the model knows places.
        micro: batches per update.
        anneals: "none", "updates" (rate to zero at the end), or "batches" (stepped at each batch).
        smoothing: label smoothing.
        grows: whether the texts get longer during the training.
        cut: whether a part of the forward pass has no gradient.
        momentum: first coefficient of Adam.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(13 * seed + 1)
    held, at = ciphers(150, PROMPT, torch.Generator().manual_seed(13 * seed + 2))
    model = Decoder(12, LONG, positions=positions)
    adam = torch.optim.AdamW(model.parameters(), lr=rate, betas=(momentum, 0.98), weight_decay=0.01)
    decay = torch.optim.lr_scheduler.PolynomialLR(adam, total, power=1.0)

    def attention(length: int) -> Tensor:
        seen = torch.ones(length, length).tril().bool()
        return ~(seen.T if mask == "reversed" else seen)

    @torch.no_grad()
    def right() -> float:
        rows = torch.where(at, PAD, held)
        for place in range(4, LONG):
            said = model(rows[:, :place], mask=attention(place))[:, -1].argmax(1)
            rows[:, place] = torch.where(at[:, place], said, rows[:, place])
        return float((rows == held)[at].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam, decay=decay)
        run.resume()
        for step in run.steps(total):
            adam.zero_grad()
            parts: list[tuple[float, Terms]] = []
            for _ in range(micro):
                longest = min(3 + 3 * step.index // (total // 2), PROMPT) if grows else PROMPT
                rows, answers = ciphers(32 // micro, longest, draw)
                if scored == "prompt":
                    answers = ~answers & (rows != PAD)
                if scored == "all":
                    answers = torch.ones_like(answers)
                targets = torch.where(answers, rows, -100)
                with torch.set_grad_enabled(not cut):
                    places = model.positions * model.places.weight[: LONG - shift]
                    hidden = model.body(model.words(rows[:, :-shift]) + places, mask=attention(LONG - shift))
                scores = model.head(hidden)
                loss = functional.cross_entropy(
                    scores.flatten(0, 1), targets[:, shift:].flatten(), label_smoothing=smoothing
                )
                terms = Terms(next=(1.0, loss))
                (terms.total / micro).backward()
                parts.append((1 / micro, terms.detach()))
                if anneals == "batches":
                    decay.step()
            step.observe(Terms.merged(parts))
            step.update(adam, clip=1.0)
            if anneals == "updates":
                decay.step()
            if step.every(40):
                with run.evaluation("answers"):
                    step.record({"Eval/letters": right()})
    return right()


KINDS = 8
GAP = 8
NOTHING = 9
WIDE = 14


def chains(seed: int, count: int, salt: int) -> Tensor:
    """Return texts of 6 to 13 tokens, padded to 14, that step forward or backward through a cycle."""
    draw = torch.Generator().manual_seed(17 * seed + salt)
    cycle = torch.randperm(KINDS, generator=torch.Generator().manual_seed(17 * seed))
    start = torch.randint(KINDS, (count, 1), generator=draw)
    pace = 2 * torch.randint(2, (count, 1), generator=draw) - 1 + 2 * torch.randint(2, (count, 1), generator=draw)
    texts = cycle[(start + pace * torch.arange(WIDE)) % KINDS]
    lengths = torch.randint(6, WIDE, (count, 1), generator=draw)
    return torch.where(torch.arange(WIDE) < lengths, texts, NOTHING)


def cloze(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    share: float = 0.2,
    hides: bool = True,
    padding: str = "hidden",
    pairs: bool = True,
    sharp: float = 1.0,
    plain: bool = False,
    optimizer: str = "radam",
    total: int = 160,
) -> float:
    """Fill gaps of texts; returns the share of right tokens in gaps of held-out texts.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        share: share of the tokens that are hidden.
        hides: whether hidden tokens are replaced in the input.
        padding: "hidden", or "only" (the tokens see nothing but padding).
        pairs: whether targets stay with their texts.
        sharp: factor of the logits.
        plain: whether the loss is the logarithm of a softmax, computed one after the other.
        optimizer: "radam" or "sgd".
        total: number of steps.
    """
    torch.manual_seed(seed)
    texts = chains(seed, 1500, 1)
    held = chains(seed, 200, 2)
    holes = (torch.rand(held.shape, generator=torch.Generator().manual_seed(3)) < 0.2) & (held != NOTHING)
    model = Decoder(10, WIDE)
    trained = (
        torch.optim.RAdam(model.parameters(), lr=rate)
        if optimizer == "radam"
        else torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    )

    def read(rows: Tensor) -> Tensor:
        empty = rows == NOTHING
        return model(rows, padding=~empty if padding == "only" else empty)

    @torch.no_grad()
    def right() -> float:
        made = read(torch.where(holes, GAP, held)).argmax(2)
        return float((made == held)[holes].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, trained=trained)
        run.resume()
        for step in run.steps(total):
            rows = texts[torch.randint(len(texts), (32,))]
            hidden = (torch.rand(rows.shape) < share) & (rows != NOTHING)
            truth = rows if pairs else rows[torch.randperm(32)].clamp(max=KINDS - 1)
            scores = read(torch.where(hidden, GAP, rows) if hides else rows)
            if plain:
                chances = (sharp * scores[hidden]).softmax(1)
                loss = -chances.gather(1, truth[hidden][:, None]).log().mean()
            else:
                loss = functional.cross_entropy(sharp * scores[hidden], truth[hidden])
            terms = Terms(gaps=(1.0, loss))
            trained.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(trained)
            if step.every(32):
                with run.evaluation("gaps"):
                    step.record({"Test/gaps": right()})
    return right()
