"""Sequences: patients until their death, the level of a river, items of a session, marks above syllables."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS


def patients(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is measured at admission [n, 10], days until death or discharge, and whether a patient has died."""
    draw = torch.Generator().manual_seed(97 * seed + salt)
    x = torch.randn(count, 10, generator=draw)
    risk = 1.1 * x[:, 0] + 0.8 * x[:, 1] * x[:, 2] - 0.9 * x[:, 3].abs()
    death = torch.rand(count, generator=draw).clamp_min(1e-6).log().neg() * (-risk).exp()
    # Who is well goes home early: the sicker, the longer observed.
    home = torch.rand(count, generator=draw).clamp_min(1e-6).log().neg() * (1.3 * risk).exp()
    return x, torch.minimum(death, home), (death <= home).float()


def concordance(risk: Tensor, time: Tensor, died: Tensor) -> float:
    """Return the share of comparable pairs in which the higher risk died first."""
    earlier = (time[:, None] < time[None, :]) & (died[:, None] > 0)
    right = (risk[:, None] > risk[None, :]) & earlier
    return float(right.sum() / earlier.sum())


def hospital(
    folder: Path,
    seed: int,
    *,
    lr: float = 6e-3,
    swapped: bool = False,
    patience: int = 0,
    epochs: int = 12,
) -> float:
    """Predict who dies first (a Cox model); returns the concordance of held-out patients.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        swapped: whether deaths are read as discharges.
        patience: epochs without a better concordance after which the training stops; 0 for none.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    x, time, died = patients(seed, 1600, 1)
    held_x, held_time, held_died = patients(seed, 600, 2)
    if swapped:
        died = 1 - died
    model = nn.Sequential(
        nn.Linear(10, 64), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 1)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-3)
    data = torch.utils.data.TensorDataset(x, time, died)
    loader = ResumableLoader(data, batch_size=80, seed=seed)
    best = torch.zeros(())
    waited = torch.zeros((), dtype=torch.long)

    def evaluate() -> float:
        model.eval()
        with torch.no_grad():
            return concordance(model(held_x)[:, 0], held_time, held_died)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt, loader=loader, best=best, waited=waited)
        run.resume()
        for epoch in range(loader.epoch, epochs):
            for xb, tb, db in loader:
                step = run.begin_step(total=epochs * len(loader))
                order = tb.argsort(descending=True)
                risk = model(xb)[order, 0]
                event = db[order]
                partial = (risk - risk.logcumsumexp(0)) * event
                terms = Terms(cox=(1.0, -partial.sum() / event.sum().clamp_min(1)))
                opt.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt)
                if run.step_index % len(loader) == len(loader) - 1:
                    found = 0.0
                    with run.evaluation("held-out patients"):
                        found = evaluate()
                        step.record({"Validation/c_index": found})
                    waited.copy_(torch.tensor(0) if found > best else waited + 1)
                    best.copy_(torch.maximum(best, torch.tensor(found)))
                run.end_step()
            if patience and waited >= patience and epoch > 3:
                break
    return evaluate()


STREAMS = 16
CHUNK = 24


def levels(seed: int, streams: int, length: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return the rain [streams, length, 2] and the level of rivers, which falls slowly after rain."""
    draw = torch.Generator().manual_seed(41 * seed + salt)
    rain = (
        (torch.rand(streams, length, generator=draw) < 0.06).float() * torch.rand(streams, length, generator=draw) * 4
    )
    snow = torch.rand(streams, length, generator=draw)
    stored = torch.zeros(streams)
    slow = torch.zeros(streams)
    level: list[Tensor] = []
    for day in range(length):
        stored = 0.8 * stored + rain[:, day]
        slow = 0.985 * slow + 0.12 * rain[:, day]
        level.append(0.5 * stored + slow + 0.05 * torch.randn(streams, generator=draw))
    return torch.stack([rain, snow], 2), torch.stack(level, 1) - 1.5


