"""Relations: properties of molecules, counts of claims, retrieval by two towers, weights with a distribution."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

ATOMS = 8
BONDS = 10


def molecules(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return kinds of atoms [count, 8], bonds [count, 10, 2] and a property of each molecule."""
    draw = torch.Generator().manual_seed(83 * seed + salt)
    kinds = torch.randint(4, (count, ATOMS), generator=draw)
    ring = torch.stack([torch.arange(ATOMS), (torch.arange(ATOMS) + 1) % ATOMS], 1).expand(count, -1, -1)
    chords = torch.stack(
        [torch.randint(4, (count, 2), generator=draw), torch.randint(4, 8, (count, 2), generator=draw)], 2
    )
    bonds = torch.cat([ring, chords], 1)
    strength = torch.tensor([[0.0, 1.0, 0.3, 0.0], [1.0, 0.0, 0.0, 0.8], [0.3, 0.0, 1.2, 0.0], [0.0, 0.8, 0.0, -1.0]])
    ends = kinds.gather(1, bonds.flatten(1)).view(count, BONDS, 2)
    return kinds, bonds, 3 + strength[ends[..., 0], ends[..., 1]].sum(1) + 0.1 * torch.randn(count, generator=draw)


class Messages(nn.Module):
    """Sums messages along bonds, and reads a molecule out as the sum of its atoms.

    Args:
        depth: number of rounds of messages.
        residual: whether a round adds to its input.
    """

    def __init__(self, depth: int, *, residual: bool) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 32)
        self.rounds = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 32)) for _ in range(depth)
        )
        self.out = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
        self.residual = float(residual)

    def forward(self, kinds: Tensor, bonds: Tensor, owner: Tensor, count: int) -> Tensor:
        """Return one number per molecule, given its flat atoms and bonds."""
        atoms = self.kinds(kinds)
        for each in self.rounds:
            heard = torch.zeros_like(atoms).index_add(0, bonds[:, 1], atoms[bonds[:, 0]])
            heard = heard.index_add(0, bonds[:, 0], atoms[bonds[:, 1]])
            atoms = self.residual * atoms + each(torch.cat([atoms, heard], 1))
        return self.out(torch.zeros(count, 32).index_add(0, owner, atoms))[:, 0]


def bonded(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    offsets: bool = True,
    pooled: str = "own",
    sorted_inputs: bool = False,
    restored: bool = True,
    depth: int = 2,
    residual: bool = True,
    loss: str = "mse",
    accumulates: bool = False,
    total: int = 200,
) -> float:
    """Predict a property of molecules with RAdam; returns the explained variance of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        offsets: whether the atoms of a batch are numbered on from one molecule to the next in its bonds.
        pooled: "own", or "batch" (atoms are dealt out to the molecules in turn).
        sorted_inputs: whether the molecules were sorted by their atoms, but not their properties.
        restored: whether the evaluation takes predictions back to the unit of the property.
        depth: number of rounds of messages.
        residual: whether rounds add to their input.
        loss: "mse", or "column" (targets of shape [n, 1]).
        accumulates: whether gradients are never cleared.
        total: number of steps.
    """
    torch.manual_seed(seed)
    kinds, bonds, y = molecules(seed, 1200, 1)
    held_kinds, held_bonds, held_y = molecules(seed, 200, 2)
    if sorted_inputs:
        order = kinds.float().mean(1).argsort()
        kinds, bonds = kinds[order], bonds[order]
    mean, std = y.mean(), y.std()
    net = Messages(depth, residual=residual)
    radam = torch.optim.RAdam(net.parameters(), lr=rate)

    def predicted(kinds: Tensor, bonds: Tensor) -> Tensor:
        count = len(kinds)
        if offsets:
            bonds = bonds + ATOMS * torch.arange(count)[:, None, None]
        owner = torch.arange(count * ATOMS)
        owner = owner // ATOMS if pooled == "own" else owner % count
        return net(kinds.flatten(), bonds.flatten(0, 1), owner, count)

    @torch.no_grad()
    def explained() -> float:
        made = torch.cat([predicted(k, b) for k, b in zip(held_kinds.split(50), held_bonds.split(50), strict=True)])
        if restored:
            made = made * std + mean
        return 1 - float((made - held_y).square().mean() / held_y.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, radam=radam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(kinds), (50,))
            truth = (y[chosen] - mean) / std
            made = predicted(kinds[chosen], bonds[chosen])
            squares = (made - (truth[:, None] if loss == "column" else truth)).square()
            if not accumulates:
                radam.zero_grad()
            squares.mean().backward()
            step.observe(Terms(property=(1.0, squares.mean())))
            step.update(radam)
            if step.every(40):
                with run.evaluation("held-out molecules"):
                    step.record({"Eval/explained": explained()})
    found = explained()
    return found if math.isfinite(found) else -1e9


