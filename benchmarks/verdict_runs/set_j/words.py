"""Strangers' loops on sequences and relations: telegrams, recipes with new words, families, an echo, and a post bag."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def wires(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return telegrams of 12 words, and whether "buy" (1) stands before "sell" (2)."""
    text = torch.randint(3, 20, (count, 12), generator=draw)
    places = torch.rand(count, 12, generator=draw).argsort(1)[:, :2]
    rows = torch.arange(count)
    text[rows, places[:, 0]] = 1
    text[rows, places[:, 1]] = 2
    return text, (places[:, 0] < places[:, 1]).long()


class Places(nn.Module):
    """Adds an encoding of the place of a word.

    Attributes:
        layout: dimensions of the input, in order.
    """

    def __init__(self, width: int, most: int, *, layout: str) -> None:
        super().__init__()
        place = torch.arange(float(most))[:, None]
        pace = torch.exp(-torch.arange(0, width, 2.0) / width * 6)
        self.register_buffer("code", torch.cat([(place * pace).sin(), (place * pace).cos()], 1))
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with the code of its places."""
        code = self.get_buffer("code")
        if self.layout == "words, batch":
            return x + code[: x.size(0), None]
        return x + code[None, : x.size(1)]


def telegrams(
    folder: Path,
    seed: int,
    *,
    layout: str = "batch, words",
    lr: float = 3e-3,
    warm_up: int = 20,
    wrong: float = 0.0,
    smoothing: float = 0.0,
    total: int = 260,
) -> float:
    """Tell in which order two orders stand in a telegram; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        layout: dimensions that the encoding of places expects, in order.
        lr: learning rate.
        warm_up: steps over which the rate rises.
        wrong: share of wrong labels in the training.
        smoothing: smoothing of the labels.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(233 * seed + 2)
    x, y = wires(1500, draw)
    held_x, held_y = wires(300, draw)
    y = torch.where(torch.rand(len(y), generator=draw) < wrong, 1 - y, y)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    model = nn.ModuleDict(
        {
            "words": nn.Embedding(20, 32),
            "places": Places(32, 512, layout=layout),
            "encoder": nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
            "answer": nn.Linear(32, 2),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / warm_up, 1.0))

    def read(text: Tensor) -> Tensor:
        return model["answer"](model["encoder"](model["places"](model["words"](text))).mean(1))

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        share = (read(held_x).argmax(1) == held_y).float().mean()
        model.train()
        return float(share)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (32,))
            loss = functional.cross_entropy(read(x[rows]), y[rows], label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(order=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            scheduler.step()
            if step.every(65):
                with run.evaluation("other telegrams"):
                    step.record({"dev/accuracy": accuracy()})
    return accuracy()


LETTERS = 16


def counted(count: int, length: int, draw: torch.Generator, *, spoken: bool) -> Tensor:
    """Return texts whose letters go on by 1, 3, 5 or 7; if spoken, a word before them (16 to 19) tells by how many."""
    kind = torch.randint(4, (count, 1), generator=draw)
    first = torch.randint(LETTERS, (count, 1), generator=draw)
    text = (first + (2 * kind + 1) * torch.arange(length)).remainder(LETTERS)
    return torch.cat([LETTERS + kind, text], 1) if spoken else text


class Speaker(nn.Module):
    """A small language model, with an adapter of low rank before and behind its recurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(LETTERS + 4, 24)
        self.rnn = nn.GRU(24, 64, batch_first=True)
        self.head = nn.Linear(64, LETTERS)
        self.adapter = nn.Sequential(nn.Linear(64, 24), nn.GELU(), nn.Linear(24, 64))
        nn.init.zeros_(self.adapter[2].weight)
        nn.init.zeros_(self.adapter[2].bias)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next letters."""
        states = self.rnn(self.table(text))[0]
        return self.head(states + self.adapter(states))


def recipes(
    folder: Path,
    seed: int,
    *,
    trained: tuple[str, ...] = ("adapter", "table"),
    lr: float = 1e-2,
    longer: bool = False,
    first: int = 250,
    total: int = 220,
) -> float:
    """Teach four new words to a small language model that was trained here first; returns the accuracy behind them.

    Args:
        folder: run folder.
        seed: seed.
        trained: parts of the model that are trained.
        lr: learning rate.
        longer: whether the texts become longer in the training.
        first: steps of the first training, which is not recorded.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(239 * seed + 4)
    model = Speaker()

    def loss_of(text: Tensor, start: int) -> Tensor:
        return functional.cross_entropy(model(text[:, :-1])[:, start:].flatten(0, 1), text[:, start + 1 :].flatten())

    before = torch.optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(first):
        before.zero_grad()
        loss_of(counted(48, 8, draw, spoken=False), 0).backward()
        before.step()
    with torch.no_grad():
        # New rows begin as the mean of the old ones, nearly.
        mean = model.table.weight[:LETTERS].mean(0)
        model.table.weight[LETTERS:] = mean + 1e-4 * torch.randn(4, 24)
    for name, part in model.named_children():
        part.requires_grad_(requires_grad=name in trained)
    held = counted(300, 6, draw, spoken=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.01)

    @torch.no_grad()
    def accuracy() -> float:
        # The second letter follows from the word alone.
        return float((model(held[:, :2])[:, 1].argmax(1) == held[:, 2]).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            length = 2 + 6 * step.index // total if longer else 6
            loss = loss_of(counted(48, length, draw, spoken=True), 1)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(next_letter=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            if step.every(55):
                with run.evaluation("other recipes"):
                    step.record({"eval/accuracy": accuracy()})
    return accuracy()


def kin() -> Tensor:
    """Return the facts of eight clans of six, each a person, a relation and a person."""
    facts: list[tuple[int, int, int]] = []
    for clan in range(8):
        for role in range(6):
            person = 6 * clan + role
            facts += [
                (person, 0, 6 * clan + role // 2 * 2 + 1 - role % 2),
                (person, 1, 6 * clan),
                (person, 2, 6 * clan + (role + 2) % 6),
                (person, 3, 6 * ((clan + 1) % 8) + role),
            ]
    return torch.tensor(facts)


def family(
    folder: Path,
    seed: int,
    *,
    pad: int | None = None,
    rare: bool = False,
    total: int = 260,
) -> float:
    """Complete the facts of families; returns the accuracy on all of them, a tenth of which was held out.

    Args:
        folder: run folder.
        seed: seed.
        pad: ``padding_idx`` of the table of relations.
        rare: whether the facts of some persons are drawn much more often.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(241 * seed + 6)
    facts = kin()
    facts = facts[torch.randperm(len(facts), generator=draw)]
    x = facts[len(facts) // 10 :]
    persons = nn.Embedding(48, 24)
    relations = nn.Embedding(4, 24, padding_idx=pad)
    mixer = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
    model = nn.ModuleDict({"persons": persons, "relations": relations, "mixer": mixer})
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.15)
    weights = torch.where(x[:, 0] % 6 < 2, 4.0, 1.0) if rare else torch.ones(len(x))

    def scores(head: Tensor, relation: Tensor) -> Tensor:
        return mixer(persons(head) * relations(relation)) @ persons.weight.T

    @torch.no_grad()
    def accuracy(rows: Tensor) -> float:
        return float((scores(rows[:, 0], rows[:, 1]).argmax(1) == rows[:, 2]).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adagrad=adagrad)
        run.resume()
        for step in run.steps(total):
            some = x[torch.multinomial(weights, 32, replacement=True)]
            loss = functional.cross_entropy(scores(some[:, 0], some[:, 1]), some[:, 2])
            adagrad.zero_grad()
            loss.backward()
            step.observe(Terms(tail=(1.0, loss)))
            step.update(adagrad)
            if step.every(65):
                with run.evaluation("all facts"):
                    step.record({"eval/hits": accuracy(facts)})
    return accuracy(facts)


def echo(
    folder: Path,
    seed: int,
    *,
    taken: str = "as a list",
    limit: float = 1.0,
    lr: float = 0.01,
    total: int = 350,
) -> float:
    """Add up the two marked knocks of a recording of 16; returns the negative root mean square error.

    Args:
        folder: run folder.
        seed: seed.
        taken: how the parameters are taken: "as a list", or "as they come".
        limit: largest norm of the gradients.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(251 * seed + 5)

    def recordings(count: int) -> tuple[Tensor, Tensor]:
        knock = torch.rand(count, 16, generator=draw)
        marked = torch.zeros(count, 16)
        rows = torch.arange(count)
        marked[rows, torch.randint(0, 8, (count,), generator=draw)] = 1
        marked[rows, torch.randint(8, 16, (count,), generator=draw)] = 1
        return torch.stack([knock, marked], 2), (knock * marked).sum(1, keepdim=True)

    x, y = recordings(1500)
    held_x, held_y = recordings(300)
    model = nn.ModuleDict({"rnn": nn.RNN(2, 48, nonlinearity="relu", batch_first=True), "sum": nn.Linear(48, 1)})
    with torch.no_grad():
        model["rnn"].get_parameter("weight_hh_l0").copy_(torch.eye(48))
        model["rnn"].get_parameter("weight_ih_l0").normal_(0, 0.3)
    parameters = model.parameters() if taken == "as they come" else list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    def heard(sound: Tensor) -> Tensor:
        return model["sum"](model["rnn"](sound)[0][:, -1])

    @torch.no_grad()
    def error() -> float:
        return float((heard(held_x) - held_y).square().mean().sqrt())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (32,))
            loss = functional.mse_loss(heard(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, limit)
            step.observe(Terms(mse=(1.0, loss)))
            step.update(optimizer)
            if step.every(55):
                with run.evaluation("other recordings"):
                    step.record({"val/error": error()})
    return -error()


class Bag(IterableDataset[tuple[Tensor, Tensor]]):
    """Letters in the order in which they arrive.

    Attributes:
        words: counts of words, shape [letters, 20].
        offices: office that each belongs to.
        dealt: whether each process that reads gets its own share of the letters.
    """

    def __init__(self, words: Tensor, offices: Tensor, *, dealt: bool) -> None:
        super().__init__()
        self.words = words
        self.offices = offices
        self.dealt = dealt

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the letters."""
        worker = get_worker_info()
        first, pace = (worker.id, worker.num_workers) if self.dealt and worker is not None else (0, 1)
        for i in range(first, len(self.words), pace):
            yield self.words[i], self.offices[i]


def postbag(folder: Path, seed: int, *, dealt: bool = True, workers: int = 2, total: int = 150) -> float:
    """Sort letters from a stream, in which offices come and go; returns the accuracy on letters to all of them.

    Args:
        folder: run folder.
        seed: seed.
        dealt: whether each process that reads gets its own share of the letters.
        workers: number of processes that read.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(257 * seed + 9)
    talk = torch.randn(8, 20, generator=draw)

    def letters(offices: Tensor) -> Tensor:
        return talk[offices] + 1.1 * torch.randn(len(offices), 20, generator=draw)

    count = 16 * total
    # Half of the offices open in the course of the stream.
    open_offices = 4 + 4 * torch.arange(count) // count
    offices = (torch.rand(count, generator=draw) * (open_offices + 1)).long()
    held = torch.arange(400).remainder(8)
    held_x = letters(held)
    bag = Bag(letters(offices), offices, dealt=dealt)
    loader = DataLoader(bag, batch_size=16, num_workers=workers)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 8))
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((net(held_x).argmax(1) == held).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step, (words, office) in zip(run.steps(total), loader, strict=False):
            loss = functional.cross_entropy(net(words), office)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(office=(1.0, loss)))
            step.update(adam)
            if step.every(50):
                with run.evaluation("letters to all offices"):
                    step.record({"eval/accuracy": accuracy()})
    return accuracy()
