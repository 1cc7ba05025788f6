"""Strangers' loops on fields: walls of a canyon, an aurora that rays pass through, and the heat of a kettle."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def wall(place: Tensor, phase: float) -> Tensor:
    """Return about the signed distance to the wall of a canyon at places of -1 to 1, shape [count]."""
    turn = torch.atan2(place[:, 1], place[:, 0])
    return place.norm(dim=1) - 0.55 - 0.12 * (3 * turn + phase).sin() - 0.05 * (7 * turn).cos()


def encoded(place: Tensor, octaves: int, first: float = 1.0) -> Tensor:
    """Return places with the sines and cosines of their multiples."""
    parts = [place]
    for i in range(octaves):
        angle = math.pi * first * 2**i * place
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, -1)


def canyon(
    folder: Path,
    seed: int,
    *,
    octaves: int = 3,
    coordinates: str = "from -1 to 1",
    slope_weight: float = 0.02,
    bounded: float = 0.0,
    points: int = 1500,
    cosine: bool = False,
    evaluated: int = 60,
    lr: float = 4e-3,
    total: int = 360,
) -> float:
    """Learn the distance to the walls of a canyon; returns the negative mean error on a fine grid, in hundredths.

    Args:
        folder: run folder.
        seed: seed.
        octaves: octaves of the encoding of places.
        coordinates: places "from -1 to 1", or in "meters" of 0 to 400.
        slope_weight: weight of the term that makes them one.
        bounded: largest distance that is learned; 0 for no bound.
        points: places that were measured.
        cosine: whether the rate falls to 0.
        evaluated: steps between evaluations; 0 for none.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(593 * seed + 2)
    phase = float(6 * torch.rand((), generator=draw))
    place = 2 * torch.rand(points, 2, generator=draw) - 1
    distance = wall(place, phase)
    axis = torch.linspace(-0.98, 0.98, 60)
    grid = torch.cartesian_prod(axis, axis)
    unit = nn.Softplus(beta=20)
    net = nn.Sequential(nn.Linear(2 + 4 * octaves, 64), unit, nn.Linear(64, 64), unit, nn.Linear(64, 1))
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total) if cosine else None

    def field(at: Tensor) -> Tensor:
        at = at if coordinates == "from -1 to 1" else 200 * (at + 1)
        return net(encoded(at, octaves))[:, 0]

    @torch.no_grad()
    def error() -> float:
        return float(100 * (field(grid) - wall(grid, phase)).abs()[wall(grid, phase).abs() < 0.3].mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        if schedule is not None:
            run.track(schedule=schedule)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(points, (200,))
            found = field(place[rows])
            aim = distance[rows]
            if bounded:
                found, aim = found.clamp(-bounded, bounded), aim.clamp(-bounded, bounded)
            terms = Terms(distance=(1.0, (found - aim).abs().mean()))
            if slope_weight:
                free = (2 * torch.rand(100, 2) - 1).requires_grad_(requires_grad=True)
                (slope,) = torch.autograd.grad(field(free).sum(), free, create_graph=True)
                terms |= Terms(eikonal=(slope_weight, (slope.norm(dim=1) - 1).square().mean()))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if schedule is not None:
                schedule.step()
            if evaluated and step.every(evaluated):
                with run.evaluation("fine grid"):
                    step.record({"eval/error": error()})
    return -error()


def glow(place: Tensor) -> tuple[Tensor, Tensor]:
    """Return how dense an aurora is at places of -1 to 1, shape [..., 2], and its color."""
    x, y = place.unbind(-1)
    dense = 12 * torch.exp(-((y - 0.3 * (4 * x).sin()) ** 2) / 0.01) * (x.abs() < 0.8)
    dense = dense + 10 * torch.exp(-((x - 0.4) ** 2 + (y + 0.55) ** 2) / 0.02)
    color = torch.stack([0.5 + 0.4 * (5 * x).sin(), 0.6 + 0.3 * (3 * y).cos(), 0.5 - 0.4 * (4 * x - 2 * y).sin()], -1)
    return dense, color


def rendered(dense: Tensor, color: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return the colors of rays and how much they are covered, of samples of shape [rays, samples]."""
    alpha = 1 - (-dense * width).exp()
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-7], 1), 1)[:, :-1]
    share = alpha * through
    return (share[..., None] * color).sum(1), share.sum(1)


class Sky(nn.Module):
    """Density and color at places.

    Attributes:
        opening: how a number becomes a density: "softplus" or "relu".
    """

    def __init__(self, octaves: int, opening: str, bias: float) -> None:
        super().__init__()
        self.octaves = octaves
        self.trunk = nn.Sequential(nn.Linear(2 + 4 * octaves, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.dense = nn.Linear(64, 1)
        self.color = nn.Linear(64, 3)
        self.opening = opening
        nn.init.constant_(self.dense.bias, bias)

    def forward(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return how dense the aurora is, and its color."""
        x = self.trunk(encoded(place, self.octaves))
        dense = self.dense(x)[..., 0]
        return functional.softplus(dense) if self.opening == "softplus" else dense.relu(), self.color(x).sigmoid()


def aurora(
    folder: Path,
    seed: int,
    *,
    octaves: int = 4,
    opening: str = "softplus",
    bias: float = 0.0,
    background: str = "white",
    jitter: bool = True,
    lr: float = 3e-3,
    total: int = 300,
) -> float:
    """Learn an aurora from rays through it; returns the signal-to-noise ratio of other rays, in dB.

    Args:
        folder: run folder.
        seed: seed.
        octaves: octaves of the encoding of places.
        opening: how a number becomes a density: "softplus" or "relu".
        bias: number that the densities begin with.
        background: what is behind the aurora in the loss: "white", as in the pictures, or "black".
        jitter: whether the samples of a ray are moved at random.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(599 * seed + 4)

    def rays(views: int) -> tuple[Tensor, Tensor]:
        turn = 6.2832 * torch.rand(views, 1, generator=draw)
        aside = torch.linspace(-0.32, 0.32, 32)
        origin = 2.2 * torch.stack([turn.cos(), turn.sin()], -1).expand(views, 32, 2)
        angle = turn + math.pi + aside
        return origin.reshape(-1, 2), torch.stack([angle.cos(), angle.sin()], -1).reshape(-1, 2)

    def shot(origin: Tensor, ray: Tensor) -> Tensor:
        depth = torch.linspace(1.0, 3.6, 200)
        color, covered = rendered(*glow(origin[:, None] + depth[:, None] * ray[:, None]), torch.tensor(2.6 / 200))
        return color + (1 - covered)[:, None]

    origin, ray = rays(40)
    photos = shot(origin, ray)
    held_origin, held_ray = rays(10)
    held = shot(held_origin, held_ray)
    sky = Sky(octaves, opening, bias)
    adam = torch.optim.Adam(sky.parameters(), lr=lr)

    def seen(start: Tensor, along: Tensor) -> Tensor:
        width = 2.6 / 48
        depth = 1.0 + width * (torch.arange(48) + (torch.rand(len(start), 48) if jitter else 0.5))
        color, covered = rendered(*sky(start[:, None] + depth[..., None] * along[:, None]), torch.tensor(width))
        return color + (1 - covered)[:, None] if background == "white" else color

    @torch.no_grad()
    def ratio() -> float:
        return float(-10 * (seen(held_origin, held_ray) - held).square().mean().log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(sky=sky, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(origin), (160,))
            loss = functional.mse_loss(seen(origin[rows], ray[rows]), photos[rows])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(color=(1.0, loss)))
            step.update(adam)
            if step.every(60):
                with run.evaluation("other rays"):
                    step.record({"eval/psnr": ratio()})
    return ratio()


def kettle(
    folder: Path,
    seed: int,
    *,
    activation: str = "tanh",
    edge_weight: float = 10.0,
    optimizer: str = "adam",
    lr: float = 5e-3,
    evaluated: int = 80,
    total: int = 500,
) -> float:
    """Solve for the heat in the wall of a kettle over time; returns the negative relative error of the solution.

    Args:
        folder: run folder.
        seed: seed.
        activation: "tanh" or "relu".
        edge_weight: weight of the values at the beginning and at the edges.
        optimizer: "adam" or "lbfgs".
        lr: learning rate.
        evaluated: steps between evaluations; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    unit = nn.Tanh() if activation == "tanh" else nn.ReLU()
    net = nn.Sequential(nn.Linear(2, 40), unit, nn.Linear(40, 40), unit, nn.Linear(40, 1))
    if optimizer == "adam":
        chosen: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    else:
        chosen = torch.optim.LBFGS(net.parameters(), lr=lr, max_iter=10, line_search_fn="strong_wolfe")

    def truth(place: Tensor) -> Tensor:
        x, t = place.unbind(1)
        slow = (-0.05 * math.pi**2 * t).exp() * (math.pi * x).sin()
        return slow + 0.5 * (-0.05 * 9 * math.pi**2 * t).exp() * (3 * math.pi * x).sin()

    def losses(inside: Tensor, edge: Tensor) -> Terms:
        inside = inside.clone().requires_grad_(requires_grad=True)
        heat = net(inside)
        (first,) = torch.autograd.grad(heat.sum(), inside, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)
        residual = first[:, 1] - 0.05 * second[:, 0]
        known = functional.mse_loss(net(edge)[:, 0], truth(edge))
        return Terms(equation=(1.0, residual.square().mean()), edges=(edge_weight, known))

    def places() -> tuple[Tensor, Tensor]:
        inside = torch.rand(160, 2) * torch.tensor([1.0, 2.0])
        start = torch.stack([torch.rand(60), torch.zeros(60)], 1)
        sides = torch.stack([torch.randint(2, (40,)).float(), 2 * torch.rand(40)], 1)
        return inside, torch.cat([start, sides])

    axis = torch.linspace(0, 1, 40)
    grid = torch.cartesian_prod(axis, 2 * axis)

    @torch.no_grad()
    def error() -> float:
        return float((net(grid)[:, 0] - truth(grid)).norm() / truth(grid).norm())

    fixed = places()
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, chosen=chosen)
        run.resume()
        for step in run.steps(total):
            if optimizer == "lbfgs":

                def closure() -> Terms:
                    chosen.zero_grad()
                    terms = losses(*fixed)
                    terms.total.backward()
                    return terms

                step.update(chosen, closure=closure)
            else:
                terms = losses(*places())
                chosen.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(chosen)
            if evaluated and step.every(evaluated):
                with run.evaluation("whole wall"):
                    step.record({"eval/error": error()})
    return -error()