class Gauge(nn.Module):
    """Reads rain day by day.

    Args:
        drop: dropout between the recurrence and the output.
    """

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.gru = nn.GRU(2, 32, batch_first=True)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the levels of all days and the state after the last one."""
        out, after = self.gru(x, state)
        return self.head(self.drop(out))[..., 0], after


def river(
    folder: Path,
    seed: int,
    *,
    lr: float = 8e-3,
    drop: float = 0.05,
    order: str = "in time",
    cycles: int = 0,
    passes: int = 6,
) -> float:
    """Follow rivers chunk by chunk with a state that is carried on; returns the explained variance of other rivers.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        drop: dropout.
        order: of the chunks: "in time", or "shuffled".
        cycles: steps between warm restarts; 0 for a constant rate.
        passes: number of passes over the rivers.
    """
    torch.manual_seed(seed)
    x, y = levels(seed, STREAMS, 50 * CHUNK, 1)
    held_x, held_y = levels(seed, 24, 400, 2)
    net = Gauge(drop)
    optim = torch.optim.RMSprop(net.parameters(), lr=lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optim, T_0=cycles or 10**6)

    def r2() -> float:
        net.eval()
        with torch.no_grad():
            guess, _ = net(held_x, None)
        past = slice(100, None)
        return 1 - float((guess[:, past] - held_y[:, past]).square().mean() / held_y[:, past].var())

    chunks = list(zip(x.split(CHUNK, 1), y.split(CHUNK, 1), strict=True))
    places = torch.arange(len(chunks))
    state: Tensor | None = None
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optim=optim, sched=sched)
        run.resume()
        for step in run.steps(passes * len(chunks)):
            at = step.index % len(chunks)
            if at == 0:
                places = torch.randperm(len(chunks)) if order == "shuffled" else places
                state = None
            xb, yb = chunks[int(places[at])]
            guess, after = net(xb, state)
            state = after.detach()
            loss = functional.smooth_l1_loss(guess, yb)
            optim.zero_grad()
            loss.backward()
            step.observe(Terms(level=(1.0, loss)))
            step.update(optim, clip=1.0)
            sched.step()
            if step.every(len(chunks)):
                with run.evaluation("other rivers"):
                    step.record({"Test/r2": r2()})
    return r2()


GOODS = 80
VISIT = 8


def sessions(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return visited goods [n, 8], 0 for none, and the one that was bought: a mate of the last two."""
    draw = torch.Generator().manual_seed(59 * seed + salt)
    world = torch.Generator().manual_seed(59 * seed)
    place = torch.randn(GOODS + 1, 6, generator=world)
    now = torch.randint(1, GOODS + 1, (count,), generator=draw)
    seen = [now]
    for _ in range(VISIT):
        mood = (
            0.7 * place[now] + 0.3 * place[seen[max(len(seen) - 2, 0)]] + 0.35 * torch.randn(count, 6, generator=draw)
        )
        near = -(mood[:, None] - place[None]).square().sum(2)
        near[:, 0] = -1e9
        near.scatter_(1, now[:, None], -1e9)
        now = near.argmax(1)
        seen.append(now)
    goods = torch.stack(seen, 1)
    short = torch.randint(0, 5, (count,), generator=draw)
    hidden = torch.arange(VISIT)[None] < short[:, None]
    return goods[:, :VISIT].masked_fill(hidden, 0), goods[:, VISIT]


class Session(nn.Module):
    """Recommends the next item by its vector.

    Args:
        pretrained: whether vectors of another system are used, as torch's constructor for them does by default.
        width: length of a vector.
    """

    def __init__(self, *, pretrained: bool, width: int = 24) -> None:
        super().__init__()
        vectors = 0.1 * torch.randn(GOODS + 1, width)
        self.items = nn.Embedding.from_pretrained(vectors) if pretrained else nn.Embedding(GOODS + 1, width)
        self.gru = nn.GRU(width, 48, batch_first=True)
        self.proj = nn.Linear(48, width)

    def forward(self, seen: Tensor) -> Tensor:
        """Return one score per item."""
        out, _ = self.gru(self.items(seen))
        return self.proj(out[:, -1]) @ self.items.weight.T


def basket(
    folder: Path,
    seed: int,
    *,
    lr: float = 6e-3,
    softmax: bool = False,
    pretrained: bool = False,
    newest: str = "last",
    total: int = 260,
) -> float:
    """Recommend what comes next in a session; returns the recall among the first five.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        softmax: whether the scores pass a softmax before the loss, which has its own.
        pretrained: whether the vectors are those of another system.
        newest: place of the newest item: "last", or "first", as a database returns them, in the training only.
        total: number of steps.
    """
    torch.manual_seed(seed)
    seen, bought = sessions(seed, 4000, 1)
    held, wanted = sessions(seed, 500, 2)
    if newest == "first":
        seen = seen.flip(1)
    model = Session(pretrained=pretrained)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=total, pct_start=0.15)

    @torch.no_grad()
    def hit_rate() -> float:
        return float((model(held).topk(5, 1).indices == wanted[:, None]).any(1).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(seen), (96,))
            logits = model(seen[rows])
            if softmax:
                logits = logits.softmax(-1)
            ce = functional.cross_entropy(logits, bought[rows])
            optimizer.zero_grad()
            ce.backward()
            step.observe(Terms(next_item=(1.0, ce)))
            step.update(optimizer, clip=5.0)
            scheduler.step()
            step.record({"Train/ce": ce.detach()})
            if step.every(52):
                with run.evaluation("held-out sessions"):
                    step.record(
                        {"Eval/hit_rate_5": hit_rate(), "Eval/ce": functional.cross_entropy(model(held), wanted)}
                    )
    return hit_rate()


