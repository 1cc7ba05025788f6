"""Strangers' loops that make things or store them: comets, feathers, a relief, lichen, and stamps."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return the energy distance of two clouds of points."""
    return float(
        2 * torch.cdist(first, second).mean() - torch.cdist(first, first).mean() - torch.cdist(second, second).mean()
    )


def tails(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return places of dust in the tails of two comets."""
    far = torch.rand(count, generator=draw)
    side = torch.randint(2, (count,), generator=draw).float() * 2 - 1
    place = torch.stack([side * (2 * far - 0.4), side * (1.2 * far.square() + 0.3)], 1)
    return place + 0.06 * (1 + far[:, None]) * torch.randn(count, 2, generator=draw)


def comets(
    folder: Path,
    seed: int,
    *,
    bound: float = 0.1,
    rule: str = "wasserstein",
    lr: float = 2e-3,
    rounds: int = 4,
    total: int = 260,
) -> float:
    """Make dust of comets by a game with a critic; returns the negative energy distance to true dust.

    Args:
        folder: run folder.
        seed: seed.
        bound: largest size of a weight of the critic; 0 for none.
        rule: what the game is about: the "wasserstein" distance, or the "chance" that dust is true.
        lr: learning rate of both.
        rounds: updates of the critic for one of the maker.
        total: number of steps.
    """
    torch.manual_seed(seed)
    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=lr, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=lr, betas=(0.5, 0.9))
    true = tails(1000, torch.Generator().manual_seed(419 * seed + 2))
    entropy = functional.binary_cross_entropy_with_logits

    def judged() -> Terms:
        on_true = critic(tails(64))
        on_made = critic(maker(torch.randn(64, 4)).detach())
        if rule == "wasserstein":
            return Terms(critic=(1.0, on_made.mean() - on_true.mean()))
        return Terms(
            true=(0.5, entropy(on_true, torch.ones_like(on_true))),
            made=(0.5, entropy(on_made, torch.zeros_like(on_made))),
        )

    @torch.no_grad()
    def distance() -> float:
        return energy_distance(maker(torch.randn(1000, 4)), true)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, critic=critic, of_maker=of_maker, of_critic=of_critic)
        run.resume()
        for step in run.steps(total):
            for _ in range(rounds):
                terms = judged()
                of_critic.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(of_critic)
                if bound:
                    with torch.no_grad():
                        for weight in critic.parameters():
                            weight.clamp_(-bound, bound)
            on_made = critic(maker(torch.randn(64, 4)))
            fooled = -on_made.mean() if rule == "wasserstein" else entropy(on_made, torch.ones_like(on_made))
            of_maker.zero_grad()
            fooled.backward()
            step.observe(Terms(maker=(1.0, fooled)))
            step.update(of_maker)
            if step.every(52):
                with run.evaluation("made and true"):
                    step.record({"eval/distance": distance()})
    return -distance()


def barbs(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return places on a bent feather."""
    along = 2 * torch.rand(count, generator=draw) - 1
    place = torch.stack([1.3 * along, (3 * along).sin() * 0.9], 1)
    return place + 0.05 * torch.randn(count, 2, generator=draw)


class Cleaner(nn.Module):
    """Tells the noise in a place from its level."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 + 8, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """Return the noise."""
        angle = level[:, None] * torch.tensor([1.0, 2.0, 5.0, 12.0])
        return self.net(torch.cat([x, angle.sin(), angle.cos()], 1))


def feathers(
    folder: Path,
    seed: int,
    *,
    asked: str = "as in training",
    average: float = 0.0,
    total: int = 420,
) -> float:
    """Make places on a feather by diffusion; returns the negative energy distance to true ones.

    Args:
        folder: run folder.
        seed: seed.
        asked: how levels are told when feathers are made: "as in training", from 0 to 1, or as "numbers".
        average: decay of the average of the weights that makes places; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    cleaner = Cleaner()
    smooth = torch.optim.swa_utils.AveragedModel(
        cleaner, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(average or 0.9)
    )
    adam = torch.optim.Adam(cleaner.parameters(), lr=3e-3)
    levels = 40
    alphas = 1 - torch.linspace(0.005, 0.25, levels)
    remains = alphas.cumprod(0)
    scale = levels if asked == "as in training" else 1
    true = barbs(1000, torch.Generator().manual_seed(421 * seed + 8))

    @torch.no_grad()
    def distance() -> float:
        model = smooth if average else cleaner
        x = torch.randn(1000, 2)
        for k in reversed(range(levels)):
            noise = model(x, torch.full((1000,), k / scale))
            x = (x - (1 - alphas[k]) / (1 - remains[k]).sqrt() * noise) / alphas[k].sqrt()
            if k:
                x = x + (1 - alphas[k]).sqrt() * torch.randn_like(x)
        return energy_distance(x.clamp(-5, 5), true)

    def objective(place: Tensor) -> Terms:
        k = torch.randint(levels, (len(place),))
        noise = torch.randn_like(place)
        noisy = remains[k, None].sqrt() * place + (1 - remains[k, None]).sqrt() * noise
        return Terms(noise=(1.0, functional.mse_loss(cleaner(noisy, k / levels), noise)))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(cleaner=cleaner, adam=adam)
        if average:
            run.track(smooth=smooth)
        run.resume()
        for step in run.steps(total):
            step.backward(objective, barbs(128))
            step.update(adam)
            if average:
                smooth.update_parameters(cleaner)
            if step.every(105):
                with run.evaluation("made feathers"):
                    step.record({"eval/distance": distance()})
    return -distance()


def carved(seed: int, size: int) -> Tensor:
    """Return the heights of a relief, shape [size, size], from -1 to 1."""
    draw = torch.Generator().manual_seed(431 * seed + 5)
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    height = torch.zeros(size, size)
    for _ in range(14):
        pace, turn, phase = torch.rand(3, generator=draw).tolist()
        angle = 3.14 * turn
        height = height + ((4 + 16 * pace) * (math.cos(angle) * x + math.sin(angle) * y) + 6.28 * phase).sin()
    return height / height.abs().max()


class Relief(nn.Module):
    """Heights from a grid of features and a small network.

    Attributes:
        low: lower bound of the places that the grid is asked at.
    """

    def __init__(self, low: float) -> None:
        super().__init__()
        self.grid = nn.Parameter(0.1 * torch.randn(1, 8, 18, 18))
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.low = low

    def forward(self, place: Tensor) -> Tensor:
        """Return heights at places of 0 to 1."""
        asked = self.low + (1 - self.low) * place
        features = functional.grid_sample(self.grid, asked[None, None], align_corners=True)
        return self.net(features[0, :, 0].T)[:, 0]


def relief(
    folder: Path,
    seed: int,
    *,
    low: float = -1.0,
    noise: float = 0.0,
    total: int = 320,
) -> float:
    """Store a relief in a grid of features; returns its signal-to-noise ratio in dB.

    Args:
        folder: run folder.
        seed: seed.
        low: lower bound of the places that the grid is asked at; the upper one is 1.
        noise: noise of the measured heights.
        total: number of steps.
    """
    torch.manual_seed(seed)
    size = 48
    height = carved(seed, size).flatten()
    measured = height + noise * torch.randn(len(height))
    axis = torch.linspace(0, 1, size)
    place = torch.cartesian_prod(axis, axis).flip(1)
    field = Relief(low)
    adam = torch.optim.Adam(field.parameters(), lr=1e-2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)

    @torch.no_grad()
    def ratio() -> float:
        return float(10 * (height.square().mean() / (field(place) - height).square().mean()).log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, adam=adam, cosine=cosine)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(size * size, (400,))
            loss = functional.mse_loss(field(place[i]), measured[i])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(height=(1.0, loss)))
            step.update(adam)
            cosine.step()
            if step.every(80):
                with run.evaluation("whole relief"):
                    step.record({"eval/ratio_db": ratio()})
    return ratio()


