"""Sound trainings of generative models: games, autoencoders, noise, flows and energies, on points and pictures."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

from .rows import mlp


def moons(n: int, gen: torch.Generator | None = None) -> Tensor:
    """Return points of two moons, of about unit scale."""
    angle = math.pi * torch.rand(n, generator=gen)
    side = torch.randint(2, (n,), generator=gen).float()
    x = torch.where(side > 0, 1 - angle.cos(), angle.cos()) - 0.5
    y = torch.where(side > 0, 0.5 - angle.sin(), angle.sin()) - 0.25
    return torch.stack([x, y], 1) + 0.08 * torch.randn(n, 2, generator=gen)


def energy(first: Tensor, second: Tensor) -> float:
    """Return the energy distance of two clouds."""
    across = 2 * torch.cdist(first, second).mean()
    return float(across - torch.cdist(first, first).mean() - torch.cdist(second, second).mean())


def two_moons_game(folder: Path, seed: int, *, kind: str = "hinge", average: bool = False, total: int = 450) -> float:
    """Make points of two moons by a game; returns the negative energy distance to true points.

    Args:
        folder: run folder.
        seed: seed.
        kind: "hinge", "gp" for a Wasserstein distance with a gradient penalty, or "ns" for a non-saturating loss.
        average: whether an average of the generator is judged.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(47 * seed + 1)
    data = moons(4000, gen)
    test = moons(800, gen)
    maker = mlp(4, 64, 64, 2)
    critic = mlp(2, 64, 64, 1, act=nn.LeakyReLU)
    if kind == "hinge":
        for layer in critic:
            if isinstance(layer, nn.Linear):
                nn.utils.parametrizations.spectral_norm(layer)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    ema = copy.deepcopy(maker).requires_grad_(False)

    def of_critic_terms(real: Tensor, fake: Tensor) -> Terms:
        on_real, on_fake = critic(real), critic(fake)
        if kind == "hinge":
            return Terms(real=(1.0, (1 - on_real).relu().mean()), fake=(1.0, (1 + on_fake).relu().mean()))
        if kind == "ns":
            return Terms(
                real=(1.0, functional.softplus(-on_real).mean()), fake=(1.0, functional.softplus(on_fake).mean())
            )
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        slope = torch.autograd.grad(critic(between).sum(), between, create_graph=True)[0]
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return Terms(distance=(1.0, on_fake.mean() - on_real.mean()), penalty=(1.0, penalty))

    def of_maker_loss(fake: Tensor) -> Tensor:
        return functional.softplus(-critic(fake)).mean() if kind == "ns" else -critic(fake).mean()

    def distance() -> float:
        judged = ema if average else maker
        with torch.no_grad():
            return energy(judged(torch.randn(800, 4, generator=torch.Generator().manual_seed(1))), test)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, critic=critic, of_maker=of_maker, of_critic=of_critic, ema=ema)
        run.resume()
        for step in run.steps(total):
            for _ in range(3 if kind == "gp" else 2):
                real = data[torch.randint(len(data), (128,))]
                terms = of_critic_terms(real, maker(torch.randn(128, 4)).detach())
                of_critic.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(of_critic)
            fooled = of_maker_loss(maker(torch.randn(128, 4)))
            of_maker.zero_grad()
            fooled.backward()
            step.observe(Terms(maker=(1.0, fooled)))
            step.update(of_maker)
            with torch.no_grad():
                for old, new in zip(ema.parameters(), maker.parameters(), strict=True):
                    old.lerp_(new, 0.03)
            if step.every(50):
                with run.evaluation("samples"):
                    step.record({"eval/energy_distance": distance()})
    return -distance()


def blots(n: int, gen: torch.Generator) -> Tensor:
    """Return pictures of a bright blot, shape [n, 1, 12, 12], in [0, 1]."""
    line = torch.linspace(-1, 1, 12)
    y, x = torch.meshgrid(line, line, indexing="ij")
    place = 1.2 * torch.rand(n, 2, 1, 1, generator=gen) - 0.6
    size = 0.15 + 0.2 * torch.rand(n, 1, 1, generator=gen)
    return (-((x - place[:, 0]).square() + (y - place[:, 1]).square()) / size.square()).exp()[:, None]


class BlotCoder(nn.Module):
    """A variational autoencoder of blots."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Flatten(), nn.Linear(144, 96), nn.ReLU(), nn.Linear(96, 16))
        self.up = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 144), nn.Unflatten(1, (1, 12, 12)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the pixels, and mean and log-variance of the code."""
        mean, log = self.down(x).chunk(2, 1)
        code = mean + (0.5 * log).exp() * torch.randn_like(mean) if self.training else mean
        return self.up(code), mean, log