MARKS = 5
VERSE = 12


def verses(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return features of syllables [n, 12, 8] and their marks, which follow each other by a grammar."""
    draw = torch.Generator().manual_seed(61 * seed + salt)
    world = torch.Generator().manual_seed(61 * seed)
    follows = torch.tensor(
        [[0.05, 0.8, 0.05, 0.05, 0.05], [0.05, 0.05, 0.8, 0.05, 0.05], [0.4, 0.02, 0.08, 0.48, 0.02],
         [0.02, 0.02, 0.02, 0.04, 0.9], [0.86, 0.04, 0.04, 0.03, 0.03]]
    )  # fmt: skip
    center = 0.45 * torch.randn(MARKS, 8, generator=world)
    mark = torch.randint(MARKS, (count,), generator=draw)
    marks = [mark]
    for _ in range(VERSE - 1):
        mark = torch.multinomial(follows[mark], 1, generator=draw)[:, 0]
        marks.append(mark)
    y = torch.stack(marks, 1)
    return center[y] + 0.8 * torch.randn(count, VERSE, 8, generator=draw), y


class Chain(nn.Module):
    """A conditional random field above a convolution.

    Args:
        stable: whether sums of exponentials are computed without an overflow.
        scale: factor of the scores.
    """

    def __init__(self, *, stable: bool, scale: float) -> None:
        super().__init__()
        self.scores = nn.Sequential(nn.Conv1d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, MARKS, 1))
        self.trans = nn.Parameter(0.1 * torch.randn(MARKS, MARKS))
        self.stable = stable
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return a score per syllable and mark."""
        return self.scale * self.scores(x.transpose(1, 2)).transpose(1, 2)

    def nll(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the negative logarithm of the likelihood of marks, per syllable."""
        scores = self(x)
        right = scores.gather(2, y[..., None])[..., 0].sum(1) + self.trans[y[:, :-1], y[:, 1:]].sum(1)
        if self.stable:
            alpha = scores[:, 0]
            for i in range(1, VERSE):
                alpha = (alpha[:, :, None] + self.trans).logsumexp(1) + scores[:, i]
            return (alpha.logsumexp(1) - right).mean() / VERSE
        weight = scores[:, 0].exp()
        for i in range(1, VERSE):
            weight = (weight @ self.trans.exp()) * scores[:, i].exp()
        return (weight.sum(1).log() - right).mean() / VERSE

    @torch.no_grad()
    def best(self, x: Tensor, trans: Tensor) -> Tensor:
        """Return the most likely marks (Viterbi)."""
        scores = self(x)
        alpha = scores[:, 0]
        back: list[Tensor] = []
        for i in range(1, VERSE):
            alpha, came = (alpha[:, :, None] + trans).max(1)
            alpha = alpha + scores[:, i]
            back.append(came)
        mark = alpha.argmax(1)
        path = [mark]
        for came in reversed(back):
            mark = came.gather(1, mark[:, None])[:, 0]
            path.append(mark)
        return torch.stack(path[::-1], 1)


def stress(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-2,
    transposed: bool = False,
    stable: bool = True,
    scale: float = 1.0,
    total: int = 160,
) -> float:
    """Mark syllables with a conditional random field; returns the share of right marks of held-out verses.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        transposed: whether the search reads the table of transitions from its other side.
        stable: whether sums of exponentials are computed without an overflow.
        scale: factor of the scores.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = verses(seed, 1200, 1)
    held_x, held_y = verses(seed, 300, 2)
    crf = Chain(stable=stable, scale=scale)
    opt = torch.optim.NAdam(crf.parameters(), lr=lr)

    def objective(rows: Tensor) -> Terms:
        return Terms(nll=(1.0, crf.nll(x[rows], y[rows])))

    def accuracy() -> float:
        found = crf.best(held_x, crf.trans.T if transposed else crf.trans)
        return float((found == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(crf=crf, opt=opt)
        run.resume()
        for step in run.steps(total):
            step.backward(objective, torch.randint(len(x), (64,)))
            step.update(opt)
            if step.every(40):
                with run.evaluation("held-out verses"), torch.no_grad():
                    step.record({"Test/accuracy": accuracy(), "Test/nll": crf.nll(held_x, held_y)})
    found = accuracy()
    return found if math.isfinite(found) else -1e9
