"""Strangers' loops that make things or solve equations: marbles, glazes, petals, a jingle, and dancers."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Declared, Run, Terms
from verdict_runs.supervised import NO_SINKS


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return the energy distance of two clouds of points."""
    return float(
        2 * torch.cdist(first, second).mean() - torch.cdist(first, first).mean() - torch.cdist(second, second).mean()
    )


def handful(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return places of marbles that rolled into six pits on a circle."""
    turn = 2 * math.pi * torch.randint(6, (count,), generator=draw) / 6
    pits = torch.stack([turn.cos(), turn.sin()], 1)
    return 1.5 * pits + 0.12 * torch.randn(count, 2, generator=draw)


def marbles(
    folder: Path,
    seed: int,
    *,
    ending: str = "open",
    swept: str = "before",
    rounds: int = 3,
    total: int = 260,
) -> float:
    """Make places of marbles by a game with a critic; returns the negative energy distance to true ones.

    Args:
        folder: run folder.
        seed: seed.
        ending: last layer of the critic: "open", or a "sigmoid".
        swept: when the gradients of a network are cleared: "before" its backward pass or "after" its step.
        rounds: updates of the critic for one of the maker.
        total: number of steps.
    """
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    layers: list[nn.Module] = [nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2)]
    critic = nn.Sequential(*layers, nn.Linear(48, 1), *([nn.Sigmoid()] if ending == "sigmoid" else []))
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    true = handful(1000, torch.Generator().manual_seed(263 * seed + 7))

    def judged() -> Terms:
        real = handful(64)
        made = maker(torch.randn(64, 4)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        return Terms(critic=(1.0, critic(made).mean() - critic(real).mean()), slope=(2.0, penalty))

    @torch.no_grad()
    def distance() -> float:
        return energy_distance(maker(torch.randn(1000, 4)), true)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, critic=critic, of_maker=of_maker, of_critic=of_critic)
        run.resume()
        for step in run.steps(total):
            for _ in range(rounds):
                terms = judged()
                if swept == "before":
                    of_critic.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(of_critic)
                if swept == "after":
                    of_critic.zero_grad()
            fooled = -critic(maker(torch.randn(64, 4))).mean()
            if swept == "before":
                of_maker.zero_grad()
            fooled.backward()
            step.observe(Terms(maker=(1.0, fooled)))
            step.update(of_maker)
            if swept == "after":
                of_maker.zero_grad()
            if step.every(65):
                with run.evaluation("made and true"):
                    step.record({"eval/distance": distance()})
    return -distance()


def glazed(count: int, draw: torch.Generator) -> Tensor:
    """Return pictures of glazes, shape [count, 64], from 0 to 1: waves of four numbers."""
    axis = torch.linspace(0, 1, 8)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    a, b, c, d = torch.rand(4, count, 1, 1, generator=draw)
    wave = (6 * (0.3 + a) * x + 6 * b * y + 6.28 * c).sin()
    picture = 0.5 + 0.35 * wave + 0.3 * (d - 0.5)
    return (picture + 0.02 * torch.randn(count, 8, 8, generator=draw)).clamp(0, 1).flatten(1)


def ceramics(
    folder: Path,
    seed: int,
    *,
    shades: str = "from 0 to 1",
    tightness: float = 0.02,
    rising: int = 0,
    total: int = 280,
) -> float:
    """Learn to compress glazes; returns the share of the variance of others that comes back.

    Args:
        folder: run folder.
        seed: seed.
        shades: what pictures are given as: "from 0 to 1", or "standard" scores.
        tightness: weight of the divergence.
        rising: steps over which that weight rises.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(269 * seed + 2)
    x = glazed(900, draw)
    held = glazed(300, draw)
    if shades == "standard":
        mean, spread = x.mean(), x.std()
        x, held = (x - mean) / spread, (held - mean) / spread
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    decoder = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))
    vae = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    adam = torch.optim.Adam(vae.parameters(), lr=4e-3)

    @torch.no_grad()
    def back() -> float:
        found = decoder(encoder(held)[:, :6]).sigmoid()
        return 1 - float((found - held).square().mean() / (held - held.mean(0)).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(vae=vae, adam=adam)
        run.resume()
        for step in run.steps(total):
            some = x[torch.randint(len(x), (32,))]
            mean, log_variance = encoder(some).chunk(2, 1)
            code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
            picture = functional.binary_cross_entropy_with_logits(decoder(code), some)
            divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 64
            weight = tightness * min((step.index + 1) / rising, 1.0) if rising else tightness
            terms = Terms(picture=(1.0, picture), divergence=(weight, divergence))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(70):
                with run.evaluation("other glazes"):
                    step.record({"val/comes_back": back()})
    return back()


def flower(kind: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """Return places on the petal of a kind; each of four petals is a short arc."""
    turn = math.pi / 2 * kind + 0.5 * (torch.rand(len(kind), generator=draw) - 0.5)
    return 1.6 * torch.stack([turn.cos(), turn.sin()], 1) + 0.06 * torch.randn(len(kind), 2, generator=draw)


class Denoiser(nn.Module):
    """Tells the noise in a place from its level and the kind of the petal; kind 4 stands for none."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(5, 16)
        self.net = nn.Sequential(nn.Linear(2 + 16 + 8, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x: Tensor, level: Tensor, kind: Tensor) -> Tensor:
        """Return the noise."""
        angle = level[:, None] * torch.tensor([1.0, 3.0, 8.0, 20.0])
        return self.net(torch.cat([x, self.kinds(kind), angle.sin(), angle.cos()], 1))


def petals(
    folder: Path,
    seed: int,
    *,
    nameless: float = 0.15,
    guided: float = 0.3,
    average: float = 0.0,
    total: int = 450,
) -> float:
    """Make places on petals of a wanted kind by diffusion, with guidance; returns the negative energy distance.

    Args:
        folder: run folder.
        seed: seed.
        nameless: share of places whose kind is replaced by none.
        guided: weight of the guidance when places are made.
        average: decay of the average of the weights that makes places; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(271 * seed + 8)
    denoiser = Denoiser()
    smooth = torch.optim.swa_utils.AveragedModel(
        denoiser, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average or 0.9)
    )
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-3)
    levels = 30
    kept = (1 - torch.linspace(0.005, 0.3, levels)).cumprod(0)
    wanted = torch.arange(600).remainder(4)
    true = flower(wanted, draw)

    @torch.no_grad()
    def distance() -> float:
        model = smooth if average else denoiser
        x = torch.randn(600, 2)
        for k in reversed(range(levels)):
            level = torch.full((600,), k / levels)
            with_kind = model(x, level, wanted)
            without = model(x, level, torch.full_like(wanted, 4))
            noise = with_kind + guided * (with_kind - without)
            clean = ((x - (1 - kept[k]).sqrt() * noise) / kept[k].sqrt()).clamp(-3, 3)
            before = kept[k - 1] if k else torch.tensor(1.0)
            x = before.sqrt() * clean + (1 - before).sqrt() * noise
        return sum(energy_distance(x[wanted == i], true[wanted == i]) for i in range(4)) / 4

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(denoiser=denoiser, optimizer=optimizer)
        if average:
            run.track(smooth=smooth)
        run.resume()
        for step in run.steps(total):
            kind = torch.randint(4, (128,))
            place = flower(kind)
            kind = torch.where(torch.rand(128) < nameless, 4, kind)
            k = torch.randint(levels, (128,))
            noise = torch.randn(128, 2)
            noisy = kept[k, None].sqrt() * place + (1 - kept[k, None]).sqrt() * noise
            loss = functional.mse_loss(denoiser(noisy, k / levels, kind), noise)
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(noise=(1.0, loss)))
            step.update(optimizer)
            if average:
                smooth.update_parameters(denoiser)
            if step.every(150):
                with run.evaluation("made petals"):
                    step.record({"eval/distance": distance()})
    return -distance()