def lichen(
    folder: Path,
    seed: int,
    *,
    numbers: str = "float32",
    least: float = 1e-8,
    places: str = "from -1 to 1",
    lr: float = 3e-3,
    total: int = 360,
) -> float:
    """Store the growth of lichen on a wall in a network of waves; returns its signal-to-noise ratio in dB.

    Args:
        folder: run folder.
        seed: seed.
        numbers: type of the weights.
        least: number that the optimizer adds to its denominators.
        places: coordinates of a place: "from -1 to 1", or in "pixels".
        lr: learning rate.
        total: number of steps.
    """
    torch.manual_seed(seed)
    size = 40
    growth = carved(seed + 50, size).flatten()
    axis = torch.linspace(-1, 1, size) if places == "from -1 to 1" else torch.arange(float(size))
    place = torch.cartesian_prod(axis, axis)
    paces = 1.7 * torch.randn(2, 48, generator=torch.Generator().manual_seed(433 * seed)) * 3.0
    kind = getattr(torch, numbers)
    net = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(kind)
    adam = torch.optim.Adam(net.parameters(), lr=lr, eps=least)

    def grown(at: Tensor) -> Tensor:
        angle = at @ paces
        return net(torch.cat([angle.sin(), angle.cos()], 1).to(kind))[:, 0].float()

    @torch.no_grad()
    def ratio() -> float:
        return float(10 * (growth.square().mean() / (grown(place) - growth).square().mean()).log10())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(size * size, (256,))
            loss = functional.mse_loss(grown(place[i]), growth[i])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(growth=(1.0, loss)))
            step.update(adam)
            if step.every(90):
                with run.evaluation("whole wall"):
                    step.record({"eval/ratio_db": ratio()})
    return ratio()


