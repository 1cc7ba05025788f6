"""Strangers' loops on sequences: patterns of a loom, chants, letters with answers, an aquifer, and whistles."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

LONGEST = 48
"""Threads of the longest pattern of the loom."""


def patterns(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return patterns of threads, padded to [count, 48, 6], their lengths, and kinds: the thread most often used."""
    length = torch.randint(6, 13, (count,), generator=draw)
    length[:2] = LONGEST  # a few very long ones set the width of the table
    kind = torch.randint(4, (count,), generator=draw)
    chance = torch.full((count, 6), 0.13)
    chance[torch.arange(count), kind] = 0.48
    thread = torch.multinomial(chance, LONGEST, replacement=True, generator=draw)
    real = torch.arange(LONGEST) < length[:, None]
    return functional.one_hot(thread, 6).float() * real[..., None], length, kind


class Weaver(nn.Module):
    """Tells the kind of a pattern.

    Attributes:
        layout: whether the recurrent network takes the pattern first ("batch") or the thread first ("thread").
        taken: state that is judged: that of the "last thread", or of the "last place" of the table.
    """

    def __init__(self, layout: str, taken: str, drop: float) -> None:
        super().__init__()
        self.threads = nn.LSTM(6, 40, batch_first=layout == "batch")
        self.drop = nn.Dropout(drop)
        self.out = nn.Linear(40, 4)
        self.taken = taken

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        """Return the logits of the kinds."""
        states, _ = self.threads(x)
        last = states[torch.arange(len(x)), length - 1] if self.taken == "last thread" else states[:, -1]
        return self.out(self.drop(last))


def loom(
    folder: Path,
    seed: int,
    *,
    layout: str = "batch",
    taken: str = "last thread",
    drop: float = 0.0,
    total: int = 200,
) -> float:
    """Tell kinds of patterns of a loom; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        layout: what the recurrent network takes for the first dimension: the pattern ("batch") or the "thread".
        taken: state that is judged: that of the "last thread", or of the "last place" of the padded table.
        drop: chance to drop a feature.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(383 * seed + 2)
    x, length, kind = patterns(1000, draw)
    held_x, held_length, held_kind = patterns(400, draw)
    weaver = Weaver(layout, taken, drop)
    adam = torch.optim.Adam(weaver.parameters(), lr=8e-3)

    @torch.no_grad()
    def accuracy() -> float:
        weaver.eval()
        right = (weaver(held_x, held_length).argmax(1) == held_kind).float().mean()
        weaver.train()
        return float(right)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(weaver=weaver, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (32,))
            loss = functional.cross_entropy(weaver(x[rows], length[rows]), kind[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(kind=(1.0, loss)))
            step.update(adam, clip=1.0)
            if step.every(40):
                with run.evaluation("other patterns"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()


NOTES = 12
"""Notes of the chants."""


def melody(count: int, seed: int, draw: torch.Generator) -> Tensor:
    """Return notes of a melody in which the last two notes, and the place in a bar of six, decide the next one."""
    table = torch.randint(NOTES, (6, NOTES, NOTES), generator=torch.Generator().manual_seed(seed))
    notes = [0, 1]
    surprise = (torch.rand(count, generator=draw) < 0.12).tolist()
    random = torch.randint(NOTES, (count,), generator=draw).tolist()
    for i in range(2, count):
        notes.append(random[i] if surprise[i] else int(table[i % 6 // 3, notes[-2] % 4, notes[-1]]))
    return torch.tensor(notes)


class Singer(nn.Module):
    """Foretells the next note."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = nn.Embedding(NOTES, 24)
        self.memory = nn.GRU(24, 64, batch_first=True)
        self.out = nn.Linear(64, NOTES)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the logits, shape [streams, notes, 12], and the state after the last note."""
        states, last = self.memory(self.notes(x), state)
        return self.out(states), last


def chants(
    folder: Path,
    seed: int,
    *,
    carried: str = "as numbers",
    spread: float = 0.0,
    limit: float = 1.0,
    lr: float = 8e-3,
    total: int = 240,
) -> float:
    """Foretell the notes of chants, which go on from batch to batch; returns the share that is foretold in another one.

    Args:
        folder: run folder.
        seed: seed.
        carried: what of the state goes on to the next batch: its "numbers", written "as numbers", or "with its graph".
        spread: spread of all first weights; 0 for the usual one of each layer.
        limit: largest norm of the gradients.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(389 * seed + 7)
    streams = melody(16 * 400, seed, draw).view(16, 400)
    held = melody(1200, seed, draw)[None]
    singer = Singer()
    if spread:
        for parameter in singer.parameters():
            nn.init.normal_(parameter, std=spread)
    adam = torch.optim.Adam(singer.parameters(), lr=lr)

    @torch.no_grad()
    def foretold() -> float:
        logits, _ = singer(held[:, :-1], None)
        return float((logits.argmax(2) == held[:, 1:]).float().mean())

    state: Tensor | None = None
    at = 0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(singer=singer, adam=adam)
        run.resume()
        for step in run.steps(total):
            if at + 21 > streams.shape[1]:
                at, state = 0, None
            x, y = streams[:, at : at + 20], streams[:, at + 1 : at + 21]
            at += 20
            logits, last = singer(x, state)
            state = last.detach() if carried == "as numbers" else last
            loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten())
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(entropy=(1.0, loss)))
            step.update(adam, clip=limit)
            if step.every(40):
                with run.evaluation("another chant"):
                    step.record({"val/foretold": foretold()})
    return foretold()


