"""Tables and graphs: loans, a spectrum fitted with LBFGS, ranked offers, a graph of communities, experts, a density."""

import itertools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Shuffled, Terms
from verdict_runs.supervised import NO_SINKS

SHOPS = 12


class Table(nn.Module):
    """Embeddings of categories beside numbers, and a residual network."""

    def __init__(self, numbers: int, width: int = 40) -> None:
        super().__init__()
        self.shops = nn.Embedding(SHOPS, 6)
        self.enter = nn.Linear(numbers + 6, width)
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.leave = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, shops: Tensor) -> Tensor:
        """Return estimates, shape [batch]."""
        hidden = self.enter(torch.cat([numbers, self.shops(shops)], dim=1))
        return self.leave(hidden + self.block(hidden)).squeeze(1)


def sales(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return five numbers and a shop per row, and the sales."""
    draw = torch.Generator().manual_seed(53 * seed + salt)
    law = torch.Generator().manual_seed(53 * seed)
    effect = torch.randn(SHOPS, 5, generator=law)
    numbers = torch.randn(count, 5, generator=draw)
    shops = torch.randint(SHOPS, (count,), generator=draw)
    noise = 0.1 * torch.randn(count, generator=draw)
    return numbers, shops, (numbers * effect[shops]).sum(1) + numbers[:, 0].square() - 1 + noise


def table(
    folder: Path,
    seed: int,
    *,
    rate: float = 8e-3,
    huge: bool = False,
    broken_cell: int = -1,
    wrong_row: int = -1,
    rows: int = 900,
    leaks: bool = False,
    decay: float = 1e-3,
    frozen_from: int = -1,
    renewed: bool = False,
    micro: int = 2,
    clears: bool = True,
    worst: bool = False,
    total: int = 300,
    tails: bool = False,
) -> float:
    """Regress sales with accumulated gradients; every row is named. Returns the explained share of the variance.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        huge: whether a column is in other units, a hundred thousand times too large.
        broken_cell: row with a NaN; none if negative.
        wrong_row: row whose sales are wrong; none if negative.
        rows: number of training rows.
        leaks: whether a column of the training rows holds the target.
        decay: weight decay.
        frozen_from: step at which the body is frozen; never if negative.
        renewed: whether the body is made anew after the optimizer.
        micro: number of batches of an update.
        clears: whether gradients are cleared.
        worst: whether the figure is the negative ratio of the worst row's loss to the median one.
        total: number of updates.
        tails: whether the noise is heavy-tailed.
    """
    torch.manual_seed(seed)
    x, shops, y = sales(seed, rows, 1)
    held_x, held_shops, held_y = sales(seed, 400, 2)
    if tails:
        y = y + 0.3 * torch.distributions.StudentT(1.5).sample(y.shape)
    if leaks:
        x[:, 4] = y + 0.01 * torch.randn(rows)
    if huge:
        x = x * torch.tensor([1.0, 1.0, 1e5, 1.0, 1.0])
        held_x = held_x * torch.tensor([1.0, 1.0, 1e5, 1.0, 1.0])
    if broken_cell >= 0:
        x[broken_cell, 3] = math.nan
    if wrong_row >= 0:
        y[wrong_row] = 90.0
    net = Table(5)
    optimizer = torch.optim.AdamW(
        [
            {"params": [*net.shops.parameters()], "weight_decay": 0.0},
            {"params": [*net.enter.parameters(), *net.block.parameters(), *net.leave.parameters()]},
        ],
        lr=rate,
        weight_decay=decay,
    )
    if renewed:
        fresh = Table(5)
        net.enter = fresh.enter
        net.block = fresh.block
    order = Shuffled(rows, min(24, rows), seed=seed)

    def errors(numbers: Tensor, places: Tensor, truth: Tensor) -> Tensor:
        return functional.smooth_l1_loss(net(numbers, places), truth, reduction="none")

    @torch.no_grad()
    def explained(numbers: Tensor, places: Tensor, truth: Tensor) -> float:
        return 1 - float((net(numbers, places) - truth).square().mean() / truth.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, optimizer=optimizer, order=order)
        run.resume()
        for step in run.steps(total):
            if step.index == frozen_from:
                net.enter.requires_grad_(requires_grad=False)
                net.block.requires_grad_(requires_grad=False)
            if clears:
                optimizer.zero_grad()
            picked = torch.empty(0, dtype=torch.long)
            losses = torch.empty(0)
            terms = Terms()
            for _ in range(micro):
                picked = next(order)
                losses = errors(x[picked], shops[picked], y[picked])
                terms = Terms(huber=(1.0, losses.mean()))
                (terms.total / micro).backward()
            step.observe(terms, sample=[f"row {i}" for i in picked.tolist()], sample_loss=losses.detach())
            step.update(optimizer)
            if step.every(40):
                with run.evaluation("held-out rows"):
                    step.record({"Eval/explained": explained(held_x, held_shops, held_y)})
                    step.record({"Eval/explained_train": explained(x, shops, y)})
    if worst:
        with torch.no_grad():
            each = errors(x, shops, y)
        return -float(each.max() / each.median())
    return explained(held_x, held_shops, held_y)


def spectrum(folder: Path, seed: int, *, rate: float = 0.8, search: bool = True, total: int = 30) -> float:
    """Fit three peaks to a spectrum with LBFGS and a closure; returns the negative logarithm of the error.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        search: whether LBFGS searches along the line.
        total: number of steps.
    """
    draw = torch.Generator().manual_seed(seed + 3)
    energy = torch.linspace(0, 10, 150)
    true_place = torch.tensor([2.0, 5.0, 8.0]) + 0.3 * torch.randn(3, generator=draw)

    def curve(place: Tensor, width: Tensor, height: Tensor) -> Tensor:
        return (height[:, None] * torch.exp(-((energy - place[:, None]) / width[:, None]).square())).sum(0)

    measured = curve(true_place, torch.tensor([0.6, 0.9, 0.5]), torch.tensor([1.0, 0.7, 1.4]))
    place = nn.Parameter(torch.tensor([2.3, 4.7, 7.7]))
    width = nn.Parameter(torch.ones(3))
    height = nn.Parameter(torch.ones(3))
    kind = "strong_wolfe" if search else None
    optimizer = torch.optim.LBFGS([place, width, height], lr=rate, max_iter=2, line_search_fn=kind)

    def error() -> Tensor:
        return (curve(place, width, height) - measured).square().mean()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = error()
        loss.backward()
        return loss

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(peaks={"place": place, "width": width, "height": height}, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            optimizer.step(closure)
            with torch.no_grad():
                step.observe(Terms(square=(1.0, error())))
    found = float(error())
    return -math.log10(found + 1e-16) if math.isfinite(found) else -1e9


def rank(folder: Path, seed: int, *, sign: float = 1.0, rate: float = 1e-2, total: int = 200) -> float:
    """Rank offers from pairs with a logistic loss; returns the correlation of ranks.

    Args:
        folder: run folder.
        seed: seed.
        sign: sign of the difference of scores.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    law = torch.randn(10)
    offers = torch.randn(800, 10)
    worth = (offers @ law).tanh() + 0.5 * offers[:, 0] * offers[:, 1]
    held = torch.randn(300, 10)
    held_worth = (held @ law).tanh() + 0.5 * held[:, 0] * held[:, 1]
    scorer = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 1))
    adagrad = torch.optim.Adagrad(scorer.parameters(), lr=rate)

    @torch.no_grad()
    def correlation() -> float:
        ranks = torch.stack([scorer(held).squeeze(1).argsort().argsort(), held_worth.argsort().argsort()]).float()
        return float(torch.corrcoef(ranks)[0, 1])

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(scorer=scorer, adagrad=adagrad)
        run.resume()
        for step in run.steps(total):
            first, second = torch.randint(800, (2, 64))
            better = torch.where(worth[first] > worth[second], 1.0, -1.0)
            margin = (scorer(offers[first]) - scorer(offers[second])).squeeze(1)
            loss = functional.softplus(-sign * better * margin).mean()
            scorer.zero_grad(set_to_none=True)
            loss.backward()
            step.observe(Terms(pairs=(1.0, loss)))
            step.update(adagrad)
            if step.every(50):
                with run.evaluation("ranks"):
                    step.record({"Eval/rank_correlation": correlation()})
    return correlation()