def blot_coder(folder: Path, seed: int, *, total: int = 300) -> float:
    """Train a variational autoencoder, its loss summed over pixels, with a rising divergence; returns a PSNR."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(53 * seed + 1)
    x, xv = blots(1500, gen), blots(300, gen)
    coder = BlotCoder()
    opt = torch.optim.Adam(coder.parameters(), lr=2e-3)

    def terms_of(batch: Tensor, beta: float) -> Terms:
        logits, mean, log = coder(batch)
        bits = functional.binary_cross_entropy_with_logits(logits, batch, reduction="none").sum((1, 2, 3)).mean()
        kl = 0.5 * (mean.square() + log.exp() - 1 - log).sum(1).mean()
        return Terms(reconstruction=(1.0, bits), kl=(beta, kl))

    def psnr() -> float:
        coder.eval()
        with torch.no_grad():
            error = (coder(xv)[0].sigmoid() - xv).square().mean()
        coder.train()
        return float(-10 * error.log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(coder=coder, opt=opt)
        run.resume()
        for step in run.steps(total):
            terms = terms_of(x[torch.randint(len(x), (64,))], min(1.0, step.index / 150))
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(60):
                with run.evaluation("other blots"):
                    step.record({"eval/psnr": psnr()})
    return psnr()


def noise_remover(folder: Path, seed: int, *, total: int = 700) -> float:
    """Train a diffusion model of two moons on its noise; returns the negative energy distance of its samples."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(59 * seed + 1)
    data, test = moons(4000, gen) / 0.8, moons(800, gen) / 0.8
    steps = 40
    kept = torch.cos(torch.linspace(0.02, math.pi / 2 - 0.02, steps)).square()
    net = mlp(2 + 8, 96, 96, 2, act=nn.SiLU)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)

    def guess(x: Tensor, t: Tensor) -> Tensor:
        phase = t[:, None] / steps * torch.tensor([1.0, 2.0, 4.0, 8.0]) * math.pi
        return net(torch.cat([x, phase.sin(), phase.cos()], 1))

    def loss_of(clean: Tensor, draw: torch.Generator | None = None) -> Tensor:
        t = torch.randint(steps, (len(clean),), generator=draw)
        noise = torch.randn(clean.shape, generator=draw)
        a = kept[t][:, None]
        return functional.mse_loss(guess(a.sqrt() * clean + (1 - a).sqrt() * noise, t), noise)

    @torch.no_grad()
    def sample(n: int) -> Tensor:
        x = torch.randn(n, 2)
        for t in reversed(range(steps)):
            a = kept[t]
            before = kept[t - 1] if t else torch.tensor(1.0)
            noise = guess(x, torch.full((n,), t))
            clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-3, 3)
            x = before.sqrt() * clean + (1 - before).sqrt() * noise
        return x

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt, schedule=schedule)
        run.resume()
        for step in run.steps(total):
            loss = loss_of(data[torch.randint(len(data), (128,))])
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(noise=(1.0, loss)))
            step.update(opt, clip=1.0)
            schedule.step()
            if step.every(100):
                with torch.no_grad(), run.evaluation("held-out moons"):
                    step.record({"val/loss": loss_of(test, torch.Generator().manual_seed(3))})
    return -energy(sample(800), test)


class Coupling(nn.Module):
    """Scales and moves one coordinate by a function of the other one."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.net = mlp(1, 48, 48, 2, act=nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the points and the logarithm of the determinant."""
        still, moved = x[:, self.first], x[:, 1 - self.first]
        scale, shift = self.net(still[:, None]).unbind(1)
        scale = 2 * (scale / 2).tanh()
        moved = moved * scale.exp() + shift
        pair = [still, moved] if self.first == 0 else [moved, still]
        return torch.stack(pair, 1), scale


def moon_flow(folder: Path, seed: int, *, total: int = 400) -> float:
    """Train a flow by its likelihood; returns the mean log-density of other points, in nats."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(61 * seed + 1)
    data, test = moons(3000, gen), moons(800, gen)
    flow = nn.ModuleList([Coupling(i % 2) for i in range(6)])
    opt = torch.optim.Adam(flow.parameters(), lr=2e-3)

    def log_prob(x: Tensor) -> Tensor:
        log = torch.zeros(len(x))
        for layer in flow:
            x, scale = layer(x)
            log = log + scale
        return log - 0.5 * x.square().sum(1) - math.log(2 * math.pi)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(flow=flow, opt=opt)
        run.resume()
        for step in run.steps(total):
            loss = -log_prob(data[torch.randint(len(data), (128,))]).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(nll=(1.0, loss)))
            step.update(opt, clip=10.0)
            if step.every(50):
                with torch.no_grad(), run.evaluation("test"):
                    step.record({"test/nll": -log_prob(test).mean()})
    with torch.no_grad():
        return float(log_prob(test).mean())


def moon_energy(folder: Path, seed: int, *, total: int = 300) -> float:
    """Train an energy by contrast with samples that it draws; returns how well it tells points from noise."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(67 * seed + 1)
    data, test = moons(3000, gen), moons(500, gen)
    net = mlp(2, 64, 64, 1, act=nn.SiLU)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.0, 0.99))
    pool = 3 * torch.rand(1000, 2) - 1.5

    def drawn(start: Tensor) -> Tensor:
        x = start.clone()
        for _ in range(15):
            x.requires_grad_()
            slope = torch.autograd.grad(net(x).sum(), x)[0]
            x = (x - 0.05 * slope + 0.05 * torch.randn_like(x)).detach()
        return x

    def told() -> float:
        noise = 3 * torch.rand(500, 2, generator=torch.Generator().manual_seed(2)) - 1.5
        with torch.no_grad():
            return float((net(test) < net(noise).T).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(1000, (128,))
            start = torch.where(torch.rand(128, 1) < 0.05, 3 * torch.rand(128, 2) - 1.5, pool[i])
            fake = drawn(start)
            pool[i] = fake
            real, made = net(data[torch.randint(len(data), (128,))]), net(fake)
            terms = Terms(
                contrast=(1.0, real.mean() - made.mean()), small=(0.1, (real.square() + made.square()).mean())
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt, clip=1.0)
            if step.every(50):
                with run.evaluation("points and noise"):
                    step.record({"eval/told_apart": told()})
    return told()
