"""Sound trainings of fields and equations: a picture, light along rays, distances, an oscillator, and graphs."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

from .rows import mlp


class Sine(nn.Module):
    """A layer of sines."""

    def __init__(self, size: int, width: int, speed: float, *, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(size, width)
        self.speed = speed
        bound = 1 / size if first else (6 / size) ** 0.5 / speed
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Return sines."""
        return (self.speed * self.linear(x)).sin()


def mural(folder: Path, seed: int, *, total: int = 250) -> float:
    """Fit a picture by sines and judge it between the pixels; returns the PSNR there."""
    torch.manual_seed(seed)
    net = nn.Sequential(Sine(2, 64, 15.0, first=True), Sine(64, 64, 15.0), nn.Linear(64, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def color(p: Tensor) -> Tensor:
        x, y = p[:, 0], p[:, 1]
        waves = [(6 * x + 2 * y).sin(), (5 * y * x).cos(), (4 * (x.square() + y.square()).sqrt()).sin()]
        return 0.5 + 0.4 * torch.stack(waves, 1)

    line = torch.linspace(-1, 1, 40)
    grid = torch.cartesian_prod(line, line)
    between = 2 * torch.rand(1500, 2, generator=torch.Generator().manual_seed(seed)) - 1

    def psnr() -> float:
        with torch.no_grad():
            return float(-10 * functional.mse_loss(net(between), color(between)).log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            loss = functional.mse_loss(net(grid), color(grid))
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(rgb=(1.0, loss)))
            step.update(opt)
            if step.every(50):
                with run.evaluation("between the pixels"):
                    step.record({"PSNR/train": -10 * loss.detach().log10(), "PSNR/between": psnr()})
    return psnr()


def lantern(folder: Path, seed: int, *, total: int = 350) -> float:
    """Fit a flat radiance field to rows of pixels of cameras around it; returns the PSNR of other cameras."""
    torch.manual_seed(seed)
    count = 24

    def encoded(p: Tensor) -> Tensor:
        return torch.cat([f(2.0**k * p) for k in range(4) for f in (torch.sin, torch.cos)], -1)

    def truth(p: Tensor) -> Tensor:
        discs = torch.tensor([[0.3, 0.2, 0.25], [-0.35, -0.1, 0.2], [0.0, -0.4, 0.15]])
        inside = ((p[..., None, :] - discs[:, :2]).norm(dim=-1) < discs[:, 2]).float()
        colors = torch.tensor([[1.0, 0.2, 0.1], [0.2, 0.9, 0.3], [0.2, 0.3, 1.0]])
        return torch.cat([20 * inside.amax(-1, keepdim=True), inside @ colors], -1)

    def cameras(angles: Tensor) -> tuple[Tensor, Tensor]:
        spread = torch.linspace(-0.4, 0.4, 32)
        way = (angles[:, None] + math.pi + spread).flatten()
        eye = 2 * torch.stack([angles.cos(), angles.sin()], 1).repeat_interleave(32, 0)
        return eye, torch.stack([way.cos(), way.sin()], 1)

    def rendered(field: nn.Module | None, eye: Tensor, way: Tensor) -> Tensor:
        depth = torch.linspace(1.0, 3.0, count)
        if field is not None and torch.is_grad_enabled():
            depth = depth + (2.0 / count) * (torch.rand(len(eye), count) - 0.5)
        p = eye[:, None] + depth.expand(len(eye), count)[..., None] * way[:, None]
        raw = truth(p) if field is None else field(encoded(p))
        density = raw[..., 0] if field is None else functional.softplus(raw[..., 0])
        rgb = raw[..., 1:] if field is None else raw[..., 1:].sigmoid()
        alpha = 1 - (-density * 2.0 / count).exp()
        left = torch.cumprod(torch.cat([torch.ones(len(eye), 1), 1 - alpha + 1e-9], 1), 1)[:, :-1]
        return ((left * alpha)[..., None] * rgb).sum(1)

    with torch.no_grad():
        eye, way = cameras(torch.arange(24) * 2 * math.pi / 24)
        pixels = rendered(None, eye, way)
        eye_t, way_t = cameras((torch.arange(6) + 0.4) * 2 * math.pi / 6)
        pixels_t = rendered(None, eye_t, way_t)
    field = mlp(16, 64, 64, 4)
    opt = torch.optim.Adam(field.parameters(), lr=4e-3)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1 ** (1 / total))

    def psnr() -> float:
        with torch.no_grad():
            return float(-10 * functional.mse_loss(rendered(field, eye_t, way_t), pixels_t).log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, opt=opt, decay=decay)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(len(eye), (128,))
            loss = functional.mse_loss(rendered(field, eye[i], way[i]), pixels[i])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(photo=(1.0, loss)))
            step.update(opt)
            decay.step()
            if step.every(70):
                with run.evaluation("other cameras"):
                    step.record({"eval/psnr": psnr()})
    return psnr()