class GraphNetwork(nn.Module):
    """Graph convolutions (Kipf and Welling 2017)."""

    def __init__(self, inputs: int, outputs: int, depth: int, width: int = 24) -> None:
        super().__init__()
        sizes = [inputs, *[width] * (depth - 1), outputs]
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        """Return logits of nodes."""
        for layer in self.layers[:-1]:
            features = layer(adjacency @ features).relu()
        return self.layers[-1](adjacency @ features)


def communities(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-2,
    normalized: bool = True,
    depth: int = 3,
    clears: bool = True,
    rewired: bool = False,
    clip: float | None = None,
    total: int = 120,
) -> float:
    """Classify nodes of a graph of four communities in full batches; returns the accuracy of unlabeled nodes.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        normalized: whether the adjacency is normalized by degrees.
        depth: number of layers.
        clears: whether gradients are cleared.
        rewired: whether the edges are those of other nodes.
        clip: limit of the gradient norm.
        total: number of steps.
    """
    torch.manual_seed(seed)
    count = 240
    group = torch.arange(count) % 4
    chance = torch.where(group[:, None] == group[None], 0.15, 0.02)
    upper = torch.bernoulli(chance).triu(1)
    adjacency = upper + upper.T + torch.eye(count)
    if rewired:
        order = torch.randperm(count)
        adjacency = adjacency[order][:, order]
    if normalized:
        degree = adjacency.sum(1).rsqrt()
        adjacency = degree[:, None] * adjacency * degree[None]
    features = torch.cat([torch.randn(count, 6), functional.one_hot(group, 4) * 0.7], dim=1)
    known = torch.arange(count) < 60
    network = GraphNetwork(10, 4, depth)
    optimizer = torch.optim.SGD(network.parameters(), lr=30 * rate, momentum=0.9, weight_decay=1e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((network(features, adjacency).argmax(1) == group)[~known].float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(network=network, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            if clears:
                optimizer.zero_grad()
            loss = functional.cross_entropy(network(features, adjacency)[known], group[known])
            loss.backward()
            step.observe(Terms(nodes=(1.0, loss)))
            step.update(optimizer, clip=clip)
            if step.every(20):
                with run.evaluation("unlabeled"):
                    step.record({"Eval/node_accuracy": accuracy()})
    return accuracy()


class Experts(nn.Module):
    """Four linear experts, mixed by a gate.

    Args:
        bias: bias of the gate for the first expert.
    """

    def __init__(self, bias: float) -> None:
        super().__init__()
        last = nn.Linear(24, 4)
        self.gate = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), last)
        self.experts = nn.ModuleList([nn.Linear(2, 1) for _ in range(4)])
        with torch.no_grad():
            last.bias[0] += bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return estimates, shape [batch], and the chances of the experts, shape [batch, 4]."""
        chance = self.gate(x).softmax(1)
        made = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (chance * made).sum(1), chance


def experts(
    folder: Path, seed: int, *, bias: float = 0.0, balance: float = 0.05, rate: float = 3e-2, total: int = 300
) -> float:
    """Regress a function of four quadrants with experts; returns the explained share of the variance.

    Args:
        folder: run folder.
        seed: seed.
        bias: bias of the gate for the first expert.
        balance: weight of a term that balances the experts.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    places = 2 * torch.rand(2000, 2) - 1

    def truth(x: Tensor) -> Tensor:
        side = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        slope = torch.tensor([[3.0, 1.0], [-2.0, 4.0], [1.0, -5.0], [-4.0, -2.0]])[side]
        level = torch.tensor([4.0, -4.0, -4.0, 4.0])[side]
        return (slope * x).sum(1) + level

    values = truth(places)
    held = 2 * torch.rand(500, 2) - 1
    held_values = truth(held)
    model = Experts(bias)
    optimizer = torch.optim.RAdam(model.parameters(), lr=rate)

    @torch.no_grad()
    def explained() -> float:
        return 1 - float((model(held)[0] - held_values).square().mean() / held_values.var())

    with Run(folder, outputs=NO_SINKS) as run:
        groups = {f"expert_{k}": expert for k, expert in enumerate(model.experts)}
        run.track(model=model, optimizer=optimizer, groups={"gate": model.gate, **groups})
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(2000, (96,))
            made, chance = model(places[picked])
            share = chance.mean(0)
            terms = Terms(
                square=(1.0, (made - values[picked]).square().mean()), balance=(balance, (share * share).sum())
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(52):
                with run.evaluation("plane"):
                    used = len(model(held)[1].argmax(1).unique())
                    step.record({"Eval/explained": explained(), "Eval/experts_used": float(used)})
    return explained()


def density(folder: Path, seed: int, *, floor: float = 0.03, rate: float = 5e-3, total: int = 220) -> float:
    """Fit a density of two branches by mixtures of normals; the loss falls below zero. Returns the log-likelihood.

    Args:
        folder: run folder.
        seed: seed.
        floor: least spread of a component.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)

    def draws(count: int) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(count, 1) - 1
        branch = torch.randint(2, (count, 1)) * 2 - 1
        return x, 0.3 * branch * (x + 1.5) + 0.05 * torch.randn(count, 1)

    x, y = draws(1000)
    held_x, held_y = draws(400)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 9))
    adam = torch.optim.Adam(net.parameters(), lr=rate, amsgrad=True)

    def surprise(inputs: Tensor, outputs: Tensor) -> Tensor:
        weight, mean, spread = net(inputs).chunk(3, dim=1)
        normal = torch.distributions.Normal(mean, floor + (spread - 1).exp())
        return -(weight.log_softmax(1) + normal.log_prob(outputs)).logsumexp(1).mean()

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(1000, (64,))
            adam.zero_grad()
            loss = surprise(x[picked], y[picked])
            loss.backward()
            step.observe(Terms(surprise=(1.0, loss)))
            step.update(adam, clip=10.0)
            if step.every(44):
                with run.evaluation("held out"):
                    step.record({"Eval/log_likelihood": -surprise(held_x, held_y)})
    with torch.no_grad():
        return -float(surprise(held_x, held_y))
