"""Adversarial training of two networks with two optimizers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from fieldwatch import Run, Terms

from .cases import Train
from .supervised import NO_SINKS


@dataclass(kw_only=True)
class Game:
    """The parts of an adversarial training.

    Attributes:
        maker: makes samples of latent numbers.
        critic: tells real samples from made ones.
        maker_optimizer: optimizer of the maker.
        critic_optimizer: optimizer of the critic.
        real: draws real samples.
        latent: draws latent numbers, shape [count, width].
        measure: what the loop evaluates.
        figure: how good the maker is.
        hinge: whether the losses are hinges; logistic otherwise.
        steps: number of steps.
        batch: number of samples in a batch.
        detached: whether the loop observes detached losses.
        before: called before each step with its index.
    """

    maker: nn.Module
    critic: nn.Module
    maker_optimizer: Optimizer
    critic_optimizer: Optimizer
    real: Callable[[int], Tensor]
    latent: Callable[[int], Tensor]
    measure: Callable[[], Mapping[str, float]]
    figure: Callable[[], float]
    hinge: bool = False
    steps: int = 1000
    batch: int = 128
    detached: bool = True
    before: list[Callable[[int], None]] = field(default_factory=list[Callable[[int], None]])


Rules = Callable[[int], Game]
GameEdit = Callable[[Game], None]


def play(game: Game, folder: Path) -> float:
    """Train both networks in a run folder and return the figure of the maker."""
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(
            maker=game.maker,
            critic=game.critic,
            maker_optimizer=game.maker_optimizer,
            critic_optimizer=game.critic_optimizer,
        )
        run.resume()
        for step in run.steps(game.steps):
            for hook in game.before:
                hook(step.index)
            made = game.maker(game.latent(game.batch))
            critic_loss = _critic_loss(game, game.critic(game.real(game.batch)), game.critic(made.detach()))
            game.critic_optimizer.zero_grad()
            game.maker_optimizer.zero_grad()
            critic_loss.backward()
            trainable = [parameter for parameter in game.critic.parameters() if parameter.requires_grad]
            for parameter in trainable:
                parameter.requires_grad_(False)
            maker_loss = _maker_loss(game, game.critic(made))
            maker_loss.backward()
            for parameter in trainable:
                parameter.requires_grad_(True)
            if game.detached:
                critic_loss = critic_loss.detach()
                maker_loss = maker_loss.detach()
            step.observe(Terms(critic=(1.0, critic_loss), maker=(1.0, maker_loss)))
            step.update(game.maker_optimizer, game.critic_optimizer)
            if step.every(200):
                with run.evaluation("samples"):
                    step.record(game.measure())
    with torch.no_grad():
        return game.figure()


def _critic_loss(game: Game, real: Tensor, made: Tensor) -> Tensor:
    if game.hinge:
        return (1 - real).relu().mean() + (1 + made).relu().mean()
    return functional.softplus(-real).mean() + functional.softplus(made).mean()


def _maker_loss(game: Game, made: Tensor) -> Tensor:
    return -made.mean() if game.hinge else functional.softplus(-made).mean()


def playing(rules: Rules, *edits: GameEdit) -> Train:
    """Return the training of a game, with faults planted in its parts."""

    def train(folder: Path, seed: int) -> float:
        torch.manual_seed(seed)
        game = rules(seed)
        for edit in edits:
            edit(game)
        return play(game, folder)

    return train


def covered(samples: Tensor, centers: Tensor, radius: float) -> float:
    """Return the fraction of the centers that have at least a quarter of their share of the samples around them."""
    distance = torch.cdist(samples, centers)
    nearest = distance.argmin(dim=1)
    close = distance.min(dim=1).values < radius
    counts = torch.bincount(nearest[close], minlength=len(centers)).float()
    return float((counts > 0.25 * len(samples) / len(centers)).float().mean())


@dataclass(frozen=True, kw_only=True)
class Blobs:
    """A game whose real samples are blobs of points.

    Attributes:
        centers: centers of the blobs, shape [n, 2].
        spread: standard deviation of a blob.
        radius: distance from its center within which a made sample counts for a blob.
        latent: number of latent numbers.
        width: width of both networks.
        rates: learning rates of maker and critic.
        metric: name of the share of the blobs that are made.
    """

    centers: Tensor
    spread: float
    radius: float
    latent: int
    width: int
    rates: tuple[float, float]
    metric: str

    def game(self, data: torch.Generator) -> Game:
        """Return the game, with real samples from a generator."""
        width = self.width
        maker = nn.Sequential(
            nn.Linear(self.latent, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        )
        critic = nn.Sequential(
            nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
        )

        def real(count: int) -> Tensor:
            picked = torch.randint(len(self.centers), (count,), generator=data)
            return self.centers[picked] + self.spread * torch.randn(count, 2, generator=data)

        def share() -> float:
            return covered(maker(torch.randn(1000, self.latent)), self.centers, self.radius)

        return Game(
            maker=maker,
            critic=critic,
            maker_optimizer=torch.optim.Adam(maker.parameters(), lr=self.rates[0], betas=(0.5, 0.9)),
            critic_optimizer=torch.optim.Adam(critic.parameters(), lr=self.rates[1], betas=(0.5, 0.9)),
            real=real,
            latent=lambda count: torch.randn(count, self.latent),
            measure=lambda: {self.metric: share()},
            figure=share,
        )


def constant_latent(game: Game) -> None:
    """Give the maker the same latent numbers every time."""
    fixed = game.latent(1)
    game.latent = lambda count: fixed.expand(count, -1)


def critic_rate(factor: float) -> GameEdit:
    """Multiply the critic's learning rate."""

    def edit(game: Game) -> None:
        for group in game.critic_optimizer.param_groups:
            group["lr"] *= factor

    return edit


def maker_rate(factor: float) -> GameEdit:
    """Multiply the maker's learning rate."""

    def edit(game: Game) -> None:
        for group in game.maker_optimizer.param_groups:
            group["lr"] *= factor

    return edit