REGIONS = 30


def policies(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features [count, 6], regions, years of exposure and numbers of claims."""
    draw = torch.Generator().manual_seed(41 * seed + salt)
    shared = torch.Generator().manual_seed(41 * seed)
    effect = 0.8 * torch.randn(REGIONS, generator=shared)
    weight = 0.35 * torch.randn(6, generator=shared)
    x = torch.randn(count, 6, generator=draw)
    region = torch.randint(REGIONS, (count,), generator=draw)
    years = 0.2 + 0.8 * torch.rand(count, generator=draw)
    claims = torch.poisson(years * (x @ weight + effect[region] - 0.3).exp(), generator=draw)
    return x, region, years, claims


def claims(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    output: str = "exp",
    days: bool = False,
    logs: int = 0,
    leaks: bool = False,
    coded: str = "once",
    wrong_row: int = -1,
    worst: bool = False,
    sparse: bool = False,
    decay: float = 0.0,
    total: int = 300,
) -> float:
    """Count claims; returns the explained deviance of held-out policies, or the negative mean error of sound rows.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        output: "exp", or "relu" (whose logarithm has no bound).
        days: whether the held-out exposures are in days.
        logs: how often log1p is applied to the training targets.
        leaks: whether the paid sum, known only afterward, is a feature; it is empty in the evaluation.
        coded: regions are numbered "once", or "twice" (anew in the evaluation).
        wrong_row: row with a thousandfold number of claims; -1 for none.
        worst: whether the loop names its rows, and the figure is the worst row's loss over the spread of the others.
        sparse: whether the region table has sparse gradients, and an optimizer of its own.
        decay: weight of the squares of all weights.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, region, years, y = policies(seed, 2000, 1)
    held_x, held_region, held_years, held_y = policies(seed, 600, 2)
    paid = torch.where(y > 0, y + 0.3 * torch.randn(len(y)), 0.0)
    x = torch.cat([x, (paid if leaks else torch.zeros(len(x)))[:, None]], 1)
    held_x = torch.cat([held_x, torch.zeros(len(held_x), 1)], 1)
    if days:
        held_years = 365 * held_years
    if coded == "twice":
        held_region = torch.randperm(REGIONS)[held_region]
    if wrong_row >= 0:
        y[wrong_row] = 4000.0
    for _ in range(logs):
        y = y.log1p()
    table = nn.Embedding(REGIONS, 6, sparse=sparse)
    net = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Linear(48, 1))
    adam = torch.optim.Adam([*net.parameters(), *([] if sparse else table.parameters())], lr=rate)
    lazy = torch.optim.SparseAdam(table.parameters(), lr=3 * rate) if sparse else None

    def expected(x: Tensor, region: Tensor, years: Tensor) -> Tensor:
        raw = net(torch.cat([x, table(region)], 1))[:, 0]
        return years * (functional.relu(raw) if output == "relu" else raw.clamp(max=8).exp())

    def losses(made: Tensor, truth: Tensor) -> Tensor:
        return made - truth * (made if output == "relu" else made + 1e-8).log()

    def deviance(made: Tensor, truth: Tensor) -> float:
        return float((torch.xlogy(truth, truth / made) - truth + made).mean())

    @torch.no_grad()
    def explained() -> float:
        made = expected(held_x, held_region, held_years).clamp_min(1e-8)
        none = torch.full_like(made, float(held_y.mean()))
        return 1 - deviance(made, held_y) / deviance(none, held_y)

    kept: dict[str, Any] = {"lazy": lazy} if lazy is not None else {}
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, table=table, adam=adam, **kept)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (128,))
            each = losses(expected(x[chosen], region[chosen], years[chosen]), y[chosen])
            weights = sum(parameter.square().sum() for parameter in net.parameters()) if decay else 0.0
            loss = each.mean() + decay * weights
            adam.zero_grad()
            if lazy is not None:
                lazy.zero_grad()
            loss.backward()
            if worst:
                step.observe(
                    Terms(deviance=(1.0, loss)),
                    sample=[f"policy {i}" for i in chosen.tolist()],
                    sample_loss=each.detach(),
                )
            else:
                step.observe(Terms(deviance=(1.0, loss)))
            step.update(adam, *([] if lazy is None else [lazy]))
            if step.every(60):
                with run.evaluation("held-out policies"):
                    step.record({"Test/explained_deviance": explained()})
    found = explained()
    return found if math.isfinite(found) else -1e9


ITEMS = 200


