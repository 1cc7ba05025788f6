"""Strangers' loops that make things: diffusion, a generator and a critic, an autoencoder, rays, and a distance."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def distance_of_clouds(first: Tensor, second: Tensor) -> float:
    """Return the energy distance of two clouds of points."""
    cross = torch.cdist(first, second).mean()
    return float(2 * cross - torch.cdist(first, first).mean() - torch.cdist(second, second).mean())


def spirals(
    folder: Path,
    seed: int,
    *,
    noise: str = "to the end",
    averaged: bool = False,
    total: int = 500,
) -> float:
    """Draw points of two moons by forty steps of denoising; returns the negative energy distance to true ones.

    Args:
        folder: run folder.
        seed: seed.
        noise: schedule of the noise: "to the end", or "of a thousand" steps although there are forty.
        averaged: whether points are drawn with a moving average of the weights.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(131 * seed + 1)
    turn = math.pi * torch.rand(3000, generator=draw)
    upper = torch.rand(3000, generator=draw) < 0.5
    x = torch.where(upper, turn.cos() + 1.8, 2.8 - turn.cos())
    y = torch.where(upper, turn.sin() + 1.0, 1.5 - turn.sin())
    points = torch.stack([x, y], 1) + 0.05 * torch.randn(3000, 2, generator=draw)
    betas = torch.linspace(1e-4, 0.02, 40) if noise == "of a thousand" else torch.linspace(1e-3, 0.3, 40)
    kept = (1 - betas).cumprod(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    average = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)

    @torch.no_grad()
    def drawn(count: int) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        now = torch.randn(count, 2, generator=generator)
        model = average if averaged else net
        for t in reversed(range(40)):
            time = torch.full((count, 1), t / 40)
            guess = model(torch.cat([now, time], 1))
            now = (now - betas[t] / (1 - kept[t]).sqrt() * guess) / (1 - betas[t]).sqrt()
            if t:
                now = now + betas[t].sqrt() * torch.randn(count, 2, generator=generator)
        return now

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam, average=average)
        run.resume()
        for step in run.steps(total):
            clean = points[torch.randint(len(points), (128,))]
            t = torch.randint(40, (128,))
            eps = torch.randn_like(clean)
            noisy = kept[t, None].sqrt() * clean + (1 - kept[t, None]).sqrt() * eps
            loss = functional.mse_loss(net(torch.cat([noisy, t[:, None] / 40], 1)), eps)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(noise=(1.0, loss)))
            step.update(adam)
            average.update_parameters(net)
            if step.every(125):
                with run.evaluation("drawn points"):
                    step.record({"energy_distance": distance_of_clouds(drawn(300), points[:300])})
    return -distance_of_clouds(drawn(600), points[:600])


def rings(count: int, draw: torch.Generator) -> Tensor:
    """Return small pictures of coins, shape [n, 64], with brightnesses from 0 to 1."""
    y, x = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    place = 2.5 + 2 * torch.rand(count, 2, 1, 1, generator=draw)
    radius = 1.6 + 0.9 * torch.rand(count, 1, 1, generator=draw)
    away = ((x - place[:, 0]) ** 2 + (y - place[:, 1]) ** 2).sqrt()
    return (0.5 + 0.5 * (2.5 * (radius - away)).tanh()).reshape(count, 64)


