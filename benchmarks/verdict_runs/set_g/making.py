"""Makers: points of seals by diffusion, glazes by a game, twins by contrast, and the surface of a reef."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

SEALS = 4


def seal_points(kind: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """Return a point of a seal of each kind: a ring, a bar, a wave or a cross, each in its quarter of the plane."""
    n = len(kind)
    u = torch.rand(n, generator=draw) * 2 - 1
    side = (torch.rand(n, generator=draw) < 0.5).float()
    ring = torch.stack([(math.pi * u).cos(), (math.pi * u).sin()], 1) * 0.5
    bar = torch.stack([0.7 * u, 0.0 * u], 1)
    wave = torch.stack([0.7 * u, 0.3 * (6 * u).sin()], 1)
    cross = 0.6 * u[:, None] * torch.stack([side, 1 - side], 1)
    form = torch.stack([ring, bar, wave, cross])[kind, torch.arange(n)]
    middle = torch.tensor([[-0.9, -0.9], [-0.9, 0.9], [0.9, -0.9], [0.9, 0.9]])
    return middle[kind] + form + 0.03 * torch.randn(n, 2, generator=draw)


def energy_distance(a: Tensor, b: Tensor) -> float:
    """Return the energy distance between two clouds of points."""
    return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


class Velocity(nn.Module):
    """Predicts a velocity for points at a time, given a kind; the last kind stands for none."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(SEALS + 1, 16)
        self.net = nn.Sequential(
            nn.Linear(2 + 8 + 16, 96),
            nn.SiLU(),
            nn.Linear(96, 96),
            nn.SiLU(),
            nn.Linear(96, 96),
            nn.SiLU(),
            nn.Linear(96, 2),
        )

    def forward(self, x: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        """Return velocities, shape [n, 2]."""
        angle = t[:, None] * torch.tensor([1.57, 3.14, 6.28, 12.57])
        return self.net(torch.cat([x, angle.sin(), angle.cos(), self.kinds(kind)], 1))


def seals(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    read_as: str = "velocity",
    ema: float = 0.0,
    weighted: bool = False,
    epochs: int = 40,
) -> float:
    """Draw points of seals of a wanted kind by diffusion; returns the negative mean energy distance of the kinds.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        read_as: what the sampler takes the output for: "velocity" or "noise".
        ema: share of the average of the weights that a step keeps; 0 draws with the weights themselves.
        weighted: whether times near the middle count more.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    kinds = torch.randint(SEALS, (1500,))
    points = seal_points(kinds)
    net = Velocity()
    slow = copy.deepcopy(net).requires_grad_(requires_grad=False)
    judged = slow if ema else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-4)
    total = epochs * 15
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)

    @torch.no_grad()
    def distance() -> float:
        draw = torch.Generator().manual_seed(5)
        far: list[float] = []
        for kind in range(SEALS):
            wanted = torch.full((250,), kind)
            none = torch.full((250,), SEALS)
            x = torch.randn(250, 2, generator=draw)
            times = torch.linspace(0.99, 0.0, 26)
            for now, then in zip(times[:-1].tolist(), times[1:].tolist(), strict=True):
                t = torch.full((250,), now)
                v = 1.5 * judged(x, t, wanted) - 0.5 * judged(x, t, none)
                a = math.cos(math.pi * now / 2)
                s = math.sin(math.pi * now / 2)
                clean = (x - s * v) / a if read_as == "noise" else a * x - s * v
                noise = v if read_as == "noise" else s * x + a * v
                x = math.cos(math.pi * then / 2) * clean + math.sin(math.pi * then / 2) * noise
            far.append(energy_distance(x.clamp(-9, 9), seal_points(wanted, draw)))
        return sum(far) / SEALS

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, slow=slow, optimizer=optimizer, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            at = 100 * (step.index % 15)
            x = points[at : at + 100]
            kind = kinds[at : at + 100].clone()
            kind[torch.rand(len(kind)) < 0.1] = SEALS
            t = torch.rand(len(x))
            noise = torch.randn_like(x)
            a = (math.pi * t / 2).cos()[:, None]
            s = (math.pi * t / 2).sin()[:, None]
            each = (net(a * x + s * noise, t, kind) - (a * noise - s * x)).square().mean(1)
            loss = (each * (4 * t * (1 - t) if weighted else 1.0)).mean()
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(velocity=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            schedule.step()
            if ema:
                with torch.no_grad():
                    for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                        old.lerp_(new, 1 - ema)
            if step.every(total // 5):
                with run.evaluation("drawn points"):
                    step.record({"Eval/energy_distance": distance()})
    return -distance()


def glaze(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    told: str = "wanted kind",
    critic_rounds: int = 1,
    smoothing: float = 0.1,
    total: int = 500,
) -> float:
    """Make colors of a wanted glaze in a game; returns the negative mean energy distance of the kinds.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        told: kind that the critic gets with what was made: the "wanted kind", or that of "the real ones".
        critic_rounds: updates of the critic in a step.
        smoothing: what real labels are below one.
        total: number of steps.
    """
    torch.manual_seed(seed)
    net_g = nn.Sequential(nn.Linear(6 + SEALS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    net_d = nn.Sequential(
        nn.Linear(3 + SEALS, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    opt_g = torch.optim.Adam(net_g.parameters(), lr=lr, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(net_d.parameters(), lr=lr, betas=(0.5, 0.99))
    world = torch.Generator().manual_seed(7 * seed + 1)
    middle = 1.2 * torch.randn(SEALS, 3, generator=world)
    shape = 0.35 * torch.randn(SEALS, 3, 3, generator=world)
    logits_loss = functional.binary_cross_entropy_with_logits

    def real(kind: Tensor, draw: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(len(kind), 3, generator=draw)
        return middle[kind] + (shape[kind] @ noise[..., None])[..., 0]

    def make(kind: Tensor, draw: torch.Generator | None = None) -> Tensor:
        noise = torch.randn(len(kind), 6, generator=draw)
        return net_g(torch.cat([noise, functional.one_hot(kind, SEALS).float()], 1))

    def judge(x: Tensor, kind: Tensor) -> Tensor:
        return net_d(torch.cat([x, functional.one_hot(kind, SEALS).float()], 1))[:, 0]

    @torch.no_grad()
    def distance() -> float:
        draw = torch.Generator().manual_seed(6)
        each = [torch.full((250,), kind) for kind in range(SEALS)]
        return sum(energy_distance(make(kind, draw), real(kind, draw)) for kind in each) / SEALS

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net_g=net_g, net_d=net_d, opt_g=opt_g, opt_d=opt_d)
        run.resume()
        for step in run.steps(total):
            for _ in range(critic_rounds):
                kind = torch.randint(SEALS, (96,))
                wanted = torch.randint(SEALS, (96,))
                made = make(wanted).detach()
                yes = judge(real(kind), kind)
                no = judge(made, kind if told == "the real ones" else wanted)
                of_critic = Terms(
                    real=(0.5, logits_loss(yes, torch.full_like(yes, 1 - smoothing))),
                    fake=(0.5, logits_loss(no, torch.zeros_like(no))),
                )
                opt_d.zero_grad()
                of_critic.total.backward()
                step.observe(of_critic)
                step.update(opt_d)
            kind = torch.randint(SEALS, (96,))
            wanted = torch.randint(SEALS, (96,))
            score = judge(make(wanted), kind if told == "the real ones" else wanted)
            fooled = logits_loss(score, torch.ones_like(score))
            opt_g.zero_grad()
            fooled.backward()
            step.observe(Terms(fooled=(1.0, fooled)))
            step.update(opt_g)
            if step.every(100):
                with run.evaluation("glazes"):
                    step.record({"Eval/energy_distance": distance()})
    return -distance()


def twins(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    seen: str = "apart",
    temperature: float = 0.2,
    batch: int = 96,
    total: int = 220,
) -> float:
    """Learn what two recordings of one thing share; returns the accuracy of nearest centers on held-out things.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        seen: how the two views are drawn: "apart", or "together" (one draw serves both).
        temperature: temperature of the contrast.
        batch: number of things in a batch.
        total: number of steps.
    """
    torch.manual_seed(seed)
    world = torch.Generator().manual_seed(13 * seed + 4)
    content = torch.randn(8, 6, generator=world)
    mix = torch.randn(6, 20, generator=world) / 6**0.5
    manner = torch.randn(8, 20, generator=world) / 8**0.5

    def things(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(8, (count,), generator=world)
        return (content[kind] + 0.35 * torch.randn(count, 6, generator=world)) @ mix, kind

    def view(thing: Tensor) -> Tensor:
        return (thing + 1.6 * torch.randn(len(thing), 8) @ manner + 0.1 * torch.randn_like(thing)).tanh()

    pool, _ = things(4000)
    known, known_kind = things(400)
    held, held_kind = things(400)
    encoder = nn.Sequential(nn.Linear(20, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 16))
    projector = nn.Sequential(nn.GELU(), nn.Linear(16, 16))
    params = [*encoder.parameters(), *projector.parameters()]
    optimizer = torch.optim.AdamW(params, lr=lr, weight_decay=1e-3)

    @torch.no_grad()
    def accuracy() -> float:
        a = functional.normalize(encoder(view(known)), dim=1)
        b = functional.normalize(encoder(view(held)), dim=1)
        center = torch.stack([a[known_kind == k].mean(0) for k in range(8)])
        return float(((b @ functional.normalize(center, dim=1).T).argmax(1) == held_kind).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(encoder=encoder, projector=projector, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            some = pool[torch.randint(len(pool), (batch,))]
            one = view(some)
            other = one if seen == "together" else view(some)
            a = functional.normalize(projector(encoder(one)), dim=1)
            b = functional.normalize(projector(encoder(other)), dim=1)
            alike = a @ b.T / temperature
            goal = torch.arange(batch)
            terms = Terms(
                there=(0.5, functional.cross_entropy(alike, goal)), back=(0.5, functional.cross_entropy(alike.T, goal))
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(44):
                with run.evaluation("nearest centers"):
                    step.record({"Eval/accuracy": accuracy()})
    torch.manual_seed(1)
    return accuracy()


def outline(count: int, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Return points of a reef's outline and their outward normals."""
    turn = 6.2832 * torch.rand(count, generator=draw)
    radius = 0.6 + 0.12 * (3 * turn).cos()
    slope = -0.36 * (3 * turn).sin()
    out = torch.stack([turn.cos(), turn.sin()], 1)
    along = torch.stack([-turn.sin(), turn.cos()], 1)
    return radius[:, None] * out, functional.normalize(radius[:, None] * out - slope[:, None] * along, dim=1)


def reef(
    folder: Path,
    seed: int,
    *,
    lr: float = 4e-3,
    inward: float = 0.0,
    scanned: int = 2000,
    slope: float = 0.1,
    total: int = 260,
) -> float:
    """Learn the distance to a reef from a scan of its outline; returns the share of the square on the right side.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        inward: share of the normals of the scan that point inward.
        scanned: number of points of the scan.
        slope: weight of the length of the gradient.
        total: number of steps.
    """
    torch.manual_seed(seed)
    points, normals = outline(scanned)
    normals = torch.where(torch.rand(len(points), 1) < inward, -normals, normals)
    field = nn.Sequential(
        nn.Linear(2, 64),
        nn.Softplus(20),
        nn.Linear(64, 64),
        nn.Softplus(20),
        nn.Linear(64, 64),
        nn.Softplus(20),
        nn.Linear(64, 1),
    )
    optimizer = torch.optim.Adam(field.parameters(), lr=lr)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / total))
    axis = torch.linspace(-1, 1, 48)
    grid = torch.cartesian_prod(axis, axis)
    angle = torch.atan2(grid[:, 1], grid[:, 0])
    inside = grid.norm(dim=1) < 0.6 + 0.12 * (3 * angle).cos()

    @torch.no_grad()
    def overlap() -> float:
        found = field(grid)[:, 0] < 0
        return float((found & inside).sum() / (found | inside).sum().clamp(min=1))

    def with_slope(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.requires_grad_()
        value = field(x)[:, 0]
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return value, gradient

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, optimizer=optimizer, decay=decay)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(points), (128,))
            value, gradient = with_slope(points[rows])
            _, anywhere = with_slope(2.2 * torch.rand(128, 2) - 1.1)
            kept: dict[str, Any] = {
                "surface": (3.0, value.abs().mean()),
                "normal": (1.0, (gradient - normals[rows]).norm(dim=1).mean()),
                "eikonal": (slope, (anywhere.norm(dim=1) - 1).square().mean()),
            }
            terms = Terms(**kept)
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            decay.step()
            if step.every(52):
                with run.evaluation("grid"):
                    step.record({"Eval/iou": overlap()})
    return overlap()
