"""Fields: a flat world from its rays, the conductivity of a rod, a cloud of points by diffusion, soil by kriging."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

VIEWS = 24
COLUMNS = 24
NEAR = 1.0
FAR = 3.0


def flat_world(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the density and the color of a flat world at points in [-1, 1]^2."""
    density = torch.zeros(points.shape[:-1])
    color = torch.zeros(*points.shape[:-1], 3)
    discs = (
        (-0.35, 0.2, 0.28, (0.9, 0.2, 0.1)),
        (0.4, 0.3, 0.2, (0.1, 0.8, 0.2)),
        (0.1, -0.4, 0.25, (0.15, 0.3, 0.95)),
        (-0.5, -0.5, 0.14, (0.95, 0.9, 0.1)),
    )
    for x, y, radius, paint in discs:
        inside = torch.sigmoid(60 * (radius - (points - torch.tensor([x, y])).norm(dim=-1)))
        density = density + 25 * inside
        color = color + inside[..., None] * torch.tensor(paint)
    return density, color.clamp(0, 1)


def look(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return origins and directions [views, 24, 2] of the rays of cameras around the world."""
    toward = -torch.stack([angles.cos(), angles.sin()], -1)
    across = torch.stack([-toward[:, 1], toward[:, 0]], -1)
    offset = torch.linspace(-0.45, 0.45, COLUMNS)
    ray = functional.normalize(toward[:, None] + offset[None, :, None] * across[:, None], dim=-1)
    return (-2 * toward)[:, None].expand_as(ray), ray


def composed(density: Tensor, color: Tensor, size: float, behind: float) -> Tensor:
    """Return the colors of rays of samples [..., samples], before a gray background."""
    alpha = 1 - (-density * size).exp()
    left = torch.cat([torch.ones_like(alpha[..., :1]), (1 - alpha + 1e-7).cumprod(-1)], -1)
    weight = left[..., :-1] * alpha
    return (weight[..., None] * color).sum(-2) + left[..., -1:] * behind


class Flat(nn.Module):
    """A radiance field of two dimensions.

    Args:
        octaves: number of frequencies of the encoding.
    """

    def __init__(self, octaves: int) -> None:
        super().__init__()
        self.octaves = octaves
        self.net = nn.Sequential(
            nn.Linear(2 + 4 * octaves, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        )

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return densities and colors."""
        waves = [points]
        for i in range(self.octaves):
            waves += [(2.0**i * 2 * points).sin(), (2.0**i * 2 * points).cos()]
        raw = self.net(torch.cat(waves, -1))
        return 10 * functional.softplus(raw[..., 0] - 1), raw[..., 1:].sigmoid()


def flatland(
    folder: Path,
    seed: int,
    *,
    lr: float = 6e-3,
    octaves: int = 4,
    files: str = "by number",
    total: int = 220,
) -> float:
    """Learn a flat world from pictures of one row; returns the held-out ratio of signal to noise in decibels.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        octaves: number of frequencies of the encoding.
        files: order of the pictures: "by number", or "by name", where 10 stands before 2.
        total: number of steps.
    """
    torch.manual_seed(seed)
    angles = torch.arange(VIEWS) * 2 * math.pi / VIEWS
    held_angles = angles[::3] + math.pi / VIEWS
    fine = torch.linspace(NEAR, FAR, 200)

    def photos(of: Tensor) -> Tensor:
        origin, ray = look(of)
        return composed(*flat_world(origin[..., None, :] + fine[:, None] * ray[..., None, :]), 2 / 200, 0.5)

    pictures = photos(angles)
    if files == "by name":
        pictures = pictures[sorted(range(VIEWS), key=str)]
    held = photos(held_angles)
    field = Flat(octaves)
    adam = torch.optim.Adam(field.parameters(), lr=lr, eps=1e-15)
    decay = torch.optim.lr_scheduler.ExponentialLR(adam, 0.1 ** (1 / total))
    origins, rays = look(angles)

    def render(origin: Tensor, ray: Tensor, jitter: float) -> Tensor:
        t = NEAR + (FAR - NEAR) * (torch.arange(40) + 0.5 + jitter * (torch.rand(*ray.shape[:-1], 40) - 0.5)) / 40
        density, color = field(origin[..., None, :] + t[..., None] * ray[..., None, :])
        return composed(density, color, (FAR - NEAR) / 40, 0.5)

    @torch.no_grad()
    def psnr() -> float:
        error = (render(*look(held_angles), 0.0) - held).square().mean()
        return float(-10 * error.log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, adam=adam, decay=decay)
        run.resume()
        for step in run.steps(total):
            view = torch.randint(VIEWS, (128,))
            column = torch.randint(COLUMNS, (128,))
            made = render(origins[view, column], rays[view, column], 1.0)
            mse = functional.mse_loss(made, pictures[view, column])
            adam.zero_grad()
            mse.backward()
            step.observe(Terms(rgb=(1.0, mse)))
            step.update(adam)
            decay.step()
            if step.every(44):
                step.record({"Train/psnr": -10 * mse.detach().log10()})
                with run.evaluation("held-out views"):
                    step.record({"Eval/psnr": psnr()})
    return psnr()


TRUE = 0.3


def rod(t: Tensor, x: Tensor) -> Tensor:
    """Return the temperature of a rod whose ends are cold."""
    first = (-TRUE * math.pi**2 * t).exp() * (math.pi * x).sin()
    return first + 0.5 * (-TRUE * 4 * math.pi**2 * t).exp() * (2 * math.pi * x).sin()


def heat(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    held_by: str = "optimizer",
    swapped: bool = False,
    equation: float = 1.0,
    total: int = 600,
) -> float:
    """Find the conductivity of a rod from sensors (an inverse PINN); returns the negative error of its logarithm.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        held_by: "optimizer", or "nothing", for the conductivity.
        swapped: whether the readings of the sensors have place before time.
        equation: weight of the equation.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    sensors = torch.rand(200, 2, generator=draw)
    reading = rod(sensors[:, 0], sensors[:, 1]) + 0.01 * torch.randn(200, generator=draw)
    if swapped:
        sensors = sensors.flip(1)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    log_k = nn.Parameter(torch.tensor(0.7))
    groups: list[dict[str, Any]] = [{"params": net.parameters()}]
    if held_by == "optimizer":
        groups.append({"params": [log_k], "lr": 2 * lr})
    adam = torch.optim.Adam(groups, lr=lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, [total * 7 // 10, total * 9 // 10], gamma=0.3)

    def temperature(points: Tensor) -> Tensor:
        return net(points)[:, 0]

    def objective(points: Tensor) -> Terms:
        points = points.requires_grad_()
        (slope,) = torch.autograd.grad(temperature(points).sum(), points, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 1].sum(), points, create_graph=True)
        residual = slope[:, 0] - log_k.exp() * bend[:, 1]
        ends = torch.stack([torch.rand(40), (torch.rand(40) < 0.5).float()], 1)
        return Terms(
            sensors=(10.0, (temperature(sensors) - reading).square().mean()),
            walls=(10.0, temperature(ends).square().mean()),
            equation=(equation, residual.square().mean()),
        )

    places = torch.cartesian_prod(torch.linspace(0, 1, 20), torch.linspace(0, 1, 20))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, material=nn.ParameterDict({"log_k": log_k}), adam=adam, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            terms = objective(torch.rand(64, 2))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            schedule.step()
            step.record({"Rod/conductivity": log_k.detach().exp()})
            if step.every(100):
                with run.evaluation("rod"), torch.no_grad():
                    error = (temperature(places) - rod(places[:, 0], places[:, 1])).square().mean().sqrt()
                    step.record({"Eval/rmse": error})
    return -abs(float(log_k) - math.log(TRUE))


TIMES = 60


def rings(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return points on two rings."""
    angle = 2 * math.pi * torch.rand(count, generator=draw)
    outer = (torch.rand(count, generator=draw) < 0.6).float()
    radius = 0.5 + outer + 0.05 * torch.randn(count, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def distance(a: Tensor, b: Tensor) -> float:
    """Return the energy distance between two clouds."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


class Eps(nn.Module):
    """Predicts the noise in points at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(TIMES, 32)
        self.first = nn.Linear(2, 96)
        self.mix = nn.Linear(32, 96)
        self.rest = nn.Sequential(nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the noise."""
        return self.rest(self.first(x) + self.mix(self.time(t)))


def diffusion(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    noise: str = "same",
    told: bool = True,
    ema: float = 0.0,
    total: int = 500,
) -> float:
    """Learn to draw points of two rings (DDPM); returns the negative energy distance to real ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        noise: that the network has to find: the "same" that was added, or "other" one.
        told: whether the training tells the network the time.
        ema: decay of the average of the weights that draws; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    beta = torch.linspace(1e-3, 0.15, TIMES)
    left = (1 - beta).cumprod(0)
    net = Eps()
    adam = torch.optim.AdamW(net.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)
    mean = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(ema or 0.5))
    real = rings(600, torch.Generator().manual_seed(8))

    @torch.no_grad()
    def drawn() -> float:
        draw = torch.Generator().manual_seed(9)
        model = mean if ema else net
        x = torch.randn(600, 2, generator=draw)
        for t in reversed(range(TIMES)):
            guess = model(x, torch.full((600,), t))
            x = (x - beta[t] / (1 - left[t]).sqrt() * guess) / (1 - beta[t]).sqrt()
            if t:
                x = x + beta[t].sqrt() * torch.randn(600, 2, generator=draw)
        return distance(x, real)

    kept: dict[str, Any] = {"mean": mean} if ema else {}
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, schedule=schedule, **kept)
        run.resume()
        for step in run.steps(total):
            x = rings(128)
            t = torch.randint(TIMES, (128,))
            added = torch.randn_like(x)
            mixed = left[t, None].sqrt() * x + (1 - left[t, None]).sqrt() * added
            guess = net(mixed, t if told else torch.zeros_like(t))
            loss = functional.mse_loss(guess, added if noise == "same" else torch.randn_like(x))
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(noise=(1.0, loss)))
            step.update(adam, clip=1.0)
            schedule.step()
            if ema:
                mean.update_parameters(net)
            if step.every(100):
                with run.evaluation("drawn points"):
                    step.record({"Eval/energy_distance": drawn()})
    found = drawn()
    return -found if math.isfinite(found) else -1e9