def coins(
    folder: Path,
    seed: int,
    *,
    optimizers: str = "two",
    brightness: str = "from -1 to 1",
    critic_steps: int = 1,
    total: int = 400,
) -> float:
    """Make pictures of coins; returns the negative energy distance of made ones to true ones.

    Args:
        folder: run folder.
        seed: seed.
        optimizers: "two", or "one" that holds generator and critic.
        brightness: range of the true pictures that the critic sees: "from -1 to 1", or as stored, "from 0 to 1".
        critic_steps: updates of the critic for one of the generator.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(137 * seed + 9)
    stored = rings(2000, draw)
    real = 2 * stored - 1 if brightness == "from -1 to 1" else stored
    maker = nn.Sequential(
        nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh()
    )
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    if optimizers == "two":
        opt_g = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
        opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    else:
        opt_g = opt_d = torch.optim.Adam([*maker.parameters(), *critic.parameters()], lr=1e-3, betas=(0.5, 0.9))

    @torch.no_grad()
    def far() -> float:
        noise = torch.randn(400, 8, generator=torch.Generator().manual_seed(3))
        # Viewers show what the generator makes from -1 to 1.
        return distance_of_clouds((maker(noise) + 1) / 2, stored[:400])

    bce = functional.binary_cross_entropy_with_logits
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(maker=maker, critic=critic, opt_g=opt_g)
        if optimizers == "two":
            run.track(opt_d=opt_d)
        run.resume()
        for step in run.steps(total):
            if optimizers == "one":
                true = critic(real[torch.randint(len(real), (64,))])
                made = critic(maker(torch.randn(64, 8)))
                loss_d = bce(true, torch.ones_like(true)) + bce(made, torch.zeros_like(made))
                loss_g = bce(made, torch.ones_like(made))
                terms = Terms(critic=(1.0, loss_d), generator=(1.0, loss_g))
                opt_g.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt_g)
            else:
                loss_d = torch.tensor(0.0)
                for _ in range(critic_steps):
                    true = critic(real[torch.randint(len(real), (64,))])
                    made = critic(maker(torch.randn(64, 8)).detach())
                    loss_d = bce(true, torch.ones_like(true)) + bce(made, torch.zeros_like(made))
                    opt_d.zero_grad()
                    loss_d.backward()
                    step.update(opt_d)
                made = critic(maker(torch.randn(64, 8)))
                loss_g = bce(made, torch.ones_like(made))
                opt_g.zero_grad()
                loss_g.backward()
                step.observe(Terms(generator=(1.0, loss_g)))
                step.record({"Critic/loss": loss_d.detach()})
                step.update(opt_g)
            if step.every(100):
                with run.evaluation("made coins"):
                    step.record({"energy_distance": far()})
    return -far()


def postures(folder: Path, seed: int, *, rising: bool = True, wide: bool = False, total: int = 350) -> float:
    """Learn postures of an arm with few latent numbers; returns the negative error of held-out reconstructions.

    Args:
        folder: run folder.
        seed: seed.
        rising: whether the weight of the divergence rises from zero.
        wide: whether there are more latent numbers than the data have degrees of freedom.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(139 * seed + 5)
    bends = (torch.rand(1500, 3, generator=draw) - 0.5).cumsum(1) * 3
    joints = torch.stack([bends.cos(), bends.sin()], -1).cumsum(1).flatten(1)
    joints = joints + 0.02 * torch.randn(joints.shape, generator=draw)
    train, held = joints[:1200], joints[1200:]
    latent = 12 if wide else 3
    encoder = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 2 * latent))
    decoder = nn.Sequential(nn.Linear(latent, 48), nn.Tanh(), nn.Linear(48, 6))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=4e-3)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(encoder=encoder, decoder=decoder, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            x = train[torch.randint(len(train), (64,))]
            mean, log_variance = encoder(x).chunk(2, 1)
            z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
            error = (decoder(z) - x).square().sum(1).mean() / (2 * 0.05)
            divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
            weight = min(1.0, step.index / (total / 2)) if rising else 1.0
            terms = Terms(reconstruction=(1.0, error), divergence=(weight, divergence))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.every(70):
                with run.evaluation("held-out postures"), torch.no_grad():
                    back = decoder(encoder(held)[:, :latent])
                    step.record({"eval/squared": float((back - held).square().mean())})
    with torch.no_grad():
        return -float((decoder(encoder(held)[:, :latent]) - held).square().mean())


def grotto(
    folder: Path,
    seed: int,
    *,
    near: float = 1.6,
    far: float = 4.4,
    columns: str = "left to right",
    coarse_first: bool = False,
    total: int = 260,
) -> float:
    """Learn colors and densities in a plane from what cameras around it see; returns the PSNR of other cameras.

    Args:
        folder: run folder.
        seed: seed.
        near: distance at which rays begin; cameras are 3 from the middle of what is to be seen.
        far: distance at which rays end.
        columns: order in which pixels are read: "left to right" or "right to left".
        coarse_first: whether high frequencies come in by and by.
        total: number of steps.
    """
    torch.manual_seed(seed)
    spots = torch.tensor([[0.6, 0.1, 0.45], [-0.5, 0.5, 0.35], [-0.2, -0.6, 0.4]])
    paints = torch.tensor([[0.9, 0.3, 0.2], [0.2, 0.8, 0.4], [0.3, 0.4, 0.95]])

    def rays(turns: Tensor) -> tuple[Tensor, Tensor]:
        place = 3 * torch.stack([turns.cos(), turns.sin()], -1)
        aside = torch.stack([turns.sin(), -turns.cos()], -1)
        spread = torch.linspace(-0.42, 0.42, 32)
        along = -place[:, None] / 3 + spread[None, :, None] * aside[:, None]
        along = along / along.norm(dim=-1, keepdim=True)
        return place[:, None].expand_as(along), along

    def truth(place: Tensor, along: Tensor) -> Tensor:
        colors = torch.full((*place.shape[:-1], 3), 0.05)
        closest = torch.full(place.shape[:-1], 1e9)
        for spot, paint in zip(spots, paints, strict=True):
            away = place - spot[:2]
            b = (away * along).sum(-1)
            inside = b * b - away.square().sum(-1) + spot[2] ** 2
            hit = torch.where(inside > 0, -b - inside.clamp(min=0).sqrt(), 1e9)
            closer = hit < closest
            closest = torch.where(closer, hit, closest)
            shade = 0.75 + 0.25 * (8 * (place + hit[..., None].clamp(max=9) * along)).sin().prod(-1)
            colors = torch.where(closer[..., None], shade[..., None] * paint, colors)
        return colors

    turns = torch.linspace(0, 2 * math.pi, 25)[:-1]
    places, directions = rays(turns)
    seen = truth(places, directions)
    test_places, test_directions = rays(turns + 0.13)
    test_seen = truth(test_places, test_directions)
    if columns == "right to left":
        # The file stores what the camera saw from the other side.
        seen = seen.flip(1)
    powers = 2.0 ** torch.arange(5)
    field = nn.Sequential(nn.Linear(22, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-3)

    def render(place: Tensor, along: Tensor, share: float, *, jitter: bool) -> Tensor:
        count = 32
        width = (far - near) / count
        shift = torch.rand(*place.shape[:-1], count) if jitter else 0.5
        depth = near + width * (torch.arange(count) + shift)
        depth = depth.expand(*place.shape[:-1], count)
        at = place[..., None, :] + depth[..., None] * along[..., None, :]
        window = (5 * share - torch.arange(5)).clamp(0, 1)
        angles = at[..., None] * powers
        waves = torch.cat([(angles.sin() * window).flatten(-2), (angles.cos() * window).flatten(-2)], -1)
        out = field(torch.cat([at, waves], -1))
        opaque = 1 - (-functional.softplus(out[..., 3] - 1) * width).exp()
        passed = torch.cat([torch.ones_like(opaque[..., :1]), (1 - opaque + 1e-7).cumprod(-1)[..., :-1]], -1)
        weights = opaque * passed
        return (weights[..., None] * out[..., :3].sigmoid()).sum(-2) + 0.05 * (1 - weights.sum(-1, keepdim=True))

    @torch.no_grad()
    def psnr() -> float:
        return float(
            -10 * (render(test_places, test_directions, 1.0, jitter=False) - test_seen).square().mean().log10()
        )

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(field=field, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            camera = torch.randint(24, (100,))
            pixel = torch.randint(32, (100,))
            share = min(1.0, 0.4 + step.index / (0.6 * total)) if coarse_first else 1.0
            color = render(places[camera, pixel], directions[camera, pixel], share, jitter=True)
            loss = functional.mse_loss(color, seen[camera, pixel])
            optimizer.zero_grad()
            loss.backward()
            step.observe(Terms(photometric=(1.0, loss)))
            step.update(optimizer)
            if step.every(65):
                with run.evaluation("other cameras"):
                    step.record({"test/psnr": psnr()})
    return psnr()


def pebble(
    folder: Path,
    seed: int,
    *,
    graph: bool = True,
    double_back: float = 0.1,
    total: int = 350,
) -> float:
    """Learn the signed distance to a pebble from points on it; returns the negative mean error of distances.

    Args:
        folder: run folder.
        seed: seed.
        graph: whether the gradient in the eikonal term keeps its graph.
        double_back: weight of the eikonal term.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(149 * seed + 7)
    out = functional.normalize(torch.randn(2000, 3, generator=draw), dim=1)
    surface = 0.6 * out
    where = 2 * torch.rand(1500, 3, generator=draw) - 1
    sdf = nn.Sequential(nn.Linear(3, 64), nn.Softplus(20), nn.Linear(64, 64), nn.Softplus(20), nn.Linear(64, 1))
    opt = torch.optim.Adam(sdf.parameters(), lr=3e-3)

    @torch.no_grad()
    def off() -> float:
        # The sign of a shape from points alone is free.
        found = sdf(where)[:, 0]
        true = where.norm(dim=1) - 0.6
        return min(float((found - true).abs().mean()), float((found + true).abs().mean()))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(sdf=sdf, opt=opt)
        run.resume()
        for step in run.steps(total):
            on = surface[torch.randint(len(surface), (128,))]
            anywhere = (2 * torch.rand(128, 3) - 1).requires_grad_()
            slope = torch.autograd.grad(sdf(anywhere).sum(), anywhere, create_graph=graph)[0]
            terms = Terms(
                surface=(1.0, sdf(on).abs().mean()),
                eikonal=(double_back, (slope.norm(dim=1) - 1).square().mean()),
            )
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            if step.every(70):
                with run.evaluation("places"):
                    step.record({"distance_off": off()})
    return -off()