def pebble(folder: Path, seed: int, *, total: int = 250) -> float:
    """Fit a distance field to points of a star and their normals; returns the negative mean error of distances."""
    torch.manual_seed(seed)

    def outline(n: int) -> tuple[Tensor, Tensor]:
        angle = 2 * math.pi * torch.rand(n)
        radius = 0.6 + 0.1 * (3 * angle).sin()
        slope = 0.3 * (3 * angle).cos()
        out = torch.stack([angle.cos(), angle.sin()], 1)
        along = slope[:, None] * out + radius[:, None] * torch.stack([-angle.sin(), angle.cos()], 1)
        normal = functional.normalize(torch.stack([along[:, 1], -along[:, 0]], 1), dim=1)
        return radius[:, None] * out, normal

    net = nn.Sequential(nn.Linear(2, 64), nn.Softplus(20), nn.Linear(64, 64), nn.Softplus(20), nn.Linear(64, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    dense, _ = outline(3000)
    asked = 2 * torch.rand(600, 2) - 1
    far = torch.cdist(asked, dense).amin(1)
    angle = torch.atan2(asked[:, 1], asked[:, 0])
    far = torch.where(asked.norm(dim=1) < 0.6 + 0.1 * (3 * angle).sin(), -far, far)

    def error() -> float:
        with torch.no_grad():
            return float((net(asked)[:, 0] - far).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            on, normal = outline(128)
            points = torch.cat([on, 2 * torch.rand(128, 2) - 1]).requires_grad_()
            value = net(points)[:, 0]
            slope = torch.autograd.grad(value.sum(), points, create_graph=True)[0]
            terms = Terms(
                surface=(3.0, value[:128].abs().mean()),
                normals=(0.5, (1 - functional.cosine_similarity(slope[:128], normal, dim=1)).mean()),
                eikonal=(0.1, (slope.norm(dim=1) - 1).square().mean()),
                inter=(0.1, (-50 * value[128:].abs()).exp().mean()),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(50):
                with run.evaluation("distances"):
                    step.record({"eval/distance_error": error()})
    return -error()


def spring(folder: Path, seed: int, *, total: int = 700) -> float:
    """Solve the equation of a damped spring by its residual; returns the explained share of the true motion."""
    torch.manual_seed(seed)
    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=80)
    time = torch.linspace(0, 3, 200)[:, None]
    speed = math.sqrt(9 - 0.25)
    true = (-0.5 * time).exp() * ((speed * time).cos() + 0.5 / speed * (speed * time).sin())

    def slope(value: Tensor, at: Tensor) -> Tensor:
        return torch.autograd.grad(value.sum(), at, create_graph=True)[0]

    def explained() -> float:
        with torch.no_grad():
            return float(1 - (net(time) - true).square().mean() / true.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt, plateau=plateau)
        run.resume()
        for step in run.steps(total):
            t = (3 * torch.rand(96, 1)).requires_grad_()
            x = net(t)
            v = slope(x, t)
            zero = torch.zeros(1, 1, requires_grad=True)
            begun = net(zero)
            terms = Terms(
                physics=(0.05, (slope(v, t) + v + 9 * x).square().mean()),
                place=(1.0, (begun - 1).square().mean()),
                speed=(0.1, slope(begun, zero).square().mean()),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            plateau.step(float(terms.total))
            if step.every(140):
                with run.evaluation("exact solution"):
                    step.record({"test/explained_motion": explained()})
    return explained()


def village(folder: Path, seed: int, *, total: int = 120) -> float:
    """Tell groups of a village by a graph network from ten labels each; returns the accuracy on all others."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(113 * seed + 1)
    group = torch.arange(300) % 3
    chance = torch.where(group[:, None] == group, 0.06, 0.012)
    linked = (torch.rand(300, 300, generator=gen) < chance).triu(1)
    linked = (linked | linked.T).float() + torch.eye(300)
    degree = linked.sum(1).rsqrt()
    adjacency = degree[:, None] * linked * degree
    x = 0.5 * functional.one_hot(group, 3).float() @ torch.randn(3, 12, generator=gen)
    x = x + torch.randn(300, 12, generator=gen)
    train, val, test = torch.arange(30), torch.arange(30, 90), torch.arange(90, 300)
    first, second, drop = nn.Linear(12, 16), nn.Linear(16, 3), nn.Dropout(0.5)
    model = nn.ModuleList([first, second, drop])
    opt = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)

    def logits() -> Tensor:
        return adjacency @ second(drop((adjacency @ first(x)).relu()))

    def accuracy(rows: Tensor) -> float:
        model.eval()
        with torch.no_grad():
            score = float((logits()[rows].argmax(1) == group[rows]).float().mean())
        model.train()
        return score

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, opt=opt)
        run.resume()
        for step in run.steps(total):
            loss = functional.cross_entropy(logits()[train], group[train])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(nodes=(1.0, loss)))
            step.update(opt)
            if step.every(10):
                with run.evaluation("nodes"):
                    step.record({"train/accuracy": accuracy(train), "val/accuracy": accuracy(val)})
    return accuracy(test)
