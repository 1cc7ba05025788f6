"""Generative models: a variational autoencoder, a codebook, a flow, a diffusion with averaged weights, a critic."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.games import covered
from verdict_runs.supervised import NO_SINKS


def bars(seed: int, count: int, salt: int) -> Tensor:
    """Return pictures of one horizontal and one vertical bar, shape [count, 64]."""
    draw = torch.Generator().manual_seed(19 * seed + salt)
    rows = torch.randint(8, (count,), generator=draw)
    columns = torch.randint(8, (count,), generator=draw)
    pictures = torch.zeros(count, 8, 8)
    pictures[torch.arange(count), rows] = 1.0
    pictures[torch.arange(count), :, columns] = 1.0
    return pictures.flatten(1)


def bernoulli_vae(
    folder: Path, seed: int, *, beta: float = 0.3, rate: float = 4e-3, warm: bool = False, total: int = 320
) -> float:
    """Encode bars into eight numbers, with a Bernoulli likelihood; returns the share of right pixels of bars.

    Args:
        folder: run folder.
        seed: seed.
        beta: weight of the divergence.
        rate: learning rate.
        warm: whether the weight of the divergence rises from zero.
        total: number of steps.
    """
    torch.manual_seed(seed)
    data = bars(seed, 1000, 1)
    held = bars(seed, 200, 2)
    encoder = nn.Sequential(nn.Linear(64, 96), nn.LeakyReLU(), nn.Linear(96, 16))
    decoder = nn.Sequential(nn.Linear(8, 96), nn.LeakyReLU(), nn.Linear(96, 64))
    vae = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = torch.optim.Adam(vae.parameters(), lr=rate)

    @torch.no_grad()
    def right() -> float:
        made = decoder(encoder(held)[:, :8]) > 0
        both = (made & (held > 0.5)).sum() / (made | (held > 0.5)).sum()
        return float(both)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(vae=vae, optimizer=optimizer, groups={"encoder": encoder, "decoder": decoder})
        run.resume()
        for step in run.steps(total):
            x = data[torch.randint(1000, (64,))]
            mean, log_variance = encoder(x).chunk(2, dim=1)
            code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
            pixels = functional.binary_cross_entropy_with_logits(decoder(code), x, reduction="none").sum(1).mean()
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
            weight = beta * min(1.0, step.index / 150) if warm else beta
            terms = Terms(pixels=(1.0, pixels), divergence=(max(weight, 1e-6), divergence))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(80):
                with run.evaluation("bars"):
                    step.record({"Eval/overlap": right()})
    return right()


def codebook(
    folder: Path, seed: int, *, spread: float = 1.0, commitment: float = 0.25, rate: float = 5e-3, total: int = 300
) -> float:
    """Encode points of a plane by a codebook (van den Oord et al. 2017); returns the negative error.

    Args:
        folder: run folder.
        seed: seed.
        spread: spread of the codes at the start.
        commitment: weight of the commitment term.
        rate: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    angle = 6.28 * torch.rand(1500)
    points = torch.stack([angle.cos(), (2 * angle).sin(), (3 * angle).cos(), angle.sin()], dim=1)
    encoder = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 3))
    decoder = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 4))
    codes = nn.Embedding(32, 3)
    nn.init.normal_(codes.weight, std=0.3 * spread)
    if spread > 1:
        with torch.no_grad():
            codes.weight[1:] += 50.0
    model = nn.ModuleDict({"encoder": encoder, "codes": codes, "decoder": decoder})
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def pass_through(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sent = encoder(x)
        nearest = torch.cdist(sent, codes.weight).argmin(1)
        code = codes(nearest)
        return sent, code, decoder(sent + (code - sent).detach()), nearest

    @torch.no_grad()
    def error() -> float:
        return float((pass_through(points)[2] - points).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, optimizer=optimizer, groups={"encoder": encoder, "codes": codes, "decoder": decoder})
        run.resume()
        for step in run.steps(total):
            x = points[torch.randint(1500, (96,))]
            sent, code, made, nearest = pass_through(x)
            terms = Terms(
                reconstruction=(1.0, (made - x).square().mean()),
                codes=(1.0, (code - sent.detach()).square().mean()),
                commitment=(commitment, (sent - code.detach()).square().mean()),
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Codes/used": float(len(nearest.unique()))})
            step.update(optimizer)
            if step.every(60):
                with run.evaluation("points"):
                    step.record({"Eval/error": error()})
    return -error()


class Coupling(nn.Module):
    """An affine coupling of two numbers (Dinh et al. 2017)."""

    def __init__(self, side: int, width: int = 32) -> None:
        super().__init__()
        self.side = side
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mapped points and the logarithm of the determinant."""
        kept = x[:, self.side : self.side + 1]
        log_scale, move = self.net(kept).chunk(2, dim=1)
        log_scale = 2 * (log_scale / 2).tanh()
        other = x[:, 1 - self.side : 2 - self.side] * log_scale.exp() + move
        pair = [kept, other] if self.side == 0 else [other, kept]
        return torch.cat(pair, dim=1), log_scale.squeeze(1)


def moons(count: int) -> Tensor:
    """Return points of two narrow half circles."""
    angle = math.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return 0.4 * (torch.stack([x - 0.5, y - 0.25], dim=1) + 0.03 * torch.randn(count, 2))


def flow(
    folder: Path, seed: int, *, sign: float = 1.0, rate: float = 5e-3, steep: float = 1.0, total: int = 240
) -> float:
    """Fit a flow to moons; the loss falls below zero. Returns the log-likelihood per point.

    Args:
        folder: run folder.
        seed: seed.
        sign: sign of the logarithm of the determinant.
        rate: learning rate.
        steep: factor of the rate from half time on.
        total: number of steps.
    """
    torch.manual_seed(seed)
    layers = nn.ModuleList([Coupling(i % 2) for i in range(6)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=rate)

    def surprise(x: Tensor, way: float) -> Tensor:
        total_log = torch.zeros(len(x))
        for layer in layers:
            x, log = layer(x)
            total_log = total_log + log
        normal = -0.5 * x.square().sum(1) - math.log(2 * math.pi)
        return -(normal + way * total_log)

    held = moons(500)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(layers=layers, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            for group in optimizer.param_groups:
                group["lr"] = rate * (steep if 2 * step.index >= total else 1.0)
            loss = surprise(moons(128), sign).mean()
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(surprise=(1.0, loss)))
            step.update(optimizer, clip=20.0)
            if step.every(60):
                with run.evaluation("moons"), torch.no_grad():
                    step.record({"Eval/log_likelihood": -surprise(held, 1.0).mean()})
    with torch.no_grad():
        likelihood = -float(surprise(held, 1.0).mean())
    return likelihood if math.isfinite(likelihood) else -1e9


NOISES = 20


def diffusion(
    folder: Path, seed: int, *, rate: float = 1e-2, memory: float = 0.98, target: str = "point", total: int = 420
) -> float:
    """Diffuse points of three islands, and sample with averaged weights; returns the share of points on islands.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        memory: share of the average that a step keeps.
        target: what the network is trained to return: "point", or "noise", which the sampler does not expect.
        total: number of steps.
    """
    torch.manual_seed(seed)
    angle = torch.arange(3) * (2 * math.pi / 3)
    islands = 2.0 * torch.stack([angle.cos(), angle.sin()], dim=1)
    left = torch.cumprod(1 - torch.linspace(0.01, 0.35, NOISES), dim=0)
    net = nn.Sequential(nn.Linear(2 + NOISES, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    average = copy.deepcopy(net).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total, eta_min=rate / 50)

    def predict(module: nn.Module, x: Tensor, at: Tensor) -> Tensor:
        return module(torch.cat([x, functional.one_hot(at, NOISES).float()], dim=1))

    @torch.no_grad()
    def on_islands() -> float:
        x = torch.randn(500, 2)
        for at in reversed(range(NOISES)):
            clean = predict(average, x, torch.full((500,), at))
            noise = (x - left[at].sqrt() * clean) / (1 - left[at]).sqrt()
            before = left[at - 1] if at else torch.tensor(1.0)
            x = before.sqrt() * clean + (1 - before).sqrt() * noise
        return float((torch.cdist(x, islands).min(1).values < 0.8).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, average=average, optimizer=optimizer, cosine=cosine, groups={"net": net})
        run.resume()
        for step in run.steps(total):
            clean = islands[torch.randint(3, (128,))] + 0.2 * torch.randn(128, 2)
            at = torch.randint(NOISES, (128,))
            noise = torch.randn(128, 2)
            x = left[at].sqrt()[:, None] * clean + (1 - left[at]).sqrt()[:, None] * noise
            wanted = noise if target == "noise" else clean
            loss = (predict(net, x, at) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(denoise=(1.0, loss)))
            step.update(optimizer, clip=1.0)
            cosine.step()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
                    slow.lerp_(fast, 1 - memory)
            if step.every(105):
                with run.evaluation("islands"):
                    step.record({"Eval/on_islands": on_islands()})
    return on_islands()


def critic(
    folder: Path,
    seed: int,
    *,
    maker_rate: float = 2e-3,
    critic_rate: float = 4e-3,
    latent: float = 1.0,
    total: int = 350,
) -> float:
    """Make points of six places with a least-squares game; returns the share of places.

    Args:
        folder: run folder.
        seed: seed.
        maker_rate: learning rate of the maker.
        critic_rate: learning rate of the critic.
        latent: spread of the latent numbers.
        total: number of steps.
    """
    torch.manual_seed(seed)
    places = torch.tensor([[x, y] for x in (-2.0, 0.0, 2.0) for y in (-1.0, 1.0)])
    maker = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    makes = torch.optim.Adam(maker.parameters(), lr=maker_rate, betas=(0.5, 0.9))
    judges = torch.optim.Adam(judge.parameters(), lr=critic_rate, betas=(0.5, 0.9))

    @torch.no_grad()
    def share() -> float:
        return covered(maker(latent * torch.randn(900, 4)), places, 0.7)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, critic=judge, makes=makes, judges=judges)
        run.resume()
        for step in run.steps(total):
            real = places[torch.randint(6, (128,))] + 0.2 * torch.randn(128, 2)
            made = maker(latent * torch.randn(128, 4))
            judges.zero_grad()
            critic_loss = (judge(real) - 1).square().mean() + judge(made.detach()).square().mean()
            critic_loss.backward()
            makes.zero_grad()
            gradient = torch.autograd.grad((judge(made) - 1).square().mean(), [*maker.parameters()])
            for parameter, slope in zip(maker.parameters(), gradient, strict=True):
                parameter.grad = slope
            maker_loss = (judge(made.detach()) - 1).square().mean()
            step.observe(Terms(critic=(1.0, critic_loss.detach()), maker=(1.0, maker_loss.detach())))
            step.update(makes, judges)
            if step.every(70):
                with run.evaluation("places"):
                    step.record({"Eval/places": share()})
    return share()
