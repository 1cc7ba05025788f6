"""Relations: links of a network, forces between atoms, captions of pictures, wards that do not share their data."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

NODES = 240


def network(seed: int) -> tuple[Tensor, Tensor]:
    """Return features of nodes [240, 12], and links [m, 2] between nodes that are near in a hidden space."""
    draw = torch.Generator().manual_seed(43 * seed + 1)
    place = torch.randn(NODES, 3, generator=draw)
    apart = torch.cdist(place, place) + 0.3 * torch.randn(NODES, NODES, generator=draw).abs()
    near = torch.triu(apart < 0.95, diagonal=1)
    features = place @ torch.randn(3, 12, generator=draw) + 2.0 * torch.randn(NODES, 12, generator=draw)
    return features, near.nonzero()


class Rounds(nn.Module):
    """Rounds of means over neighbors.

    Args:
        depth: number of rounds.
        skip: whether a round adds to its input.
    """

    def __init__(self, depth: int, *, skip: bool) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.rounds = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.skip = skip
        self.score = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor, links: Tensor) -> Tensor:
        """Return a vector per node."""
        both = torch.cat([links, links.flip(1)])
        degree = torch.ones(len(x)).index_add(0, both[:, 1], torch.ones(len(both)))
        h = self.first(x)
        for layer in self.rounds:
            mean = h.clone().index_add(0, both[:, 1], h[both[:, 0]]) / degree[:, None]
            h = layer(mean).relu() + h if self.skip else layer(mean).relu()
        return h

    def pairs(self, h: Tensor, pairs: Tensor) -> Tensor:
        """Return a score per pair."""
        return self.score(h[pairs[:, 0]] * h[pairs[:, 1]])[:, 0]


def auc(scores: Tensor, truth: Tensor) -> float:
    """Return the area under the curve."""
    yes = scores[truth > 0.5]
    no = scores[truth < 0.5]
    return float((yes[:, None] > no[None]).float().mean() + 0.5 * (yes[:, None] == no[None]).float().mean())


def links(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    depth: int = 2,
    skip: bool = True,
    negatives: str = "random",
    total: int = 150,
) -> float:
    """Predict links; returns the area under the curve for held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        depth: number of rounds.
        skip: whether a round adds to its input.
        negatives: pairs without a link: "random", or "links" by a wrong index.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, found = network(seed)
    draw = torch.Generator().manual_seed(seed)
    found = found[torch.randperm(len(found), generator=draw)]
    cut = len(found) // 5
    held = found[:cut]
    known = found[cut:]
    strangers = torch.randint(NODES, (cut, 2), generator=draw)
    model = Rounds(depth, skip=skip)
    opt = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4)

    @torch.no_grad()
    def held_auc() -> float:
        h = model(x, known)
        return auc(model.pairs(h, torch.cat([held, strangers])), torch.cat([torch.ones(cut), torch.zeros(cut)]))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt)
        run.resume()
        for step in run.steps(total):
            mixed = known[torch.randperm(len(known))]
            asked = mixed[: len(mixed) // 4]
            message = mixed[len(mixed) // 4 :]
            h = model(x, message)
            none = torch.randint(NODES, asked.shape)
            if negatives == "links":
                none = known[torch.randint(len(known), (len(asked),))]
            logits = model.pairs(h, torch.cat([asked, none]))
            truth = torch.cat([torch.ones(len(asked)), torch.zeros(len(none))])
            bce = functional.binary_cross_entropy_with_logits(logits, truth)
            opt.zero_grad()
            bce.backward()
            step.observe(Terms(bce=(1.0, bce)))
            step.update(opt)
            if step.every(30):
                with run.evaluation("held-out links"):
                    step.record({"Val/auc": held_auc(), "Train/auc": auc(logits.detach(), truth)})
    return held_auc()


ATOMS = 8


def crystal(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return places [n, 8, 3] of atoms of a bent cube, energies, and forces, of a Morse potential."""
    draw = torch.Generator().manual_seed(71 * seed + salt)
    cube = torch.cartesian_prod(*[torch.tensor([0.0, 1.1])] * 3)
    places = (cube + 0.13 * torch.randn(count, ATOMS, 3, generator=draw)).requires_grad_()
    pairs = torch.triu_indices(ATOMS, ATOMS, 1)
    apart = (places[:, pairs[0]] - places[:, pairs[1]]).norm(dim=2)
    energy = ((1 - (-2.2 * (apart - 1.1)).exp()).square() - 1).sum(1)
    (slope,) = torch.autograd.grad(energy.sum(), places)
    return places.detach(), energy.detach(), -slope


class Potential(nn.Module):
    """Sums a learned function over all pairs of atoms.

    Args:
        itself: whether a pair of an atom with itself is masked after its distance was computed.
    """

    def __init__(self, *, itself: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
        self.center = torch.linspace(0.5, 2.7, 12)
        self.pairs = torch.triu_indices(ATOMS, ATOMS, 1)
        self.itself = itself

    def forward(self, places: Tensor) -> Tensor:
        """Return the energies."""
        if self.itself:
            apart = (places[:, :, None] - places[:, None]).square().sum(3).sqrt()
            each = self.pair(apart) * (1 - torch.eye(ATOMS))
            return each.sum((1, 2)) / 2
        apart = (places[:, self.pairs[0]] - places[:, self.pairs[1]]).square().sum(2).sqrt()
        return self.pair(apart).sum(1)

    def pair(self, apart: Tensor) -> Tensor:
        """Return the energies of pairs at distances."""
        return self.net((-(apart[..., None] - self.center).square() / 0.08).exp())[..., 0]


def argon(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    itself: bool = False,
    sign: float = -1.0,
    energies: float = 0.1,
    total: int = 140,
) -> float:
    """Learn a potential from energies and forces; returns the explained variance of held-out forces.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        itself: whether pairs of an atom with itself are masked after their distance was computed.
        sign: of the slope that is a force.
        energies: weight of the energies.
        total: number of steps.
    """
    torch.manual_seed(seed)
    places, energy, force = crystal(seed, 400, 1)
    held_places, _, held_force = crystal(seed, 100, 2)
    level = energy.mean()
    model = Potential(itself=itself)
    opt = torch.optim.AdamW(model.parameters(), lr=lr, amsgrad=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)

    def found(at: Tensor, *, graph: bool) -> tuple[Tensor, Tensor]:
        at = at.clone().requires_grad_()
        made = model(at)
        (slope,) = torch.autograd.grad(made.sum(), at, create_graph=graph)
        return made, slope

    def explained() -> float:
        with torch.enable_grad():
            _, slope = found(held_places, graph=False)
        return 1 - float((-slope - held_force).square().mean() / held_force.square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(places), (16,))
            made, slope = found(places[rows], graph=True)
            terms = Terms(
                energy=(energies, (made - (energy[rows] - level)).square().mean()),
                force=(1.0, (sign * slope - force[rows]).square().mean()),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt, clip=10.0)
            schedule.step()
            if step.every(28):
                with run.evaluation("held-out crystals"):
                    step.record({"Test/force_r2": explained()})
    score = explained()
    return score if math.isfinite(score) else -1e9


def captions(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    order: str = "together",
    sides: int = 2,
    total: int = 200,
) -> float:
    """Match pictures and captions as CLIP does; returns the share of captions whose picture is found among 100.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        order: "together", or "apart", where each loader shuffles for itself.
        sides: number of sides of the loss.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(31 * seed + 2)
    topic = torch.randn(3100, 6, generator=draw)
    seen = (topic @ torch.randn(6, 40, generator=draw)).tanh() + 0.5 * torch.randn(3100, 40, generator=draw)
    word = (topic @ torch.randn(6, 30, generator=draw) + torch.randn(3100, 30, generator=draw)).topk(5, 1).indices
    eye = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 24))
    words = nn.EmbeddingBag(30, 64, mode="mean")
    tongue = nn.Sequential(nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 24))
    heat = nn.Parameter(torch.tensor(2.66))
    parts = nn.ModuleDict({"eye": eye, "words": words, "tongue": tongue})
    optimizer = torch.optim.AdamW([*parts.parameters(), heat], lr=lr, betas=(0.9, 0.98), weight_decay=0.02)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    def scores(pictures: Tensor, texts: Tensor) -> Tensor:
        left = functional.normalize(eye(pictures), dim=1)
        right = functional.normalize(tongue(words(texts)), dim=1)
        return heat.exp().clamp(max=100.0) * left @ right.T

    @torch.no_grad()
    def recall() -> float:
        right = scores(seen[3000:], word[3000:]).argsort(0, descending=True)[:5]
        return float((right == torch.arange(100)).any(0).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(parts=parts, heat=nn.ParameterList([heat]), optimizer=optimizer, cosine=cosine)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(3000, (64,))
            other = rows if order == "together" else torch.randint(3000, (64,))
            logits = scores(seen[rows], word[other])
            goal = torch.arange(64)
            terms = Terms(image=(0.5, functional.cross_entropy(logits, goal)))
            if sides == 2:
                terms = Terms(
                    image=(0.5, functional.cross_entropy(logits, goal)),
                    text=(0.5, functional.cross_entropy(logits.T, goal)),
                )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            cosine.step()
            if step.every(40):
                with run.evaluation("held-out pairs"):
                    step.record({"Eval/recall_at_5": recall(), "Clip/scale": heat.detach().exp()})
    return recall()


WARDS = 4


def wards(
    folder: Path,
    seed: int,
    *,
    lr: float = 0.1,
    local: int = 3,
    skew: float = 1.0,
    total: int = 90,
) -> float:
    """Train one network in four wards that share weights only; returns its accuracy on patients of all wards.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        local: updates of a ward between two joins.
        skew: how different the wards' patients are.
        total: number of steps, each an update of every ward.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(13 * seed + 5)
    center = torch.randn(4, 16, generator=draw)

    def admitted(count: int, ward: int) -> tuple[Tensor, Tensor]:
        chance = torch.ones(4)
        if ward >= 0:
            chance[ward] += 3 * skew
        y = torch.multinomial(chance, count, replacement=True, generator=draw)
        return 0.8 * center[y] + torch.randn(count, 16, generator=draw), y

    data = [admitted(300, ward) for ward in range(WARDS)]
    held_x, held_y = admitted(500, -1)
    server = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    clients = nn.ModuleList(copy.deepcopy(server) for _ in range(WARDS))
    opts = [torch.optim.SGD(client.parameters(), lr=lr) for client in clients]

    @torch.no_grad()
    def accuracy() -> float:
        return float((server(held_x).argmax(1) == held_y).float().mean())

    @torch.no_grad()
    def join() -> None:
        for name, shared in server.named_parameters():
            stack = torch.stack([client.get_parameter(name) for client in clients])
            shared.copy_(stack.mean(0))
            for client in clients:
                client.get_parameter(name).copy_(shared)

    kept: dict[str, Any] = {f"ward_{i}": opt for i, opt in enumerate(opts)}
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(server=server, clients=clients, **kept)
        run.resume()
        for step in run.steps(total):
            losses = {}
            for ward, (client, opt) in enumerate(zip(clients, opts, strict=True)):
                x, y = data[ward]
                rows = torch.randint(len(x), (32,))
                losses[f"ward_{ward}"] = (0.25, functional.cross_entropy(client(x[rows]), y[rows]))
                opt.zero_grad()
            terms = Terms(**losses)
            terms.total.backward()
            step.observe(terms)
            step.update(*opts)
            if step.index % local == local - 1:
                join()
            if step.every(15):
                with run.evaluation("patients of all wards"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()