def stamps(
    folder: Path,
    seed: int,
    *,
    length: str = "each stamp",
    batch: int = 64,
    warmth: float = 0.1,
    total: int = 240,
) -> float:
    """Learn which prints are of the same stamp from pairs of prints; returns the share that finds its partner.

    Args:
        folder: run folder.
        seed: seed.
        length: what has length one: the code of "each stamp", or "the batch" as a whole.
        batch: number of pairs of a batch.
        warmth: temperature of the loss.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(439 * seed + 4)
    mix = torch.randn(10, 60, generator=draw) / 3

    def prints(count: int) -> tuple[Tensor, Tensor]:
        motif = torch.randn(count, 10, generator=draw)
        worn = [(motif @ mix).tanh() + 0.45 * torch.randn(count, 60, generator=draw) for _ in range(2)]
        return worn[0], worn[1]

    one, other = prints(1500)
    new_one, new_other = prints(300)
    net = nn.Sequential(nn.Linear(60, 96), nn.ReLU(), nn.Linear(96, 24))
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def codes(worn: Tensor) -> Tensor:
        code = net(worn)
        return functional.normalize(code, dim=1) if length == "each stamp" else code / code.norm()

    def objective(pair: tuple[Tensor, Tensor]) -> Terms:
        likeness = codes(pair[0]) @ codes(pair[1]).T / warmth
        own = torch.arange(len(likeness))
        both = functional.cross_entropy(likeness, own) + functional.cross_entropy(likeness.T, own)
        return Terms(contrast=(1.0, both / 2))

    @torch.no_grad()
    def found() -> float:
        likeness = functional.normalize(net(new_one), dim=1) @ functional.normalize(net(new_other), dim=1).T
        return float((likeness.argmax(1) == torch.arange(300)).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(one), (batch,))
            step.backward(objective, (one[rows], other[rows]))
            step.update(adam)
            if step.every(60):
                with run.evaluation("other stamps"):
                    step.record({"val/found": found()})
    return found()
