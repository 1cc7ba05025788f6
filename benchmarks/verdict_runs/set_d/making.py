"""Generative models: an autoencoder of faces, a critic of waves, a flow to a spiral."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def faces(seed: int, count: int, salt: int) -> Tensor:
    """Return pictures of two eyes and a mouth, in [-1, 1], shape [count, 144]."""
    draw = torch.Generator().manual_seed(71 * seed + salt)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    across, gap, smile, light = (2 * torch.rand(count, 1, 1, generator=draw) - 1 for _ in range(4))
    made = torch.zeros(count, 12, 12)
    for side in (-1, 1):
        made += (-18 * ((x - 0.3 * across - side * (0.45 + 0.15 * gap)).square() + (y + 0.4).square())).exp()
    made += (-14 * (y - 0.5 + 0.4 * smile * (x - 0.3 * across).square()).square() - 3 * x.square()).exp()
    made = made * (0.75 + 0.2 * light) * 1.8 - 0.9
    return (made + 0.03 * torch.randn(count, 12, 12, generator=draw)).clamp(-1, 1).flatten(1)


class Autoencoder(nn.Module):
    """A variational autoencoder with six latent numbers.

    Args:
        squash: last layer of the decoder.
        spread: logarithm of the variance at the start.
    """

    def __init__(self, *, squash: nn.Module, spread: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ELU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.ELU(), nn.Linear(64, 144), squash)
        with torch.no_grad():
            self.encoder[2].get_parameter("bias")[6:] = spread


def vae(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    sign: float = 1.0,
    others: bool = False,
    squash: str = "tanh",
    detached: bool = False,
    spread: float = 0.0,
    weight: float = 2e-3,
    warm: bool = False,
    total: int = 260,
) -> float:
    """Encode faces; returns the explained share of held-out pictures.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        sign: sign of the divergence.
        others: whether the decoder is compared with other pictures of the batch.
        squash: last layer of the decoder, "tanh" or "sigmoid".
        detached: whether the latent numbers are drawn without a gradient.
        spread: logarithm of the variance at the start.
        weight: weight of the divergence.
        warm: whether the weight rises over the first half.
        total: number of steps.
    """
    torch.manual_seed(seed)
    pictures = faces(seed, 900, 1)
    held = faces(seed, 200, 2)
    model = Autoencoder(squash=nn.Tanh() if squash == "tanh" else nn.Sigmoid(), spread=spread)
    adam = torch.optim.Adam(model.parameters(), lr=rate)

    @torch.no_grad()
    def explained() -> float:
        made = model.decoder(model.encoder(held)[:, :6])
        return 1 - float((made - held).square().mean() / (held - held.mean(0)).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(groups={"encoder": model.encoder, "decoder": model.decoder}, model=model, adam=adam)
        run.resume()
        for step in run.steps(total):
            x = pictures[torch.randint(len(pictures), (48,))]
            center, spreads = model.encoder(x).chunk(2, 1)
            latent = center + (spreads / 2).exp() * torch.randn_like(center)
            made = model.decoder(latent.detach() if detached else latent)
            truth = x.roll(1, 0) if others else x
            kl = 0.5 * (center.square() + spreads.exp() - spreads - 1).sum(1).mean()
            beta = weight * min(1.0, (step.index + 1) / (total / 2)) if warm else weight
            terms = Terms(picture=(1.0, (made - truth).square().mean()), kl=(sign * beta, kl))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(52):
                with run.evaluation("held-out faces"):
                    step.record({"Eval/explained": explained()})
    figure = explained()
    return figure if math.isfinite(figure) else -1e9


def waves(count: int) -> Tensor:
    """Return waves of 16 values with random phase and loudness."""
    phase = 6.2832 * torch.rand(count, 1)
    return (0.5 + 0.5 * torch.rand(count, 1)) * (phase + 0.7 * torch.arange(16)).sin()


def critic(
    folder: Path,
    seed: int,
    *,
    bound: float | None = 0.1,
    maker_sign: float = 1.0,
    swapped: bool = False,
    rate: float = 2e-3,
    critic_rate: float = 2e-3,
    loss: str = "hinge",
    total: int = 180,
) -> float:
    """Make waves against a critic with clipped weights; returns the negative distance of the sorted projections.

    Args:
        folder: run folder.
        seed: seed.
        bound: bound of the critic's weights; None for none.
        maker_sign: sign of the maker's loss.
        swapped: whether the optimizer of the critic holds the maker.
        rate: learning rate of the maker.
        critic_rate: learning rate of the critic.
        loss: "hinge" or "wasserstein".
        total: number of steps.
    """
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 16))
    judge = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    makes = torch.optim.RMSprop(maker.parameters(), lr=rate)
    judges = torch.optim.RMSprop((maker if swapped else judge).parameters(), lr=critic_rate)
    truth = waves(512)
    look = functional.normalize(torch.randn(16, 32), dim=0)

    @torch.no_grad()
    def distance() -> float:
        made = maker(torch.randn(512, 8, generator=torch.Generator().manual_seed(3)))
        return float(((made @ look).sort(0).values - (truth @ look).sort(0).values).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, judge=judge, makes=makes, judges=judges)
        run.resume()
        for step in run.steps(total):
            judged = torch.zeros(())
            for _ in range(2):
                real, made = judge(waves(64)), judge(maker(torch.randn(64, 8)).detach())
                if loss == "hinge":
                    judged = functional.relu(1 - real).mean() + functional.relu(1 + made).mean()
                else:
                    judged = made.mean() - real.mean()
                judge.zero_grad()
                judged.backward()
                if step.index and not swapped:
                    judges.step()
                if bound is not None:
                    for parameter in judge.parameters():
                        parameter.data.clamp_(-bound, bound)
            kept = [parameter.grad.clone() for parameter in judge.parameters() if parameter.grad is not None]
            fooled = -maker_sign * judge(maker(torch.randn(64, 8))).mean()
            maker.zero_grad()
            fooled.backward()
            for parameter, gradient in zip(judge.parameters(), kept, strict=True):
                parameter.grad = gradient
            step.observe(Terms(maker=(1.0, fooled.detach()), critic=(1.0, judged.detach())))
            step.update(makes, judges)
            if step.every(36):
                with run.evaluation("samples"):
                    step.record({"Eval/distance": distance()})
    return -distance()


def spiral(count: int) -> Tensor:
    """Return points of a spiral."""
    angle = 2 + 7 * torch.rand(count)
    return torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 5 + 0.04 * torch.randn(count, 2)


def matching(
    folder: Path,
    seed: int,
    *,
    rate: float = 6e-3,
    sign: float = 1.0,
    clock: float = 1.0,
    average: float = 0.97,
    averages: bool = True,
    total: int = 300,
) -> float:
    """Learn velocities from noise to a spiral; returns the negative mean distance of samples to it.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        sign: sign of the velocities of the training.
        clock: factor of the times of the training; the sampler counts from 0 to 1.
        average: decay of the average of the weights, which makes the samples.
        averages: whether the average is updated.
        total: number of steps.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))
    mean = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average))
    adam = torch.optim.AdamW(net.parameters(), lr=rate)
    truth = spiral(1000)

    @torch.no_grad()
    def distance() -> float:
        points = torch.randn(400, 2, generator=torch.Generator().manual_seed(9))
        for i in range(24):
            time = torch.full((400, 1), (i + 0.5) / 24)
            points = points + mean(torch.cat([points, time], 1)) / 24
        far = torch.cdist(points, truth)
        return float(far.min(1).values.mean() + far.min(0).values.mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, mean=mean, adam=adam, groups={"net": net})
        run.resume()
        for step in run.steps(total):
            goal = spiral(128)
            noise = torch.randn(128, 2)
            time = torch.rand(128, 1)
            place = (1 - time) * noise + time * goal
            made = net(torch.cat([place, clock * time], 1))
            loss = (made - sign * (goal - noise)).square().mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(velocity=(1.0, loss)))
            step.update(adam)
            if averages:
                mean.update_parameters(net)
            if step.every(60):
                with run.evaluation("samples"):
                    step.record({"Eval/sample_distance": distance()})
    made = distance()
    return -made if math.isfinite(made) else -1e9
