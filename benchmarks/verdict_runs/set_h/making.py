"""Making and acting: coins of a mint, dunes by diffusion, shells of a latent number, a glider, water in a well."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def apart(a: Tensor, b: Tensor) -> float:
    """Return the energy distance between two sets of points."""
    between = torch.cdist(a, b).mean()
    return float(2 * between - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())


def coins(count: int, draw: torch.Generator) -> Tensor:
    """Return points on three arcs."""
    arm = torch.randint(3, (count,), generator=draw)
    along = torch.rand(count, generator=draw)
    angle = 2.094 * arm + 1.6 * along
    place = torch.stack([angle.cos(), angle.sin()], 1) * (0.4 + 0.8 * along)[:, None]
    return place + 0.04 * torch.randn(count, 2, generator=draw)


def mint(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-3,
    noise: str = "new",
    smooth: float = 1.0,
    total: int = 900,
) -> float:
    """Make points by a game of two networks; returns the negative energy distance of new ones to true ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        noise: noise that the maker is trained on: "new", or the one "of the pictures" that are shown along the way.
        smooth: label of true points.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(7 * seed + 5)
    real = coins(3000, draw)
    held = coins(600, draw)
    fixed_noise = torch.randn(64, 24, generator=draw)
    net_g = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    net_d = nn.Sequential(nn.Linear(2, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=lr, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2 * lr, betas=(0.5, 0.9))
    bce = functional.binary_cross_entropy_with_logits

    @torch.no_grad()
    def distance(made: Tensor) -> float:
        return apart(made, held)

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net_g=net_g, net_d=net_d, opt_g=opt_g, opt_d=opt_d)
        run.resume()
        for step in run.steps(total):
            z = torch.randn(64, 24) if noise == "new" else fixed_noise
            fake = net_g(z)
            found = net_d(real[torch.randint(len(real), (64,))])
            judged = net_d(fake.detach())
            of_d = Terms(
                real=(1.0, bce(found, torch.full_like(found, smooth))),
                fake=(1.0, bce(judged, torch.zeros_like(judged))),
            )
            opt_d.zero_grad()
            of_d.total.backward()
            step.observe(of_d)
            step.update(opt_d)
            judged = net_d(fake)
            of_g = Terms(generator=(1.0, bce(judged, torch.ones_like(judged))))
            opt_g.zero_grad()
            of_g.total.backward()
            step.observe(of_g)
            step.update(opt_g)
            step.record({"D/real": float(found.detach().mean()), "D/fake": float(judged.detach().mean())})
            if step.every(150):
                with run.evaluation("pictures"):
                    step.record({"Eval/distance": distance(net_g(fixed_noise))})
    return -distance(net_g(torch.randn(600, 24)))


