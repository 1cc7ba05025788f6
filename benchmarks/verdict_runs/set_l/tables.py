"""Strangers' loops on rows of tables: beers of a brewery, luggage of an airport, and readers of a bookshop."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


@dataclass(frozen=True, kw_only=True)
class BreweryConfig:
    """Settings of the brewery.

    Attributes:
        rows: number of beers to learn from.
        noise: spread of what nobody can foretell.
        gaps: number that stands for a missing measurement: their "mean", or "-999".
        target: shape of the bitterness: a "column" or a "row".
        lr: learning rate.
        decay: weight decay.
        loss: "mse", "huber" or "l1".
        batch: beers of a batch.
        drop_last: whether an incomplete batch is left out.
        norms: whether the network has batch norms.
        plateau: whether the rate falls when the loss on other beers stands still.
        evaluated: epochs between evaluations; 0 for none.
        epochs: epochs.
    """

    rows: int = 960
    noise: float = 0.2
    gaps: str = "mean"
    target: str = "column"
    lr: float = 3e-3
    decay: float = 1e-4
    loss: str = "mse"
    batch: int = 32
    drop_last: bool = False
    norms: bool = False
    plateau: bool = False
    evaluated: int = 2
    epochs: int = 20


def brewery(folder: Path, seed: int, **settings: object) -> float:
    """Foretell the bitterness of beers; returns the explained share of its variance for new ones.

    Args:
        folder: run folder.
        seed: seed.
        settings: fields of :class:`BreweryConfig`.
    """
    config = BreweryConfig(**settings)  # type: ignore[arg-type]
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(503 * seed + 11)

    def beers(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 10, generator=draw)
        y = (1.4 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + 0.8 * x[:, 3].abs() - 0.5 * x[:, 4]
        y = y + config.noise * torch.randn(count, generator=draw)
        missing = torch.rand(count, 10, generator=draw) < 0.04
        return torch.where(missing, 0.0 if config.gaps == "mean" else -999.0, x), y

    x, y = beers(config.rows)
    check_x, check_y = beers(400)
    test_x, test_y = beers(800)
    mean, spread = y.mean(), y.std()
    layers: list[nn.Module] = []
    for size in (10, 64):
        layers += [nn.Linear(size, 64), nn.BatchNorm1d(64) if config.norms else nn.Identity(), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=config.decay)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1) if config.plateau else None
    criterion = {"mse": nn.MSELoss(), "huber": nn.HuberLoss(), "l1": nn.L1Loss()}[config.loss]
    labels = ((y - mean) / spread)[:, None] if config.target == "column" else (y - mean) / spread
    loader = DataLoader(TensorDataset(x, labels), batch_size=config.batch, shuffle=True, drop_last=config.drop_last)

    @torch.no_grad()
    def unexplained(features: Tensor, truth: Tensor) -> float:
        model.eval()
        found = model(features)[:, 0] * spread + mean
        model.train()
        return float((found - truth).square().mean() / truth.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer)
        if plateau is not None:
            run.track(plateau=plateau)
        run.resume()
        for epoch in range(config.epochs):
            for features, target in loader:
                step = run.begin_step(total=config.epochs * len(loader))
                optimizer.zero_grad()
                loss = criterion(model(features), target)
                loss.backward()
                step.observe(Terms(loss=(1.0, loss)))
                step.update(optimizer)
                run.end_step()
            if config.evaluated and epoch % config.evaluated == config.evaluated - 1:
                with run.evaluation("other beers"):
                    left = unexplained(check_x, check_y)
                    run.record({"val/unexplained": left})
                    if plateau is not None:
                        plateau.step(left)
    return 1 - unexplained(test_x, test_y)


class Trainer:
    """Trains a classifier as the trainer of a library does.

    Attributes:
        model: classifier.
        optimizer: its optimizer.
        scheduler: schedule of the learning rate.
        criterion: loss of logits and labels.
        accumulate: batches whose gradients make one update.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LambdaLR,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.criterion = criterion
        self.accumulate = 1

    def training_step(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the gradients of a batch and return its loss."""
        loss = self.criterion(self.model(x), y)
        (loss / self.accumulate).backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Return the accuracy, and its mean over the classes."""
        self.model.eval()
        right = (self.model(x).argmax(1) == y).float()
        self.model.train()
        each = [float(right[y == kind].mean()) for kind in y.unique().tolist()]
        return {"val/accuracy": float(right.mean()), "val/balanced_accuracy": sum(each) / len(each)}


def numbered(kinds: Tensor) -> Tensor:
    """Return the number of each of five kinds in the order in which they appear."""
    seen = list(dict.fromkeys(kinds.tolist()))
    return torch.tensor([seen.index(kind) for kind in range(5)])


def luggage(
    folder: Path,
    seed: int,
    *,
    weights: str = "none",
    smoothing: float = 0.0,
    first_label: int = 0,
    coded: str = "once",
    warm_up: int = 20,
    accumulate: int = 1,
    lr: float = 0.1,
    drop: float = 0.0,
    patience: int = 0,
    total: int = 500,
) -> float:
    """Tell kinds of luggage, some of which are rare; returns the accuracy, averaged over the kinds, for other luggage.

    Args:
        folder: run folder.
        seed: seed.
        weights: weights of the kinds in the loss: "none", "inverse" to how often they are, or as "often" as they are.
        smoothing: label smoothing.
        first_label: number of the first kind.
        coded: whether names became numbers "once", or "again" for the luggage of the evaluation.
        warm_up: steps in which the rate rises.
        accumulate: batches whose gradients make one update.
        lr: learning rate.
        drop: chance to drop a feature.
        patience: evaluations without a better result after which the training ends; 0 for never.
        total: number of updates.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(509 * seed + 3)
    often = torch.tensor([0.5, 0.32, 0.12, 0.035, 0.025])
    centers = torch.randn(5, 3, 12, generator=draw)

    def bags(count: int) -> tuple[Tensor, Tensor]:
        kind = often.multinomial(count, replacement=True, generator=draw)
        place = centers[kind, torch.randint(3, (count,), generator=draw)]
        return place + 0.9 * torch.randn(count, 12, generator=draw), kind

    x, y = bags(1600)
    check_x, check_y = bags(500)
    test_x, test_y = bags(2000)
    if coded == "again":
        # Each table numbers the names in the order in which they appear in it.
        y, later = numbered(y)[y], numbered(check_y)
        check_y, test_y = later[check_y], later[test_y]
    counts = torch.bincount(y, minlength=5).float()
    chosen = {"none": None, "inverse": counts.sum() / (5 * counts), "often": 5 * counts / counts.sum()}[weights]
    model = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Dropout(drop), nn.Linear(96, 5))
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1.0, (step + 1) / (warm_up + 1)))
    trainer = Trainer(model, nn.CrossEntropyLoss(weight=chosen, label_smoothing=smoothing), sgd, schedule)
    trainer.accumulate = accumulate
    best = 0.0
    waited = 0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, sgd=sgd, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            losses: list[Tensor] = []
            sgd.zero_grad()
            for _ in range(accumulate):
                rows = torch.randint(len(x), (32,))
                losses.append(trainer.training_step(x[rows], y[rows] + first_label))
            step.record({"Train/loss": torch.stack(losses).mean()})
            step.update(sgd)
            schedule.step()
            if step.every(30):
                with run.evaluation("other luggage"):
                    scores = trainer.evaluate(check_x, check_y)
                    step.record(scores)
                    waited = 0 if scores["val/accuracy"] > best else waited + 1
                    best = max(best, scores["val/accuracy"])
                if patience and waited == patience:
                    break
    return trainer.evaluate(test_x, test_y)["val/balanced_accuracy"]


class Towers(nn.Module):
    """Tells how much a reader likes a book, from a vector for each."""

    def __init__(self, readers: int, books: int, *, sparse: bool) -> None:
        super().__init__()
        self.reader = nn.Embedding(readers, 12, sparse=sparse)
        self.book = nn.Embedding(books, 12, sparse=sparse)
        self.liked = nn.Embedding(books, 1, sparse=sparse)
        for table in (self.reader, self.book, self.liked):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, reader: Tensor, book: Tensor) -> Tensor:
        """Return the logit of a purchase."""
        return (self.reader(reader) * self.book(book)).sum(-1) + self.liked(book)[..., 0]


def bookshop(
    folder: Path,
    seed: int,
    *,
    negatives: int = 4,
    optimizer: str = "adam",
    lr: float = 2e-2,
    total: int = 420,
) -> float:
    """Learn what readers buy from what they bought; returns the share of pairs of books that are ordered rightly.

    Args:
        folder: run folder.
        seed: seed.
        negatives: books that a reader did not buy, for each one that he bought.
        optimizer: "adam", or "sparse" for the one that changes only the rows that were used.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(521 * seed + 4)
    readers, books = 200, 160
    taste = torch.randn(readers, 4, generator=draw) @ torch.randn(4, books, generator=draw)
    taste = taste + torch.randn(books, generator=draw)
    bought = torch.rand(readers, books, generator=draw) < torch.sigmoid(1.5 * taste - 2.5)
    held = bought & (torch.rand(readers, books, generator=draw) < 0.2)
    sales = (bought & ~held).nonzero()
    model = Towers(readers, books, sparse=optimizer == "sparse")
    if optimizer == "sparse":
        chosen: torch.optim.Optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=lr)
    else:
        chosen = torch.optim.Adam(model.parameters(), lr=lr)

    @torch.no_grad()
    def ordered() -> float:
        liking = model(torch.arange(readers)[:, None], torch.arange(books)[None])
        pairs = held.nonzero()
        other = torch.randint(books, (len(pairs), 20), generator=torch.Generator().manual_seed(seed))
        fresh = ~bought[pairs[:, :1], other]
        better = liking[pairs[:, 0], pairs[:, 1]][:, None] > liking[pairs[:, :1], other]
        return float(better[fresh].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, chosen=chosen)
        run.resume()
        for step in run.steps(total):
            sale = sales[torch.randint(len(sales), (128,))]
            other = torch.randint(books, (128, max(negatives, 1)))
            liked = model(sale[:, 0], sale[:, 1])
            loss = functional.binary_cross_entropy_with_logits(liked, torch.ones_like(liked))
            if negatives:
                shunned = model(sale[:, :1], other)
                loss = loss + functional.binary_cross_entropy_with_logits(shunned, torch.zeros_like(shunned))
            chosen.zero_grad()
            loss.backward()
            step.observe(Terms(purchases=(1.0, loss)))
            step.update(chosen)
            if step.every(70):
                with run.evaluation("held-out purchases"):
                    step.record({"val/ordered": ordered()})
    return ordered()
