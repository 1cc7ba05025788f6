"""Physics: an equation solved by a network, slices of a body from projections, orbits by an integrator."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

DAMPING = 0.5
STIFFNESS = 4.0
SECONDS = 3.0


def swing(time: Tensor) -> Tensor:
    """Return the exact motion of a damped spring."""
    pace = math.sqrt(STIFFNESS - DAMPING**2 / 4)
    return (-DAMPING / 2 * time).exp() * ((pace * time).cos() + DAMPING / (2 * pace) * (pace * time).sin())


def spring(
    folder: Path,
    seed: int,
    *,
    rate: float = 5e-3,
    residual: float = 1.0,
    start: float = 10.0,
    activation: str = "tanh",
    unit: float = 1.0,
    finishes: bool = False,
    total: int = 500,
) -> float:
    """Solve the equation of a damped spring; returns the negative mean error of the motion.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        residual: weight of the equation.
        start: weight of the initial place and speed.
        activation: "tanh" or "relu".
        unit: factor of the times at which the equation is trained.
        finishes: whether LBFGS makes the last twenty updates.
        total: number of steps.
    """
    torch.manual_seed(seed)
    unit_of = nn.Tanh if activation == "tanh" else nn.ReLU
    net = nn.Sequential(nn.Linear(1, 32), unit_of(), nn.Linear(32, 32), unit_of(), nn.Linear(32, 1))
    adam = torch.optim.Adam(net.parameters(), lr=rate)
    lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=10, line_search_fn="strong_wolfe")
    decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.997)
    grid = torch.linspace(0, SECONDS, 200)[:, None]

    def moved(time: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time = time.requires_grad_()
        place = net(time)
        (speed,) = torch.autograd.grad(place.sum(), time, create_graph=True)
        (force,) = torch.autograd.grad(speed.sum(), time, create_graph=True, allow_unused=True)
        return place, speed, torch.zeros_like(speed) if force is None else force

    def objective(time: Tensor) -> Terms:
        place, speed, force = moved(time)
        first, pace, _ = moved(torch.zeros(1, 1))
        return Terms(
            equation=(residual, (force + DAMPING * speed + STIFFNESS * place).square().mean()),
            start=(start, ((first - 1).square() + pace.square()).mean()),
        )

    @torch.no_grad()
    def error() -> float:
        return float((net(grid) - swing(grid)).abs().mean())

    fixed = grid.clone()

    def closure() -> Terms:
        lbfgs.zero_grad()
        terms = objective(fixed)
        terms.total.backward()
        return terms

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, lbfgs=lbfgs, decay=decay)
        run.resume()
        for step in run.steps(total):
            if finishes and step.index >= total - 20:
                step.update(lbfgs, closure=closure)
            else:
                terms = objective(unit * SECONDS * torch.rand(48, 1))
                adam.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(adam)
                decay.step()
            if step.every(100):
                with run.evaluation("motion"):
                    step.record({"Eval/error": error()})
    found = error()
    return -found if math.isfinite(found) else -1e9


DETECTORS = 24


def body(points: Tensor) -> Tensor:
    """Return the density of a body of three ellipses at points in [-1, 1]^2."""
    x, y = points.unbind(-1)
    found = torch.zeros_like(x)
    for cx, cy, rx, ry, weight in ((0, 0, 0.8, 0.6, 0.5), (0.3, 0.1, 0.2, 0.3, 0.5), (-0.35, -0.15, 0.25, 0.15, -0.4)):
        far = ((x - cx) / rx).square() + ((y - cy) / ry).square()
        found = found + weight * torch.sigmoid(14 * (1 - far))
    return found


def rays(angles: Tensor, offset: float = 0.0) -> Tensor:
    """Return points on parallel rays, shape [angles, detectors, 20, 2]."""
    across = (torch.linspace(-1, 1, DETECTORS) + offset)[:, None].expand(-1, 20)
    along = torch.linspace(-1, 1, 20)[None].expand(DETECTORS, -1)
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    return torch.stack([across * cos - along * sin, across * sin + along * cos], -1)


def slices(
    folder: Path,
    seed: int,
    *,
    rate: float = 5e-3,
    degrees: bool = False,
    offset: float = 0.0,
    frequency: float = 1.5,
    mirrored: int = -1,
    worst: bool = False,
    length: float = 1.0,
    noise: float = 0.01,
    total: int = 160,
) -> float:
    """Learn a body from its projections; returns the PSNR of the slice, or how far the worst projection is off.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        degrees: whether the loop takes degrees for radians.
        offset: offset of the detectors that the loop does not know.
        frequency: spread of the frequencies of the encoding.
        mirrored: projection that is stored mirrored; -1 for none.
        worst: whether the figure is the negative loss of the worst projection over that of the median one.
        length: factor of the measured projections, as of another unit of length.
        noise: noise of the measurement.
        total: number of steps.
    """
    torch.manual_seed(seed)
    count = 30
    angles = torch.arange(count) * math.pi / count
    measured = length * body(rays(angles, offset)).mean(-1)
    measured = measured + noise * torch.randn(measured.shape, generator=torch.Generator().manual_seed(seed))
    if mirrored >= 0:
        measured[mirrored] = measured[mirrored].flip(0)
    believed = angles * 180 / math.pi if degrees else angles
    waves = frequency * torch.randn(2, 24, generator=torch.Generator().manual_seed(seed + 9))
    field = nn.Sequential(nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1), nn.Softplus())
    adam = torch.optim.Adam(field.parameters(), lr=rate)
    line = torch.linspace(-1, 1, 40)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)

    def density(points: Tensor) -> Tensor:
        phase = 3.1416 * points @ waves
        return field(torch.cat([phase.sin(), phase.cos()], -1))[..., 0]

    def projected(chosen: Tensor) -> Tensor:
        return (density(rays(believed[chosen])).mean(-1) - measured[chosen]).square().mean(1)

    @torch.no_grad()
    def psnr() -> float:
        return -10 * math.log10(float((density(grid) - body(grid)).square().mean()) + 1e-12)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, adam=adam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(count, (3,))
            each = projected(chosen)
            terms = Terms(projection=(1.0, each.mean()))
            adam.zero_grad()
            terms.total.backward()
            names = [f"angle_{6 * i:03d}" for i in chosen.tolist()]
            step.observe(terms, sample=names, sample_loss=each.detach())
            step.update(adam)
            if step.every(32):
                with run.evaluation("slice"):
                    step.record({"Eval/psnr": psnr()})
    if worst:
        with torch.no_grad():
            each = projected(torch.arange(count))
        return -float(each.max() / each.median())
    return psnr()


SPAN = 16


def predators(seed: int, count: int, salt: int, pace: float) -> Tensor:
    """Return tracks of predators and prey, shape [count, 16, 2]."""
    state = 0.5 + 1.5 * torch.rand(count, 2, generator=torch.Generator().manual_seed(59 * seed + salt))
    rows = [state]
    for _ in range(SPAN - 1):
        for _ in range(10):
            prey, hunters = state.unbind(1)
            change = torch.stack([prey * (1 - hunters), hunters * (prey - 1)], 1)
            state = state + pace / 10 * change
        rows.append(state)
    return torch.stack(rows, 1)


def orbits(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-2,
    axes: str = "right",
    cuts: bool = False,
    clock: float = 1.0,
    grows: bool = False,
    gain: float = 1.0,
    clip: float | None = 1.0,
    order: str = "forward",
    total: int = 110,
) -> float:
    """Learn the law of predators and prey by integrating it; returns the negative error of held-out tracks.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        axes: "right", or "exchanged" (time and batch of the targets).
        cuts: whether tracks are windows that run over the ends of recordings.
        clock: factor of the time step of the evaluation.
        grows: whether the horizon gets longer during the training.
        gain: factor of the initial weights.
        clip: limit for the gradient norm.
        order: "forward", or "shuffled" (the moments of a track).
        total: number of steps.
    """
    torch.manual_seed(seed)
    pace = 0.25
    tracks = predators(seed, 300, 1, pace)
    if cuts:
        tracks = torch.cat([tracks[:, 8:], tracks[torch.randperm(300), :8]], 1)
    if order == "shuffled":
        tracks = torch.cat([tracks[:, :1], tracks[:, 1 + torch.randperm(SPAN - 1)]], 1)
    held = predators(seed, 80, 2, pace)
    law = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2))
    with torch.no_grad():
        for parameter in law.parameters():
            parameter.mul_(gain)
    adam = torch.optim.NAdam(law.parameters(), lr=rate)

    def integrated(state: Tensor, span: int, pace: float) -> Tensor:
        rows = [state]
        for _ in range(span - 1):
            half = state + pace / 2 * law(state)
            state = state + pace * law(half)
            rows.append(state)
        return torch.stack(rows, 1)

    @torch.no_grad()
    def error() -> float:
        made = integrated(held[:, 0], SPAN, clock * pace)
        return float((made - held).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(law=law, adam=adam)
        run.resume()
        for step in run.steps(total):
            truth = tracks[torch.randint(len(tracks), (SPAN,))]
            span = min(SPAN, 2 + step.index * SPAN // (total // 2)) if grows else SPAN
            made = integrated(truth[:, 0], span, pace)
            goal = truth.transpose(0, 1) if axes == "exchanged" else truth
            terms = Terms(track=(1.0, functional.mse_loss(made, goal[:, :span])))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam, clip=clip)
            if step.every(22):
                with run.evaluation("held-out tracks"):
                    step.record({"Val/error": error()})
    found = error()
    return -found if math.isfinite(found) else -1e9
