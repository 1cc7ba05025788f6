"""Sound trainings on sequences: letters, copies, long signals in pieces, labels without places, and easy data first."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


class Writer(nn.Module):
    """A small transformer that foretells the next token."""

    def __init__(self, tokens: int, length: int, width: int = 48) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next tokens."""
        length = x.shape[1]
        mask = torch.full((length, length), -math.inf).triu(1)
        return self.out(self.layers(self.token(x) + self.place[:length], mask=mask))


def grammar(n: int, length: int, gen: torch.Generator) -> Tensor:
    """Return texts of 12 letters, each of which depends on the two before it; much of it is chance."""
    table = 2.0 * torch.randn(12, 12, 12, generator=torch.Generator().manual_seed(5))
    text = torch.randint(12, (n, length), generator=gen)
    for i in range(2, length):
        chance = table[text[:, i - 2], text[:, i - 1]].softmax(1)
        text[:, i] = torch.multinomial(chance, 1, generator=gen)[:, 0]
    return text


def typist(folder: Path, seed: int, *, task: str = "letters", total: int = 300) -> float:
    """Foretell letters, or copy a word; returns the nats gained on equal chances, or the share of right letters.

    Args:
        folder: run folder.
        seed: seed.
        task: "letters" of a random grammar, or "copy" of six letters after a mark.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(103 * seed + 1)

    def texts(n: int) -> Tensor:
        if task == "letters":
            return grammar(n, 24, gen)
        word = torch.randint(12, (n, 6), generator=gen)
        return torch.cat([word, torch.full((n, 1), 12), word], 1)

    data, test = texts(3000), texts(300)
    start = 0 if task == "letters" else 6
    model = Writer(13, 24)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min((i + 1) / 40, 1.0) * (1 - 0.8 * i / total))

    def loss_of(text: Tensor) -> Tensor:
        out = model(text[:, :-1])[:, start:]
        return functional.cross_entropy(out.flatten(0, 1), text[:, 1 + start :].flatten())

    def judged() -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            loss = float(loss_of(test))
            right = float((model(test[:, :-1])[:, start:].argmax(2) == test[:, 1 + start :]).float().mean())
        model.train()
        return loss, right

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt, warm=warm)
        run.resume()
        for step in run.steps(total):
            loss = loss_of(data[torch.randint(len(data), (48,))])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(lm=(1.0, loss)))
            step.update(opt, clip=1.0)
            warm.step()
            if step.every(60):
                loss, right = judged()
                with run.evaluation("held-out text"):
                    step.record({"val/perplexity": math.exp(loss), "val/token_accuracy": right})
    loss, right = judged()
    return math.log(12) - loss if task == "letters" else right


def recorder(folder: Path, seed: int, *, total: int = 220) -> float:
    """Train a GRU on a long signal in pieces that pass on their state; returns the explained share of the rest."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(107 * seed + 1)
    state = torch.zeros(9, 2)
    rows = []
    for i in range(1700):
        push = 0.3 * torch.randn(9, generator=gen) + math.sin(0.05 * i)
        state = torch.stack([state[:, 1], 1.6 * state[:, 1] - 0.8 * state[:, 0] + 0.1 * push], 1)
        rows.append(state[:, 1] + 0.02 * torch.randn(9, generator=gen))
    signal = torch.stack(rows, 1)[..., None]
    signal = signal / signal.std()
    train, test = signal[:8], signal[8:]
    gru, out = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)
    opt = torch.optim.Adam([*gru.parameters(), *out.parameters()], lr=3e-3)

    def skill() -> float:
        with torch.no_grad():
            made = out(gru(test[:, :-1])[0])
        return float(1 - (made - test[:, 1:]).square().mean() / test.var())

    hidden = None
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(gru=gru, out=out, opt=opt)
        run.resume()
        for step in run.steps(total):
            at = (step.index * 30) % 1650
            if at == 0:
                hidden = None
            states, hidden = gru(train[:, at : at + 30], hidden)
            hidden = hidden.detach()
            loss = functional.mse_loss(out(states), train[:, at + 1 : at + 31])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(mse=(1.0, loss)))
            step.update(opt, clip=1.0)
            if step.every(55):
                with run.evaluation("another signal"):
                    step.record({"val/explained": skill()})
    return skill()


def dictation(folder: Path, seed: int, *, total: int = 260) -> float:
    """Read sounds as letters by CTC; returns the share of words without any mistake."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(109 * seed + 1)
    voice = torch.randn(6, 8, generator=gen)

    def spoken(n: int) -> tuple[Tensor, Tensor]:
        word = torch.randint(1, 6, (n, 4), generator=gen)
        x = 0.4 * torch.randn(n, 20, 8, generator=gen)
        for k in range(4):
            for j in range(3):
                x[:, 5 * k + j] += voice[word[:, k]]
        return x, word

    x, word = spoken(800)
    xv, wv = spoken(200)
    rnn, head = nn.GRU(8, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)
    opt = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=5e-3)

    def read() -> float:
        with torch.no_grad():
            best = head(rnn(xv)[0]).argmax(2)
        right = 0
        for row, truth in zip(best, wv, strict=True):
            letters = torch.unique_consecutive(row)
            right += letters[letters > 0].tolist() == truth.tolist()
        return right / len(wv)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(rnn=rnn, head=head, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(800, (32,))
            log = head(rnn(x[i])[0]).log_softmax(2).transpose(0, 1)
            loss = functional.ctc_loss(log, word[i], torch.full((32,), 20), torch.full((32,), 4), zero_infinity=True)
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(ctc=(1.0, loss)))
            step.update(opt, clip=5.0)
            if step.every(52):
                with run.evaluation("other words"):
                    step.record({"val/exact_words": read()})
    return read()


def counting(folder: Path, seed: int, *, total: int = 320) -> float:
    """Tell whether a row of bits has an odd number of ones, short rows first; returns the accuracy on rows of eight."""
    torch.manual_seed(seed)
    lstm, head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)
    opt = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-2)

    def rows(n: int, length: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(2, (n, length, 1)).float()
        return x, x.sum((1, 2)) % 2

    def right(length: int) -> float:
        with torch.no_grad():
            x, y = rows(400, length)
            return float(((head(lstm(2 * x - 1)[0][:, -1])[:, 0] > 0) == y.bool()).float().mean())

    length = 2
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(lstm=lstm, head=head, opt=opt)
        run.resume()
        for step in run.steps(total):
            x, y = rows(96, length)
            loss = functional.binary_cross_entropy_with_logits(head(lstm(2 * x - 1)[0][:, -1])[:, 0], y)
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(parity=(1.0, loss)))
            step.update(opt, clip=1.0)
            if step.every(16):
                with run.evaluation("rows of eight"):
                    step.record({"eval/accuracy_8": right(8), "curriculum/length": length})
                    if right(length) > 0.95 and length < 8:
                        length += 1
    return right(8)
