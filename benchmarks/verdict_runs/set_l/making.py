"""Strangers' loops that make things: pottery, rings of smoke, and snowflakes."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def pots(count: int, draw: torch.Generator) -> Tensor:
    """Return profiles of pots, shape [count, 48], from -1 to 1: of four numbers each."""
    height = torch.linspace(0, 1, 48)
    a, b, c, d = torch.rand(4, count, 1, generator=draw)
    radius = 0.3 + 0.5 * a + 0.4 * b * (3.14 * height).sin() + 0.35 * (c - 0.5) * (9 * height + 3 * d).sin()
    return 2 * (radius + 0.02 * torch.randn(count, 48, generator=draw)).clamp(0, 1.4) / 1.4 - 1


class Potter(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 48))

    def decode(self, code: Tensor) -> Tensor:
        """Return profiles."""
        return self.decoder(code)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return profiles that are made again, and mean and logarithm of the variance of their codes."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self.decode(code), mean, log_variance

    def loss_function(self, x: Tensor, weight: float, reduction: str) -> Terms:
        """Return the terms of the loss.

        Args:
            x: profiles.
            weight: weight of the divergence.
            reduction: what the error of a profile is: the "sum" over its points, or their "mean".
        """
        made, mean, log_variance = self(x)
        error = (made - x).square() / (2 * 0.05**2) / 10
        error = error.sum(1) if reduction == "sum" else (made - x).square().mean(1)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return Terms(reconstruction=(1.0, error.mean()), divergence=(weight, divergence.mean()))


def pottery(
    folder: Path,
    seed: int,
    *,
    reduction: str = "sum",
    warm_up: int = 0,
    lr: float = 2e-3,
    evaluated: int = 60,
    total: int = 360,
) -> float:
    """Learn codes of pots; returns the signal-to-noise ratio of pots that are made again, in dB.

    Args:
        folder: run folder.
        seed: seed.
        reduction: what the error of a profile is: the "sum" over its points, or their "mean".
        warm_up: steps in which the weight of the divergence rises.
        lr: learning rate.
        evaluated: steps between evaluations; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(571 * seed + 7)
    x = pots(2000, draw)
    held = pots(400, draw)
    vae = Potter()
    optimizer = torch.optim.Adam(vae.parameters(), lr=lr)

    @torch.no_grad()
    def ratio() -> float:
        mean, _ = vae.encoder(held).chunk(2, 1)
        error = (vae.decode(mean) - held).square().mean()
        return float(10 * (held.var(0).mean() / error).log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(vae=vae, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            batch = x[torch.randint(len(x), (64,))]
            weight = min(1.0, (step.index + 1) / warm_up) if warm_up else 1.0
            terms = vae.loss_function(batch, weight, reduction)
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if evaluated and step.every(evaluated):
                with run.evaluation("other pots"):
                    step.record({"val/snr_db": ratio()})
    return ratio()


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return the energy distance of two clouds of points."""
    return float(
        2 * torch.cdist(first, second).mean() - torch.cdist(first, first).mean() - torch.cdist(second, second).mean()
    )


def puffs(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return places in two rings of smoke."""
    turn = 6.2832 * torch.rand(count, generator=draw)
    side = torch.randint(2, (count,), generator=draw).float()
    place = torch.stack([turn.cos() * (0.6 + 0.3 * side) + 1.6 * side - 0.8, turn.sin() * 0.9], 1)
    return place + 0.06 * torch.randn(count, 2, generator=draw)


def smoke(
    folder: Path,
    seed: int,
    *,
    rule: str = "not saturating",
    lr_maker: float = 1e-3,
    lr_judge: float = 1e-3,
    penalty: float = 0.1,
    total: int = 700,
) -> float:
    """Make rings of smoke by a game of two networks; returns the negative energy distance to true ones.

    Args:
        folder: run folder.
        seed: seed.
        rule: loss of the game: "not saturating" or "squares".
        lr_maker: learning rate of the maker.
        lr_judge: learning rate of the judge.
        penalty: weight of the penalty of the judge's slopes at true places.
        total: number of steps.
    """
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    judge = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=lr_maker, betas=(0.5, 0.99))
    of_judge = torch.optim.Adam(judge.parameters(), lr=lr_judge, betas=(0.5, 0.99))
    true = puffs(1000, torch.Generator().manual_seed(577 * seed + 3))

    def judged(on_true: Tensor, on_made: Tensor) -> Terms:
        if rule == "squares":
            return Terms(true=(0.5, (on_true - 1).square().mean()), made=(0.5, on_made.square().mean()))
        return Terms(true=(1.0, functional.softplus(-on_true).mean()), made=(1.0, functional.softplus(on_made).mean()))

    def fooled(on_made: Tensor) -> Tensor:
        return (on_made - 1).square().mean() / 2 if rule == "squares" else functional.softplus(-on_made).mean()

    @torch.no_grad()
    def distance() -> float:
        return energy_distance(maker(torch.randn(1000, 6)), true)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, judge=judge, of_maker=of_maker, of_judge=of_judge)
        run.resume()
        for step in run.steps(total):
            real = puffs(64).requires_grad_(requires_grad=penalty > 0)
            on_real = judge(real)
            terms = judged(on_real, judge(maker(torch.randn(64, 6)).detach()))
            if penalty:
                (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
                terms |= Terms(slope=(penalty, slope.square().sum(1).mean()))
            of_judge.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(of_judge)
            loss = fooled(judge(maker(torch.randn(64, 6))))
            of_maker.zero_grad()
            loss.backward()
            step.observe(Terms(fooled=(1.0, loss)))
            step.update(of_maker)
            if step.every(100):
                with run.evaluation("made and true"):
                    step.record({"eval/distance": distance()})
    return -distance()


def flakes(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return places on a snowflake of six arms."""
    arm = torch.randint(6, (count,), generator=draw).float() * 1.0472
    far = 0.2 + 1.4 * torch.rand(count, generator=draw)
    place = torch.stack([far * arm.cos(), far * arm.sin()], 1)
    return place + 0.06 * torch.randn(count, 2, generator=draw)


class Melter(nn.Module):
    """Tells what was added to a place."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the noise, or what is asked for; levels are of 0 to 1."""
        angle = level[:, None] * torch.tensor([1.0, 3.0, 8.0])
        return self.net(torch.cat([x, angle.sin(), angle.cos()], 1))


def snowflakes(
    folder: Path,
    seed: int,
    *,
    levels: int = 40,
    most: float = 0.25,
    average: float = 0.0,
    target: str = "noise",
    weighed: bool = False,
    lr: float = 3e-3,
    total: int = 500,
) -> float:
    """Make snowflakes by diffusion; returns the negative energy distance to true ones.

    Args:
        folder: run folder.
        seed: seed.
        levels: number of levels of noise.
        most: share of the variance that the last level adds.
        average: decay of the average of the weights that makes flakes; 0 for none.
        target: what the network learns: the "noise", for which the sampler takes its answer, or the "place" without it.
        weighed: whether the loss of the levels with little noise counts less.
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    model = Melter()
    smooth = Melter()
    smooth.load_state_dict(model.state_dict())
    adam = torch.optim.AdamW(model.parameters(), lr=lr)
    alphas = 1 - torch.linspace(most / 50, most, levels)
    remains = alphas.cumprod(0)
    true = flakes(1000, torch.Generator().manual_seed(587 * seed + 6))

    @torch.no_grad()
    def distance() -> float:
        judged = smooth if average else model
        x = torch.randn(1000, 2)
        for k in reversed(range(levels)):
            noise = judged(x, torch.full((1000,), k / levels))
            x = (x - (1 - alphas[k]) / (1 - remains[k]).sqrt() * noise) / alphas[k].sqrt()
            if k:
                x = x + (1 - alphas[k]).sqrt() * torch.randn_like(x)
        return energy_distance(x.clamp(-5, 5), true)

    def objective(place: Tensor) -> Terms:
        k = torch.randint(levels, (len(place),))
        noise = torch.randn_like(place)
        noisy = remains[k, None].sqrt() * place + (1 - remains[k, None]).sqrt() * noise
        error = (model(noisy, k / levels) - (noise if target == "noise" else place)).square().mean(1)
        counts = (1 - remains[k]).clamp(min=0.1) if weighed else torch.ones_like(error)
        return Terms(denoise=(1.0, (counts * error).mean()))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(model=model, adam=adam)
        if average:
            run.track(smooth=smooth)
        run.resume()
        for step in run.steps(total):
            step.backward(objective, flakes(128))
            step.update(adam)
            if average:
                with torch.no_grad():
                    for mine, its in zip(smooth.parameters(), model.parameters(), strict=True):
                        mine.lerp_(its, 1 - average)
            if step.every(100):
                with run.evaluation("made flakes"):
                    step.record({"eval/distance": distance()})
    return -distance()