class Clerk(nn.Module):
    """Continues letters."""

    def __init__(self) -> None:
        super().__init__()
        self.signs = nn.Embedding(18, 48)
        self.places = nn.Parameter(0.02 * torch.randn(24, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(48, 18)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each next sign; later signs are hidden."""
        length = x.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.layers(self.signs(x) + self.places[:length], mask=later))


def post(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return letters: twelve signs, a stop, and three that repeat the first ones, which are the labels."""
    prompt = torch.randint(16, (count, 12), generator=draw)
    stop = torch.full((count, 1), 16)
    letter = torch.cat([prompt, stop, prompt[:, :3]], 1)
    label = letter.clone()
    label[:, :13] = -100
    return letter, label


def letters(
    folder: Path,
    seed: int,
    *,
    longest: int = 16,
    warm_up: int = 60,
    lr: float = 4e-3,
    total: int = 320,
) -> float:
    """Learn to answer letters; returns the share of the signs of answers to others that are right.

    Args:
        folder: run folder.
        seed: seed.
        longest: signs after which letters are cut.
        warm_up: steps over which the rate rises.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(397 * seed + 4)
    letter, label = post(3000, draw)
    test, test_label = post(400, draw)
    letter, label = letter[:, :longest], label[:, :longest]
    clerk = Clerk()
    adam = torch.optim.Adam(clerk.parameters(), lr=lr)
    rise = torch.optim.lr_scheduler.LinearLR(adam, 1 / warm_up, total_iters=warm_up)

    @torch.no_grad()
    def right() -> float:
        clerk.eval()
        found = clerk(test[:, :-1])[:, 12:].argmax(2)
        clerk.train()
        return float((found == test_label[:, 13:]).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(clerk=clerk, adam=adam, rise=rise)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(letter), (32,))
            logits = clerk(letter[rows, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), label[rows, 1:].flatten(), ignore_index=-100)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(answer=(1.0, loss)))
            step.update(adam)
            rise.step()
            if step.every(80):
                with run.evaluation("other letters"):
                    step.record({"val/right": right()})
    return right()


def aquifer(
    folder: Path,
    seed: int,
    *,
    split: str = "by time",
    cycle: str = "steps",
    epochs: int = 30,
) -> float:
    """Foretell whether an aquifer rises from its last weeks; returns the negative error of the recorded accuracy.

    The true one is that in later years.

    Args:
        folder: run folder.
        seed: seed.
        split: how windows are held out: "by time", or "at random".
        cycle: what the one cycle of the rate is counted in: "steps" or "epochs".
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(401 * seed + 3)
    rain = torch.randn(2200, 7, generator=draw)
    level = torch.zeros(2200)
    for i in range(1, 2200):
        level[i] = 0.96 * level[i - 1] + 0.4 * rain[i, 6]
    weather = rain[:, :6].cumsum(0) / 12  # temperature, use, pumps and the like, which drift
    windows = level.unfold(0, 50, 1)
    x = torch.cat([windows[:, :20], weather[19 : 19 + len(windows)]], 1)
    y = (windows[:, 20:].mean(1) > windows[:, 19]).float()
    order = torch.randperm(1500) if split == "at random" else torch.arange(1500)
    train, check = order[:1000], order[1050:]
    later = torch.arange(1560, len(x))
    net = nn.Sequential(nn.Linear(26, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=20, shuffle=True)
    steps = epochs * len(loader)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(adam, 4e-3, total_steps=steps if cycle == "steps" else epochs)

    @torch.no_grad()
    def right(rows: Tensor) -> float:
        return float(((net(x[rows])[:, 0] > 0).float() == y[rows]).float().mean())

    told = 0.0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, one_cycle=one_cycle)
        run.resume()
        for _ in range(epochs):
            for window, rises in loader:
                step = run.begin_step(total=steps)
                loss = functional.binary_cross_entropy_with_logits(net(window)[:, 0], rises)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(rises=(1.0, loss)))
                step.update(adam)
                one_cycle.step()
                run.end_step()
            told = right(check)
            with run.evaluation("held-out windows"):
                run.record({"val/accuracy": told})
    return -abs(told - right(later))


def calls(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return whistles, shape [count, 1, 400], and their kinds: from where to where the pitch goes."""
    kind = torch.randint(8, (count,), generator=draw)
    time = torch.arange(400.0) / 400
    low = torch.where(kind % 2 == 0, 12.0, 24.0)[:, None]
    bend = torch.tensor([-10.0, 0.0, 10.0, 20.0])[kind // 2][:, None]
    phase = 6.28 * torch.rand(count, 1, generator=draw)
    wave = (6.28 * (low * time + bend * time.square() / 2) + phase).sin()
    return (wave + 0.6 * torch.randn(count, 400, generator=draw))[:, None], kind


def whistles(
    folder: Path,
    seed: int,
    *,
    order: str = "shuffled",
    stepped: str = "epoch",
    hidden: float = 0.0,
    lr: float = 4e-3,
    epochs: int = 8,
) -> float:
    """Tell kinds of whistles; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        order: order of the batches: "shuffled", or "folder by folder".
        stepped: when the schedule is stepped: at each "epoch" or each "batch".
        hidden: share of the time that is hidden at random.
        lr: learning rate.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(409 * seed + 6)
    x, y = calls(960, draw)
    held_x, held_y = calls(320, draw)
    by_kind = y.argsort()
    loader = DataLoader(TensorDataset(x[by_kind], y[by_kind]), batch_size=24, shuffle=order == "shuffled")
    net = nn.Sequential(
        nn.Conv1d(1, 16, 17, 4, 8),
        nn.ReLU(),
        nn.Conv1d(16, 24, 9, 4, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(600, 48),
        nn.ReLU(),
        nn.Linear(48, 8),
    )
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    falling = torch.optim.lr_scheduler.StepLR(adam, step_size=3, gamma=0.3)

    def masked(sound: Tensor) -> Tensor:
        width = int(hidden * sound.shape[2])
        start = int(torch.randint(sound.shape[2] - width, ()))
        covered = sound.clone()
        covered[:, :, start : start + width] = 0
        return covered

    @torch.no_grad()
    def accuracy() -> float:
        return float((net(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, falling=falling)
        run.resume()
        for _ in range(epochs):
            for sound, kind in loader:
                step = run.begin_step(total=epochs * len(loader))
                loss = functional.cross_entropy(net(masked(sound) if hidden else sound), kind)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(kind=(1.0, loss)))
                step.update(adam)
                if stepped == "batch":
                    falling.step()
                run.end_step()
            if stepped == "epoch":
                falling.step()
            with run.evaluation("other whistles"):
                run.record({"val/accuracy": accuracy()})
    return accuracy()