def jingle(
    folder: Path,
    seed: int,
    *,
    kind: str = "float32",
    whole: str = "float32",
    octaves: int = 8,
    lr: float = 3e-3,
    total: int = 320,
) -> float:
    """Store a jingle in a network; returns its signal-to-noise ratio in dB.

    Args:
        folder: run folder.
        seed: seed.
        kind: type of the numbers in which times are encoded.
        whole: type of the numbers in which the network computes.
        octaves: number of frequencies of the encoding.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(277 * seed + 6)
    time = torch.arange(2000.0) / 2000
    sound = torch.zeros(2000)
    for _ in range(8):
        pitch, phase, loud = torch.rand(3, generator=draw).tolist()
        sound = sound + (0.3 + loud) * (2 * math.pi * (10 + 70 * pitch) * time + 6.28 * phase).sin() / 2
    paces = math.pi * 2.0 ** torch.arange(octaves)
    net = nn.Sequential(nn.Linear(2 * octaves, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)
    dtype = getattr(torch, kind)

    def played(at: Tensor) -> Tensor:
        angle = at.to(dtype)[:, None] * paces.to(dtype)
        code = torch.cat([angle.sin(), angle.cos()], 1).float()
        with torch.autocast("cpu", torch.bfloat16, enabled=whole == "bfloat16"):
            return net(code)[:, 0].float()

    @torch.no_grad()
    def ratio() -> float:
        return float(10 * (sound.square().mean() / (played(time) - sound).square().mean()).log10())

    with Run(folder, outputs=NO_SINKS, declared=Declared()) as run:
        run.track(net=net, adam=adam, scheduler=scheduler)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(2000, (256,))
            loss = functional.mse_loss(played(time[i]), sound[i])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(sound=(1.0, loss)))
            step.update(adam)
            scheduler.step()
            if step.every(80):
                with run.evaluation("whole jingle"):
                    step.record({"eval/ratio_db": ratio()})
    return ratio()


PACE = 1.2
"""Radians by which the dancers turn in a second."""


def dancers(
    folder: Path,
    seed: int,
    *,
    slopes: str = "each by itself",
    pace: float = PACE,
    total: int = 420,
) -> float:
    """Solve the equation of two dancers that turn around each other; returns the negative error of their places.

    Args:
        folder: run folder.
        seed: seed.
        slopes: how the slopes of both coordinates are computed: "each by itself", or "at once".
        pace: radians by which they turn in a second.
        total: number of steps.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    adam = torch.optim.Adam(net.parameters(), lr=6e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adam, 0.995)
    start = torch.tensor([1.0, 0.0])
    seconds = 3.0

    def places(t: Tensor) -> Tensor:
        return start + (1 - (-t).exp()) * net(2 * t / seconds - 1)

    def residual(t: Tensor) -> Tensor:
        place = places(t)
        if slopes == "at once":
            (slope,) = torch.autograd.grad(place, t, torch.ones_like(place), create_graph=True)
            along, across = slope, slope
        else:
            (along,) = torch.autograd.grad(place[:, :1].sum(), t, create_graph=True)
            (across,) = torch.autograd.grad(place[:, 1:].sum(), t, create_graph=True)
        return torch.cat([along + pace * place[:, 1:], across - pace * place[:, :1]], 1)

    @torch.no_grad()
    def error() -> float:
        t = torch.linspace(0, seconds, 100)[:, None]
        true = torch.cat([(PACE * t).cos(), (PACE * t).sin()], 1)
        return float((places(t) - true).norm(dim=1).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, scheduler=scheduler)
        run.resume()
        for step in run.steps(total):
            t = (seconds * torch.rand(64, 1)).requires_grad_()
            terms = Terms(equation=(1.0, residual(t).square().mean()))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            scheduler.step()
            if step.every(105):
                with run.evaluation("residual elsewhere"):
                    at = torch.linspace(0.01, seconds, 50)[:, None].requires_grad_()
                    with torch.enable_grad():
                        step.record({"eval/residual": residual(at).square().mean()})
    return -error()