def towers(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.02,
    temperature: float = 0.2,
    shift: int = 0,
    cut: bool = False,
    item_optimizer: bool = True,
    normalized: bool = True,
    sparse: bool = True,
    batch: int = 64,
    total: int = 220,
) -> float:
    """Find the item that a query asks for; returns the recall among the first five for held-out queries.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate of the table of items.
        temperature: divisor of the similarities.
        shift: distance between a query and the item that the loss takes for its own.
        cut: whether the items are looked up without a gradient.
        item_optimizer: whether an optimizer steps the items.
        normalized: whether vectors have unit length.
        sparse: whether the table of items has sparse gradients.
        batch: number of pairs in a batch.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(29 * seed + 1)
    secret = torch.randn(ITEMS, 8, generator=draw)
    way = torch.randn(8, 20, generator=draw)

    def asked(count: int) -> tuple[Tensor, Tensor]:
        item = torch.randint(ITEMS, (count,), generator=draw)
        return (secret[item] + 0.35 * torch.randn(count, 8, generator=draw)) @ way / 3, item

    queries, wanted = asked(3000)
    held, held_wanted = asked(400)
    table = nn.Embedding(ITEMS, 12, sparse=sparse)
    tower = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 12))
    adam = torch.optim.AdamW(tower.parameters(), lr=5e-3)
    of_items = (
        torch.optim.SparseAdam(table.parameters(), lr=rate) if sparse else torch.optim.Adam(table.parameters(), lr=rate)
    )

    def unit(vectors: Tensor) -> Tensor:
        return functional.normalize(vectors, dim=1) if normalized else vectors

    @torch.no_grad()
    def recall() -> float:
        near = unit(tower(held)) @ unit(table.weight).T
        return float((near.topk(5, 1).indices == held_wanted[:, None]).any(1).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(tower=tower, table=table, adam=adam, of_items=of_items)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(queries), (batch,))
            with torch.set_grad_enabled(not cut):
                items = unit(table(wanted[chosen]))
            scores = unit(tower(queries[chosen])) @ items.T / temperature
            goal = (torch.arange(batch) + shift) % batch
            loss = functional.cross_entropy(scores, goal)
            adam.zero_grad()
            of_items.zero_grad()
            loss.backward()
            step.observe(Terms(in_batch=(1.0, loss)))
            if item_optimizer and not cut:
                step.update(adam, of_items)
            else:
                step.update(adam)
            if step.every(44):
                with run.evaluation("held-out queries"):
                    step.record({"Eval/recall_5": recall(), "Train/in_batch": loss.detach()})
    return recall()


class Spread(nn.Module):
    """A linear layer whose weights are drawn from normal distributions.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
        start: logarithm of the spread at the start.
    """

    def __init__(self, inputs: int, outputs: int, start: float) -> None:
        super().__init__()
        self.center = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
        self.log_spread = nn.Parameter(torch.full((outputs, inputs), start))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs with drawn weights in training, and with the centers in evaluation."""
        drawn = torch.randn_like(self.center) if self.training else 0.0
        return x @ (self.center + self.log_spread.exp() * drawn).T + self.bias

    def divergence(self) -> Tensor:
        """Return the divergence from a standard normal distribution."""
        return 0.5 * ((2 * self.log_spread).exp() + self.center.square() - 1 - 2 * self.log_spread).sum()


def doubts(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-2,
    weight: float = 1.0 / 1000,
    start: float = -4.0,
    total: int = 260,
) -> float:
    """Learn weights with distributions; returns the explained variance of held-out points.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        weight: weight of the divergence; one over the number of points is right.
        start: logarithm of the spread of the weights at the start.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(7 * seed + 3)
    x = 4 * torch.rand(1300, 2, generator=draw) - 2
    y = (2 * x[:, 0]).sin() + 0.5 * x[:, 1] * x[:, 0] + 0.2 * torch.randn(1300, generator=draw)
    layers = nn.ModuleList([Spread(2, 40, start), Spread(40, 40, start), Spread(40, 1, start)])
    adam = torch.optim.Adam(layers.parameters(), lr=rate)

    def predicted(x: Tensor) -> Tensor:
        return layers[2](layers[1](layers[0](x).tanh()).tanh())[:, 0]

    @torch.no_grad()
    def explained() -> float:
        layers.eval()
        return 1 - float((predicted(x[1000:]) - y[1000:]).square().mean() / y[1000:].var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(layers=layers, adam=adam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(1000, (100,))
            fit = (predicted(x[chosen]) - y[chosen]).square().mean() / (2 * 0.2**2)
            kl = sum((one.divergence() for one in layers if isinstance(one, Spread)), torch.zeros(()))
            terms = Terms(likelihood=(1.0, fit), divergence=(weight, kl))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam, clip=20.0)
            if step.every(52):
                with run.evaluation("held-out points"):
                    step.record({"Val/explained": explained()})
    return explained()
