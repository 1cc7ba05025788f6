"""Relations: towns on a map of roads, birds by their plumage, glances at the same thing from two sides."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def roads(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    wrong: float = 0.0,
    total: int = 250,
) -> float:
    """Name the regions of towns from their neighbors; returns the accuracy on towns whose region nobody told.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        wrong: share of wrong regions in the training.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(41 * seed + 8)
    towns = 600
    region = torch.randint(6, (towns,), generator=draw)
    source = torch.randint(towns, (60000,), generator=draw)
    target = torch.randint(towns, (60000,), generator=draw)
    near = torch.rand(60000, generator=draw) < torch.where(region[source] == region[target], 0.25, 0.02)
    source = source[near]
    target = target[near]
    features = torch.randn(towns, 16, generator=draw)
    features[:, :6] += 0.4 * functional.one_hot(region, 6)
    known = torch.rand(towns, generator=draw) < 0.5
    labels = torch.where(torch.rand(towns, generator=draw) < wrong, (region + 1) % 6, region)
    degree = torch.zeros(towns).index_add(0, target, torch.ones(len(target))).clamp(min=1)

    class Sage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.ModuleList([nn.Linear(22, 48), nn.Linear(48, 6)])
            self.of_neighbors = nn.ModuleList([nn.Linear(22, 48, bias=False), nn.Linear(48, 6, bias=False)])

        def forward(self, inputs: Tensor) -> Tensor:
            for i in range(2):
                mean = torch.zeros_like(inputs).index_add(0, target, inputs[source]) / degree[:, None]
                inputs = self.own[i](inputs) + self.of_neighbors[i](mean)
                if i == 0:
                    inputs = functional.dropout(inputs.relu(), 0.3, training=self.training)
            return inputs

    sage = Sage()
    optimizer = torch.optim.Adam(sage.parameters(), lr=lr, weight_decay=1e-5)

    def with_labels(shown: Tensor) -> Tensor:
        return torch.cat([features, functional.one_hot(labels, 6) * shown[:, None]], 1)

    @torch.no_grad()
    def accuracy() -> float:
        sage.eval()
        found = sage(with_labels(known)).argmax(1)
        sage.train()
        return float((found == region)[~known].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(sage=sage, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            shown = known & (torch.rand(towns) < 0.5)
            asked = known & ~shown
            loss = functional.cross_entropy(sage(with_labels(shown))[asked], labels[asked])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(region=(1.0, loss)))
            step.update(optimizer)
            if step.every(15):
                with run.evaluation("other towns"):
                    step.record({"Test/accuracy": accuracy()})
    return accuracy()


def plumage(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    negatives: str = "of other birds",
    margin: float = 0.3,
    total: int = 300,
) -> float:
    """Learn to tell birds apart; returns how often the nearest of other pictures of new birds shows the same bird.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        negatives: pictures of which the closest one is pushed away: those "of other birds", or "all" but the same one.
        margin: margin between distances.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(13 * seed + 2)
    mix = torch.randn(12, 64, generator=draw)
    glare = torch.randn(20, 64, generator=draw)

    def pictures(birds: int, each: int) -> tuple[Tensor, Tensor]:
        who = torch.arange(birds).repeat_interleave(each)
        feathers = torch.randn(birds, 12, generator=draw)[who] + 0.25 * torch.randn(len(who), 12, generator=draw)
        light = torch.randn(len(who), 20, generator=draw)
        return (feathers @ mix).tanh() + 0.35 * light @ glare + 0.2 * torch.randn(len(who), 64, generator=draw), who

    x, who = pictures(80, 25)
    held, held_who = pictures(40, 8)
    embed = nn.Sequential(nn.Linear(64, 128), nn.PReLU(), nn.Linear(128, 24))
    adam = torch.optim.Adam(embed.parameters(), lr=lr)

    def hardest(batch: Tensor, birds: Tensor) -> Terms:
        found = functional.normalize(embed(batch), dim=1)
        away = (2 - 2 * found @ found.T).clamp(min=1e-6).sqrt()
        same = birds[:, None] == birds
        near = same if negatives == "of other birds" else torch.eye(len(birds), dtype=torch.bool)
        positive = (away - 9 * ~same).amax(1)
        negative = (away + 9 * near).amin(1)
        return Terms(triplet=(1.0, (positive - negative + margin).relu().mean()))

    @torch.no_grad()
    def recall() -> float:
        found = functional.normalize(embed(held), dim=1)
        close = found @ found.T - 2 * torch.eye(len(found))
        return float((held_who[close.argmax(1)] == held_who).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(embed=embed, adam=adam)
        run.resume()
        for step in run.steps(total):
            birds = torch.randperm(80)[:20]
            rows = (25 * birds[:, None] + torch.randint(25, (20, 5))).flatten()
            terms = hardest(x[rows], who[rows])
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(60):
                with run.evaluation("new birds"):
                    step.record({"Val/recall_at_1": recall()})
    return recall()


def glances(
    folder: Path,
    seed: int,
    *,
    lr: float = 0.05,
    still: bool = True,
    total: int = 300,
) -> float:
    """Learn without labels from two glances at the same thing; returns the accuracy of nearest neighbors.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        still: whether the side that is predicted is held still.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(73 * seed + 1)
    kinds = 1.2 * torch.randn(8, 10, generator=draw)
    mix = torch.randn(10, 48, generator=draw) / 3
    clutter = torch.randn(30, 48, generator=draw) / 3

    def things(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(8, (count,), generator=draw)
        return kinds[kind] + 0.5 * torch.randn(count, 10, generator=draw), kind

    def glance(thing: Tensor, chance: torch.Generator | None = None) -> Tensor:
        light = torch.randn(len(thing), 30, generator=chance)
        return thing @ mix + 1.3 * light @ clutter

    thing, _ = things(2500)
    bank, bank_kind = things(600)
    asked, asked_kind = things(300)
    bank_seen = glance(bank, draw)
    asked_seen = glance(asked, draw)
    encoder = nn.Sequential(
        nn.Linear(48, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32), nn.BatchNorm1d(32, affine=False)
    )
    predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    model = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, total)

    def similar(predicted: Tensor, seen: Tensor) -> Tensor:
        return -functional.cosine_similarity(predicted, seen.detach() if still else seen).mean()

    @torch.no_grad()
    def neighbors() -> float:
        model.eval()
        a = functional.normalize(encoder(asked_seen), dim=1)
        b = functional.normalize(encoder(bank_seen), dim=1)
        model.train()
        votes = bank_kind[(a @ b.T).topk(9, dim=1).indices]
        return float((votes.mode(1).values == asked_kind).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, sgd=sgd, cosine=cosine)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(thing), (128,))
            first = encoder(glance(thing[rows]))
            second = encoder(glance(thing[rows]))
            terms = Terms(
                first=(0.5, similar(predictor(first), second)), second=(0.5, similar(predictor(second), first))
            )
            sgd.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(sgd)
            cosine.step()
            if step.every(50):
                with torch.no_grad():
                    spread = functional.normalize(first, dim=1).std(0).mean()
                step.record({"Embedding/std": float(spread)})
                with run.evaluation("neighbors"):
                    step.record({"Eval/knn": neighbors()})
    return neighbors()