def soil(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return places [n, 2] in kilometers and what a field holds there."""
    draw = torch.Generator().manual_seed(37 * seed + salt)
    x = 4 * torch.rand(count, 2, generator=draw)
    y = (2 * x[:, 0]).sin() * (1.5 * x[:, 1]).cos() + 0.5 * x[:, 1] + 0.15 * torch.randn(count, generator=draw)
    return x, y - 1


def krige(
    folder: Path,
    seed: int,
    *,
    lr: float = 0.05,
    unit: float = 1.0,
    lbfgs: bool = False,
    total: int = 80,
) -> float:
    """Fit a Gaussian process by its marginal likelihood; returns the explained variance of other places.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        unit: factor of the coordinates, which may be in meters.
        lbfgs: whether LBFGS is the optimizer.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = soil(seed, 120, 1)
    held_x, held_y = soil(seed, 200, 2)
    x = unit * x
    held_x = unit * held_x
    kernel = nn.ParameterDict(
        {
            "log_length": nn.Parameter(torch.zeros(2)),
            "log_scale": nn.Parameter(torch.tensor(0.0)),
            "log_noise": nn.Parameter(torch.tensor(-1.0)),
        }
    )
    opt: torch.optim.Optimizer = torch.optim.Adam(kernel.parameters(), lr=lr)
    if lbfgs:
        opt = torch.optim.LBFGS(kernel.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    def covariance(a: Tensor, b: Tensor) -> Tensor:
        size = kernel["log_length"].exp()
        apart = (a[:, None] / size - b[None] / size).square().sum(2)
        return kernel["log_scale"].exp() * (-apart / 2).exp()

    def factor() -> Tensor:
        noise = kernel["log_noise"].exp() + 1e-4
        return torch.linalg.cholesky(covariance(x, x) + noise * torch.eye(len(x)))

    def likelihood() -> Terms:
        low = factor()
        fit = y @ torch.cholesky_solve(y[:, None], low)[:, 0]
        return Terms(fit=(0.5 / len(y), fit), determinant=(1 / len(y), low.diagonal().log().sum()))

    def closure() -> Terms:
        opt.zero_grad()
        terms = likelihood()
        terms.total.backward()
        return terms

    @torch.no_grad()
    def explained() -> float:
        guess = covariance(held_x, x) @ torch.cholesky_solve(y[:, None], factor())[:, 0]
        return 1 - float((guess - held_y).square().mean() / held_y.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(kernel=kernel, opt=opt)
        run.resume()
        for step in run.steps(total):
            if lbfgs:
                step.update(opt, closure=closure)
            else:
                step.observe(closure())
                step.update(opt)
            if step.every(10):
                with run.evaluation("other places"):
                    step.record({"Test/r2": explained()})
    found = explained()
    return found if math.isfinite(found) else -1e9
