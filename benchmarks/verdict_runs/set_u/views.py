"""Sound trainings without labels, and on networks that were trained before: contrast, twins, parts that are frozen."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

from .rows import mlp

KINDS = 5
"""Kinds of signals."""


def signals(n: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return signals of 32 values and their kind, which is their frequency; phase and size are chance."""
    kind = torch.randint(KINDS, (n,), generator=gen)
    phase = 6.2832 * torch.rand(n, 1, generator=gen)
    size = 0.6 + 0.8 * torch.rand(n, 1, generator=gen)
    time = torch.linspace(0, 6.2832, 32)
    wave = size * ((1.0 + kind[:, None]) * time + phase).sin()
    return wave + 0.3 * torch.randn(n, 32, generator=gen), kind


def view(x: Tensor) -> Tensor:
    """Return signals that are turned, scaled and disturbed."""
    turn = torch.randint(32, (len(x), 1))
    place = (torch.arange(32) + turn) % 32
    return x.gather(1, place) * (0.7 + 0.6 * torch.rand(len(x), 1)) + 0.1 * torch.randn_like(x)


def probe(features: Tensor, kind: Tensor, other: Tensor, truth: Tensor) -> float:
    """Return the accuracy of a linear probe by least squares."""
    mean, std = features.mean(0), features.std(0) + 1e-6
    known = functional.pad((features - mean) / std, (0, 1), value=1.0)
    asked = functional.pad((other - mean) / std, (0, 1), value=1.0)
    target = functional.one_hot(kind, KINDS).float()
    ridge = known.T @ known + 1.0 * torch.eye(known.shape[1])
    weights = torch.linalg.solve(ridge, known.T @ target)
    return float(((asked @ weights).argmax(1) == truth).float().mean())


class Twins(nn.Module):
    """Encoder, projector and predictor."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Unflatten(1, (1, 32)),
            nn.Conv1d(1, 16, 7, padding=3, padding_mode="circular"),
            nn.ReLU(),
            nn.Conv1d(16, 32, 7, padding=3, padding_mode="circular"),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections and predictions."""
        z = self.projector(self.encoder(x))
        return z, self.predictor(z)


def twins(folder: Path, seed: int, *, method: str = "simclr", total: int = 250) -> float:
    """Learn features of signals from pairs of views; returns the accuracy of a linear probe.

    Args:
        folder: run folder.
        seed: seed.
        method: "simclr" for a contrast of all pairs, "byol" for an average as the target, "simsiam" for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(71 * seed + 1)
    x, kind = signals(2000, gen)
    xv, truth = signals(600, gen)
    model = Twins()
    target = copy.deepcopy(model).requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)

    def alike(p: Tensor, z: Tensor) -> Tensor:
        return 2 - 2 * functional.cosine_similarity(p, z.detach(), dim=1).mean()

    def loss_of(a: Tensor, b: Tensor) -> Tensor:
        za, pa = model(a)
        zb, pb = model(b)
        if method == "simclr":
            z = functional.normalize(torch.cat([za, zb]), dim=1)
            scores = (z @ z.T / 0.2).fill_diagonal_(-1e9)
            n = len(a)
            return functional.cross_entropy(scores, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))
        if method == "byol":
            with torch.no_grad():
                za, zb = target(a)[0], target(b)[0]
        return 0.5 * (alike(pa, zb) + alike(pb, za))

    def judged() -> float:
        model.eval()
        with torch.no_grad():
            score = probe(model.encoder(x[:600]), kind[:600], model.encoder(xv), truth)
        model.train()
        return score

    with Run(folder, outputs=NO_SINKS) as run:
        if method == "byol":
            run.track(model=model, opt=opt, target=target)
        else:
            run.track(model=model, opt=opt)
        run.resume()
        for step in run.steps(total):
            batch = x[torch.randint(len(x), (128,))]
            loss = loss_of(view(batch), view(batch))
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(**{method: (1.0, loss)}))
            step.update(opt)
            with torch.no_grad():
                for old, new in zip(target.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.02)
            if step.every(50):
                with run.evaluation("linear probe"):
                    step.record({"eval/probe_accuracy": judged()})
    return judged()


class Adapted(nn.Module):
    """A linear layer that stays, and an update of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        return self.base(x) + x @ self.down.T @ self.up.T


def taught(net: nn.Module, x: Tensor, y: Tensor, steps: int = 150) -> nn.Module:
    """Train a network without any record, as one that was downloaded."""
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        i = torch.randint(len(x), (64,))
        loss = functional.cross_entropy(net(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


def tuned(folder: Path, seed: int, *, way: str = "head", total: int = 120) -> float:
    """Tune a network for kinds of signals to similar ones that are reversed; returns the accuracy on others.

    Args:
        folder: run folder.
        seed: seed.
        way: "head" to train the last layer alone, "lora" for updates of low rank, or "layers" for a rate that falls
            from layer to layer.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(73 * seed + 1)
    x, kind = signals(2000, gen)
    net = mlp(32, 64, 64, KINDS)
    taught(net, x, kind)
    xn, yn = signals(500, gen)
    xn = xn.flip(1) + 0.2
    xv, yv = signals(600, gen)
    xv = xv.flip(1) + 0.2
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    if way == "lora":
        net = nn.Sequential(*(Adapted(layer, 4) if isinstance(layer, nn.Linear) else layer for layer in net))
        opt = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=5e-3)
    elif way == "head":
        for layer in layers[:-1]:
            layer.requires_grad_(False)
        layers[-1].reset_parameters()
        opt = torch.optim.AdamW(layers[-1].parameters(), lr=1e-2)
    else:
        groups = [{"params": list(layer.parameters()), "lr": 2e-3 * 0.3**i} for i, layer in enumerate(layers[::-1])]
        opt = torch.optim.AdamW(groups)

    def accuracy() -> float:
        with torch.no_grad():
            return float((net(xv).argmax(1) == yv).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            if step.every(20):
                with run.evaluation("validation"):
                    step.record({"val/acc": accuracy()})
            i = torch.randint(len(xn), (32,))
            loss = functional.cross_entropy(net(xn[i]), yn[i], label_smoothing=0.1)
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(loss=(1.0, loss)))
            step.update(opt)
    return accuracy()


def pupil(folder: Path, seed: int, *, total: int = 250) -> float:
    """Distil a small network from the answers of a large one; returns the accuracy on other signals."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(79 * seed + 1)
    x, kind = signals(3000, gen)
    xv, yv = signals(600, gen)
    teacher = taught(mlp(32, 128, 128, KINDS), x, kind, 300).eval().requires_grad_(False)
    student = mlp(32, 40, KINDS)
    opt = torch.optim.Adam(student.parameters(), lr=3e-3)
    heat = 3.0

    def score() -> dict[str, float]:
        with torch.no_grad():
            said = student(xv).argmax(1)
            return {
                "val/accuracy": float((said == yv).float().mean()),
                "val/agreement": float((said == teacher(xv).argmax(1)).float().mean()),
            }

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, teacher=teacher, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(x), (64,))
            out = student(x[i])
            with torch.no_grad():
                soft = (teacher(x[i]) / heat).softmax(1)
            terms = Terms(
                soft=(heat**2, functional.kl_div((out / heat).log_softmax(1), soft, reduction="batchmean")),
                hard=(0.3, functional.cross_entropy(out, kind[i])),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(50):
                with run.evaluation("validation"):
                    step.record(score())
    return score()["val/accuracy"]