def dunes(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    unit: float = 1.0,
    total: int = 600,
) -> float:
    """Learn to remove noise from points, step by step; returns the negative energy distance of drawn to true points.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        unit: number by which the points are divided, so that they have the size of the noise.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(5 * seed + 9)
    real = coins(3000, draw) / unit
    held = coins(600, draw)
    count = 100
    betas = torch.linspace(1e-3, 0.1, count)
    alphas = 1 - betas
    product = alphas.cumprod(0)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Embedding(count, 32)
            self.point = nn.Linear(2, 64)
            self.rest = nn.Sequential(nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.rest(torch.cat([self.point(x), self.time(t)], 1))

    eps = Denoiser()
    adam = torch.optim.AdamW(eps.parameters(), lr=lr)
    warm = torch.optim.lr_scheduler.LambdaLR(adam, lambda i: min(1.0, (i + 1) / 50))

    @torch.no_grad()
    def drawn(many: int) -> Tensor:
        x = torch.randn(many, 2)
        for i in reversed(range(count)):
            t = torch.full((many,), i)
            x = (x - betas[i] / (1 - product[i]).sqrt() * eps(x, t)) / alphas[i].sqrt()
            if i:
                x = x + betas[i].sqrt() * torch.randn_like(x)
        return unit * x

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(eps=eps, adam=adam, warm=warm)
        run.resume()
        for step in run.steps(total):
            x = real[torch.randint(len(real), (128,))]
            t = torch.randint(count, (128,))
            noise = torch.randn_like(x)
            dirty = product[t].sqrt()[:, None] * x + (1 - product[t]).sqrt()[:, None] * noise
            loss = functional.mse_loss(eps(dirty, t), noise)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(noise=(1.0, loss)))
            step.update(adam)
            warm.step()
            if step.every(125):
                with run.evaluation("drawn points"):
                    step.record({"Eval/distance": apart(drawn(300), held)})
    return -apart(drawn(600), held)


def shells(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    spread: str = "root of the variance",
    total: int = 500,
) -> float:
    """Learn shells of two numbers by a variational autoencoder; returns the negative energy distance of new ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        spread: factor of the noise of a code: the "root of the variance", or the "logarithm" that the encoder gives.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(3 * seed + 7)
    turns = torch.linspace(0, 6.283, 20)

    def found(count: int) -> Tensor:
        size = 0.6 + 0.8 * torch.rand(count, 1, generator=draw)
        shift = 3 * torch.rand(count, 1, generator=draw)
        return size * (turns + shift).sin() + 0.03 * torch.randn(count, 20, generator=draw)

    x = found(2500)
    held = found(500)
    encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 8))
    decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 20))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=lr)

    def elbo(shell: Tensor) -> Terms:
        mu, logvar = encoder(shell).chunk(2, 1)
        scale = (0.5 * logvar).exp() if spread == "root of the variance" else logvar
        z = mu + scale * torch.randn_like(mu)
        return Terms(
            reconstruction=(1.0, (decoder(z) - shell).square().sum(1).mean() / (2 * 0.3**2)),
            divergence=(1.0, 0.5 * (mu.square() + logvar.exp() - 1 - logvar).sum(1).mean()),
        )

    @torch.no_grad()
    def figures() -> dict[str, float]:
        terms = elbo(held)
        return {
            "Eval/elbo": -float(terms.total),
            "Eval/distance": apart(decoder(torch.randn(500, 4)), held),
        }

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(encoder=encoder, decoder=decoder, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            step.backward(elbo, x[torch.randint(len(x), (100,))])
            step.update(optimizer, clip=100.0)
            if step.every(100):
                with run.evaluation("held-out shells"):
                    step.record(figures())
    return -figures()["Eval/distance"]


def glider(
    folder: Path,
    seed: int,
    *,
    lr: float = 1e-2,
    explores: float = 0.5,
    gusts: float = 0.05,
    total: int = 160,
) -> float:
    """Steer gliders to a place by policy gradients; returns the mean negative distance at the end from any start.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        explores: spread of the actions in training.
        gusts: strength of the wind.
        total: number of steps.
    """
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=lr)

    def reset(count: int, chance: torch.Generator) -> Tensor:
        state = torch.zeros(count, 4)
        state[:, :2] = 4 * torch.rand(count, 2, generator=chance) - 2
        return state

    def move(state: Tensor, action: Tensor, wind: Tensor) -> Tensor:
        speed = 0.7 * state[:, 2:] + 0.5 * action.clamp(-1, 1) + wind
        return torch.cat([state[:, :2] + 0.5 * speed, speed], 1)

    @torch.no_grad()
    def flight() -> float:
        chance = torch.Generator().manual_seed(99)
        state = reset(200, chance)
        for _ in range(14):
            state = move(state, actor(state), gusts * torch.randn(200, 2, generator=chance))
        return -float(state[:, :2].norm(dim=1).mean())

    chance = torch.Generator().manual_seed(seed)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, critic=critic, optimizer=optimizer)
        run.resume()
        for step in run.steps(total):
            state = reset(32, chance)
            states: list[Tensor] = []
            chosen: list[Tensor] = []
            rewards: list[Tensor] = []
            for _ in range(14):
                with torch.no_grad():
                    mean = actor(state)
                action = mean + explores * torch.randn_like(mean)
                states.append(state)
                chosen.append(action)
                state = move(state, action, gusts * torch.randn(32, 2))
                rewards.append(-state[:, :2].norm(dim=1))
            back = torch.zeros(32)
            returns: list[Tensor] = []
            for reward in reversed(rewards):
                back = reward + 0.9 * back
                returns.insert(0, back)
            visited = torch.cat(states)
            gained = torch.cat(returns)
            value = critic(visited)[:, 0]
            advantage = (gained - value).detach()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            log_chance = -((torch.cat(chosen) - actor(visited)) / explores).square().sum(1) / 2
            terms = Terms(
                policy=(1.0, -(advantage * log_chance).mean()), value=(0.1, functional.mse_loss(value, gained))
            )
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=1.0)
            step.record({"Rollout/return": float(torch.stack(rewards).sum(0).mean())})
            if step.every(40):
                with run.evaluation("flights"):
                    step.record({"Eval/final_distance": -flight()})
    return flight()


def well(
    folder: Path,
    seed: int,
    *,
    lr: float = 6e-3,
    slopes: str = "in meters",
    total: int = 700,
) -> float:
    """Find the water table between wells by its equation; returns the negative relative error.

    The level obeys u'' = (u - 3) / 400 for 0 to 100 meters, with u(0) = 5 and u(100) = 1.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        slopes: slopes in the equation: "in meters", or "as scaled" for the network.
        total: number of steps.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    adam = torch.optim.Adam(net.parameters(), lr=lr)
    unit = 1.0 if slopes == "as scaled" else 50.0

    def level(scaled: Tensor) -> Tensor:
        return 3 + 3 * net(scaled)

    def truth(meters: Tensor) -> Tensor:
        # u = 3 + a exp(-x / 20) + b exp(x / 20)
        ends = torch.tensor([[1.0, 1.0], [float(torch.exp(torch.tensor(-5.0))), float(torch.exp(torch.tensor(5.0)))]])
        a, b = torch.linalg.solve(ends, torch.tensor([2.0, -2.0]))
        return 3 + a * (-meters / 20).exp() + b * (meters / 20).exp()

    at = torch.linspace(0, 100, 201)[:, None]
    right = truth(at)

    @torch.no_grad()
    def error() -> float:
        return float((level(at / 50 - 1) - right).norm() / (right - 3).norm())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            scaled = (2 * torch.rand(96, 1) - 1).requires_grad_()
            u = level(scaled)
            first = torch.autograd.grad(u.sum(), scaled, create_graph=True)[0] / unit
            second = torch.autograd.grad(first.sum(), scaled, create_graph=True)[0] / unit
            ends = level(torch.tensor([[-1.0], [1.0]]))
            terms = Terms(
                equation=(5.0, (400 * second - (u - 3)).square().mean()),
                ends=(10.0, functional.mse_loss(ends, torch.tensor([[5.0], [1.0]]))),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam, clip=1000.0)
            if step.every(50):
                with run.evaluation("levels"):
                    step.record({"Eval/relative_error": error()})
    return -error()
