"""Set s: results that stand still for other units, other targets or a wrong sign, beside healthy twins."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms

from .cases import Healthy, Plant
from .phrases import BLOWN, COLLAPSE, GAP, LOUD, STUCK, named
from .scripts import Script
from .supervised import NO_SINKS

UNITS = "targets in another unit"
SIGNS = "wrong sign or order"
TERMS = "weights of the terms"


def dials(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return noisy pictures of a pointer, shape [count, 64], and where it points, as x and y in [-1, 1]."""
    draw = torch.Generator().manual_seed(331 * seed + salt)
    angle = 6.2832 * torch.rand(count, 1, generator=draw)
    tip = torch.cat([angle.cos(), angle.sin()], 1)
    line = torch.linspace(-1, 1, 8)
    y, x = torch.meshgrid(line, line, indexing="ij")
    far = (x.flatten() - 0.7 * tip[:, :1]).square() + (y.flatten() - 0.7 * tip[:, 1:]).square()
    return (-8 * far).exp() + 0.1 * torch.randn(count, 64, generator=draw), tip


def dial(
    folder: Path, seed: int, *, unit: float = 1.0, turned: bool = False, shift: float = 0.0, total: int = 240
) -> float:
    """Read dials; returns the share of held-out ones that are read right.

    Args:
        folder: run folder.
        seed: seed.
        unit: factor of the training targets.
        turned: whether the evaluation takes x for y.
        shift: angle by which the training targets are turned, in radians.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = dials(seed, 600, 1)
    held_x, held_y = dials(seed, 200, 2)
    if shift:
        turn = torch.tensor([[math.cos(shift), math.sin(shift)], [-math.sin(shift), math.cos(shift)]])
        y = y @ turn
    y = unit * y + (unit if unit > 1 else 0.0)
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2), nn.Hardtanh(-1.2, 1.2))
    adam = torch.optim.Adam(net.parameters(), lr=5e-3)

    @torch.no_grad()
    def read() -> float:
        made = net(held_x).flip(1) if turned else net(held_x)
        return float(((made - held_y).norm(dim=1) < 0.25).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (32,))
            loss = functional.l1_loss(net(x[chosen]), y[chosen])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(tip=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                with run.evaluation("held-out dials"):
                    step.record({"Eval/read": read()})
    return read()


def ponds(folder: Path, seed: int, *, white: float = 1.0, total: int = 200) -> float:
    """Find ponds in a landscape; returns the overlap of held-out masks.

    Args:
        folder: run folder.
        seed: seed.
        white: value of a pond in the masks that the loss gets.
        total: number of steps.
    """
    torch.manual_seed(seed)

    def land(count: int, salt: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(17 * seed + salt)
        height = functional.interpolate(torch.randn(count, 1, 4, 4, generator=draw), (16, 16), mode="bicubic")
        return height + 0.2 * torch.randn(height.shape, generator=draw), (height < -0.4).float()

    x, y = land(200, 1)
    held_x, held_y = land(60, 2)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)

    @torch.no_grad()
    def overlap() -> float:
        said = net(held_x) > 0
        return float((said & (held_y > 0)).sum() / (said | (held_y > 0)).sum().clamp_min(1))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (16,))
            loss = functional.binary_cross_entropy_with_logits(net(x[chosen]), white * y[chosen])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(pond=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                with run.evaluation("held-out landscapes"):
                    step.record({"Eval/overlap": overlap()})
    return overlap()


def levers(folder: Path, seed: int, *, sign: float = 1.0, executed: bool = True, total: int = 300) -> float:
    """Pull the lever that a signal asks for, by REINFORCE; returns the mean reward of the best guesses.

    Args:
        folder: run folder.
        seed: seed.
        sign: sign of the policy's loss.
        executed: whether the probabilities are those of the levers that were pulled.
        total: number of steps.
    """
    torch.manual_seed(seed)
    secret = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed + 3))
    policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5))
    adam = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def paid(signal: Tensor, lever: Tensor) -> Tensor:
        return ((signal @ secret).argmax(1) == lever).float()

    @torch.no_grad()
    def earned() -> float:
        signal = torch.randn(500, 6, generator=torch.Generator().manual_seed(8))
        return float(paid(signal, policy(signal).argmax(1)).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(policy=policy, adam=adam)
        run.resume()
        for step in run.steps(total):
            signal = torch.randn(64, 6)
            spread = torch.distributions.Categorical(logits=policy(signal))
            pulled = spread.sample()
            reward = paid(signal, pulled)
            judged = pulled if executed else spread.sample()
            terms = Terms(policy=(sign, -(spread.log_prob(judged) * (reward - reward.mean())).mean()))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Agent/reward": reward.mean()})
            step.update(adam)
    return earned()


def echoes(folder: Path, seed: int, *, sign: float = 1.0, total: int = 250) -> float:
    """Predict the next value of an echo by the logarithm of the error; returns the negative held-out error.

    Args:
        folder: run folder.
        seed: seed.
        sign: sign of the logarithm.
        total: number of steps.
    """
    torch.manual_seed(seed)

    def heard(count: int, salt: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(5 * seed + salt)
        pace, phase = 0.5 + torch.rand(count, 1, generator=draw), 6 * torch.rand(count, 1, generator=draw)
        wave = (pace * torch.arange(9) + phase).sin() * 0.9 ** torch.arange(9)
        return wave[:, :8], wave[:, 8:]

    x, y = heard(800, 1)
    held_x, held_y = heard(200, 2)
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 1))
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)

    @torch.no_grad()
    def error() -> float:
        return float((net(held_x) - held_y).square().mean().sqrt())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (64,))
            terms = Terms(echo=(1.0, sign * (net(x[chosen]) - y[chosen]).square().mean().log10()))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(50):
                with run.evaluation("held-out echoes"):
                    step.record({"Eval/level": 20 * math.log10(max(error(), 1e-9))})
    return -error()


def leaves(folder: Path, seed: int, *, weight: float = 2e-3, total: int = 300) -> float:
    """Compress outlines with a variational autoencoder; returns the explained variance of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        weight: weight of the divergence from the prior.
        total: number of steps.
    """
    torch.manual_seed(seed)

    def outlines(count: int, salt: int) -> Tensor:
        draw = torch.Generator().manual_seed(29 * seed + salt)
        angle = torch.arange(16) * 0.3927
        lobes = torch.randn(count, 3, 1, generator=draw) * torch.tensor([[0.5], [0.3], [0.2]])
        order = torch.tensor([[1.0], [2.0], [3.0]])
        return (lobes * (order * angle).cos()).sum(1) + 0.03 * torch.randn(count, 16, generator=draw)

    x, held = outlines(800, 1), outlines(200, 2)
    coder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 8))
    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 16))
    adam = torch.optim.Adam([*coder.parameters(), *maker.parameters()], lr=3e-3)

    @torch.no_grad()
    def explained() -> float:
        made = maker(coder(held)[:, :4])
        return 1 - float((made - held).square().mean() / held.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(coder=coder, maker=maker, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = x[torch.randint(len(x), (64,))]
            mean, spread = coder(rows).chunk(2, 1)
            made = maker(mean + (0.5 * spread).exp() * torch.randn_like(mean))
            terms = Terms(
                outline=(1.0, (made - rows).square().mean()),
                prior=(weight, 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(60):
                with run.evaluation("held-out leaves"):
                    step.record({"Eval/kept": float(held.var() * explained())})
    return explained()


DIAL = Script(program=dial, good=0.85)
PONDS = Script(program=ponds, good=0.7)
LEVERS = Script(program=levers, good=0.7)
ECHOES = Script(program=echoes, good=-0.15)
LEAVES = Script(program=leaves, good=0.7)

_TARGETS = r"target|label|data|unit|range|axis|same|pair|order"

PLANTS: tuple[Plant, ...] = (
    DIAL.plant("dial targets in pixels", named(UNITS, rf"{STUCK}|{GAP}|{COLLAPSE}|range|unit", _TARGETS), unit=40.0),
    DIAL.plant("dial x read as y", named(UNITS, rf"{STUCK}|{GAP}|axis", _TARGETS), turned=True),
    DIAL.plant("dial targets turned", named(UNITS, rf"{STUCK}|{GAP}", _TARGETS), shift=1.2),
    PONDS.plant("ponds masks up to 255", named(UNITS, rf"{STUCK}|negative|range|{BLOWN}", r"mask|target"), white=255.0),
    LEVERS.plant("levers worst lever", named(SIGNS, rf"{STUCK}|reward", r"sign|reward|action"), sign=-1.0),
    LEVERS.plant(
        "levers chances of other levers", named(SIGNS, rf"{STUCK}|reward", r"action|reward|log"), executed=False
    ),
    ECHOES.plant("echoes error maximized", named(SIGNS, rf"{BLOWN}|sign|bound", r"sign|bound"), sign=-1.0),
    LEAVES.plant("leaves prior too strong", named(TERMS, rf"{LOUD}|prior|{COLLAPSE}", r"weight"), weight=3.0),
)

HEALTHY: tuple[Healthy, ...] = (
    DIAL.healthy("dial"),
    DIAL.healthy("dial long after it is learned", total=900),
    PONDS.healthy("ponds"),
    LEVERS.healthy("levers"),
    ECHOES.healthy("echoes"),
    LEAVES.healthy("leaves"),
    LEAVES.healthy("leaves with a weak prior", weight=2e-4),
)
