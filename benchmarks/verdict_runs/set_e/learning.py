"""Ways to learn: from few shots, with coarse numbers, without labels, by spikes, against a critic."""

import copy
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS


def waves(count: int, shots: int, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Return points and values of waves of random height and phase, shape [count, shots, 1]."""
    height = 0.5 + 1.5 * torch.rand(count, 1, 1, generator=draw)
    phase = 3.1416 * torch.rand(count, 1, 1, generator=draw)
    x = 6 * torch.rand(count, shots, 1, generator=draw) - 3
    return x, height * (x + phase).sin()


def adapt(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    inner: float = 0.05,
    copies: bool = False,
    same_task: bool = True,
    second_order: bool = True,
    sign: float = 1.0,
    total: int = 240,
) -> float:
    """Learn to learn waves from ten points (MAML); returns the negative error after three steps on a new wave.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate of the outer loop.
        inner: learning rate of the inner loop.
        copies: whether the inner loop adapts a copy of the weights that is not in their graph.
        same_task: whether the points of the outer loss are of the wave that the inner loop saw.
        second_order: whether the outer gradient goes through the inner one.
        sign: sign of the inner step.
        total: number of steps.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    adam = torch.optim.Adam(net.parameters(), lr=rate)
    names = [name for name, _ in net.named_parameters()]

    def run_net(weights: list[Tensor], x: Tensor) -> Tensor:
        # One set of weights per task: the first dimension.
        hidden = (x @ weights[0].transpose(1, 2) + weights[1][:, None]).tanh()
        hidden = (hidden @ weights[2].transpose(1, 2) + weights[3][:, None]).tanh()
        return hidden @ weights[4].transpose(1, 2) + weights[5][:, None]

    def adapted(weights: list[Tensor], x: Tensor, y: Tensor, steps: int, *, second: bool) -> list[Tensor]:
        for _ in range(steps):
            loss = (run_net(weights, x) - y).square().mean((1, 2)).sum()
            slopes = torch.autograd.grad(loss, weights, create_graph=second)
            weights = [weight - sign * inner * slope for weight, slope in zip(weights, slopes, strict=True)]
        return weights

    def initial(count: int) -> list[Tensor]:
        source = copy.deepcopy(net) if copies else net
        of = dict(source.named_parameters())
        return [of[name].expand(count, *of[name].shape) for name in names]

    @torch.enable_grad()
    def error() -> float:
        x, y = waves(60, 30, torch.Generator().manual_seed(4))
        fast = adapted(initial(60), x[:, :10], y[:, :10], 3, second=False)
        with torch.no_grad():
            return float((run_net(fast, x[:, 10:]) - y[:, 10:]).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            x, y = waves(12, 20)
            fast = adapted(initial(12), x[:, :10], y[:, :10], 1, second=second_order)
            other_x, other_y = (x[:, 10:], y[:, 10:]) if same_task else waves(12, 10)
            loss = (run_net(fast, other_x) - other_y).square().mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(query=(1.0, loss)))
            step.update(adam, clip=10.0)
            if step.every(48):
                with run.evaluation("new waves"):
                    step.record({"Eval/adapted_error": error()})
    found = error()
    return -found if math.isfinite(found) else -1e9


SENSORS = 20
STATES = 6


def readings(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return readings of sensors in six states, each of two kinds, and the states."""
    draw = torch.Generator().manual_seed(19 * seed + salt)
    centers = 0.75 * torch.randn(2 * STATES, SENSORS, generator=torch.Generator().manual_seed(19 * seed))
    kind = torch.randint(2 * STATES, (count,), generator=draw)
    return centers[kind] + torch.randn(count, SENSORS, generator=draw) * 0.8, kind % STATES


class Rounded(nn.Linear):
    """A linear layer whose weights and inputs are rounded to a few bits in the forward pass.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
        bits: number of bits.
        through: whether the gradient goes through the rounding.
        reach: largest input that a number can stand for.
    """

    def __init__(self, inputs: int, outputs: int, *, bits: int, through: bool, reach: float) -> None:
        super().__init__(inputs, outputs)
        self.bits = bits
        self.through = through
        self.reach = reach

    def rounded(self, values: Tensor, reach: Tensor | float) -> Tensor:
        """Return values rounded to the grid of numbers."""
        size = reach / (2 ** (self.bits - 1) - 1)
        inside = values.clamp(-reach, reach)
        near = (inside / size).round() * size
        return inside + (near - inside).detach() if self.through else near

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of rounded weights and inputs."""
        weight = self.rounded(self.weight, self.weight.detach().abs().max())
        return functional.linear(self.rounded(x, self.reach), weight, self.bias)


def coarse(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.05,
    bits: int = 4,
    evaluated_bits: int = 0,
    through: bool = True,
    reach: float = 4.0,
    batch: int = 64,
    drop: float = 0.1,
    mode: str = "eval",
    norm: bool = True,
    clip: float | None = None,
    nesterov: bool = True,
    decay: float = 0.0,
    tiny: bool = False,
    total: int = 150,
) -> float:
    """Classify readings with coarse numbers; returns the accuracy of held-out ones, or of the few learned by heart.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        bits: number of bits in training.
        evaluated_bits: number of bits in the evaluation; 0 for the same.
        through: whether gradients go through the rounding.
        reach: largest input of a layer.
        batch: number of readings in a batch.
        drop: dropout.
        mode: mode in the evaluation.
        norm: whether the hidden layer has a batch norm.
        clip: limit for the gradient norm.
        nesterov: whether the momentum is Nesterov's.
        decay: weight decay.
        tiny: whether forty readings are learned by heart, and the figure is their accuracy.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = readings(seed, 40 if tiny else 1500, 1)
    held_x, held_y = (x, y) if tiny else readings(seed, 500, 2)

    def layer(inputs: int, outputs: int) -> Rounded:
        return Rounded(inputs, outputs, bits=bits, through=through, reach=reach)

    net = nn.Sequential(
        layer(SENSORS, 64),
        nn.BatchNorm1d(64) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Dropout(drop),
        layer(64, STATES),
    )
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=nesterov, weight_decay=decay)

    @torch.no_grad()
    def accuracy() -> float:
        net.train(mode == "train")
        for one in net:
            if isinstance(one, Rounded) and evaluated_bits:
                one.bits = evaluated_bits
        right = float((net(held_x).argmax(1) == held_y).float().mean())
        for one in net:
            if isinstance(one, Rounded):
                one.bits = bits
        return right

    def objective(chosen: Tensor) -> Terms:
        return Terms(state=(1.0, functional.cross_entropy(net(x[chosen]), y[chosen])))

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, sgd=sgd)
        run.resume()
        for step in run.steps(total):
            step.backward(objective, torch.randint(len(x), (batch,)))
            step.update(sgd, clip=clip)
            if step.every(30):
                with run.evaluation("held-out readings"):
                    step.record({"Val/accuracy": accuracy()})
    return accuracy()


def unlabeled(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    variance: float = 25.0,
    covariance: float = 1.0,
    noise: float = 0.8,
    stop_gradient: bool = False,
    total: int = 150,
) -> float:
    """Learn features from two views without labels (VICReg); returns the accuracy of nearest class centers.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        variance: weight of the variance term.
        covariance: weight of the covariance term.
        noise: strength of the noise of a view.
        stop_gradient: whether one side has no gradient.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = readings(seed, 1500, 1)
    held_x, held_y = readings(seed, 500, 2)
    # Disturbances that no label depends on.
    mixing = torch.randn(6, SENSORS, generator=torch.Generator().manual_seed(seed + 77))
    body = nn.Sequential(nn.Linear(SENSORS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    adam = torch.optim.Adam(body.parameters(), lr=rate)

    def view(rows: Tensor) -> Tensor:
        return rows + noise * torch.randn(len(rows), 6) @ mixing

    test_rows = held_x + 0.8 * torch.randn(len(held_x), 6) @ mixing

    @torch.no_grad()
    def accuracy() -> float:
        known, asked = body(view(x)), body(test_rows)
        mean, std = known.mean(0), known.std(0) + 1e-8
        near = torch.cdist((asked - mean) / std, (known - mean) / std).topk(15, largest=False).indices
        return float((y[near].mode(1).values == held_y).float().mean())

    def hinge(features: Tensor) -> Tensor:
        return functional.relu(1 - (features.var(0) + 1e-4).sqrt()).mean()

    def mixed(features: Tensor) -> Tensor:
        product = (features - features.mean(0)).T @ (features - features.mean(0)) / (len(features) - 1)
        return (product.square().sum() - product.diagonal().square().sum()) / features.shape[1]

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(body=body, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = x[torch.randint(len(x), (128,))]
            one, other = body(view(rows)), body(view(rows))
            if stop_gradient:
                other = other.detach()
            terms = Terms(
                invariance=(25.0, functional.mse_loss(one, other)),
                variance=(variance, hinge(one) + hinge(other)),
                covariance=(covariance, mixed(one) + mixed(other)),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Features/spread": one.detach().std(0).mean()})
            step.update(adam)
            if step.every(30):
                with run.evaluation("neighbors"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()


class Spike(torch.autograd.Function):
    """A step function with the slope of a soft one."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Return 1 above zero, 0 below."""
        ctx.save_for_backward(x)  # type: ignore[attr-defined]
        return (x > 0).float()

    @staticmethod
    def backward(ctx: object, slope: Tensor) -> Tensor:
        """Return the slope of a fast sigmoid."""
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return slope / (1 + 5 * x.abs()).square()


def spikes(
    folder: Path,
    seed: int,
    *,
    rate: float = 5e-3,
    surrogate: bool = True,
    threshold: float = 1.0,
    total: int = 120,
) -> float:
    """Classify readings by spiking units; returns the accuracy of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        surrogate: whether spikes have the slope of a soft function.
        threshold: charge at which a unit spikes.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, y = readings(seed, 1500, 1)
    held_x, held_y = readings(seed, 500, 2)
    into, out = nn.Linear(SENSORS, 64), nn.Linear(64, STATES)
    adamax = torch.optim.Adamax([*into.parameters(), *out.parameters()], lr=rate)

    def scores(rows: Tensor) -> Tensor:
        current = into(rows)
        charge = torch.zeros_like(current)
        total = torch.zeros(len(rows), STATES)
        for _ in range(10):
            charge = 0.8 * charge + current
            over = charge - threshold
            fired = Spike.apply(over) if surrogate else (over > 0).float()
            charge = charge - threshold * fired.detach()
            total = total + out(fired)
        return total / 10

    @torch.no_grad()
    def accuracy() -> float:
        return float((scores(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(into=into, out=out, adamax=adamax)
        run.resume()
        for step in run.steps(total):
            chosen = torch.randint(len(x), (64,))
            loss = functional.cross_entropy(scores(x[chosen]), y[chosen])
            adamax.zero_grad()
            loss.backward()
            step.observe(Terms(state=(1.0, loss)))
            step.update(adamax)
            if step.every(24):
                with run.evaluation("held-out readings"):
                    step.record({"Val/accuracy": accuracy()})
    return accuracy()


def shapes(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return outlines of ellipses as 12 distances from a center."""
    angle = torch.arange(12) * 6.2832 / 12
    wide, high = (0.6 + 0.8 * torch.rand(count, 1, generator=draw) for _ in range(2))
    turn = 3.1416 * torch.rand(count, 1, generator=draw)
    return 1 / (((angle - turn).cos() / wide).square() + ((angle - turn).sin() / high).square()).sqrt()


def forge(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-3,
    critic_rate: float = 1e-3,
    penalty: float = 1.0,
    cut: bool = False,
    fakes_called: float = 0.0,
    critic_updates: int = 1,
    same_noise: bool = False,
    total: int = 200,
) -> float:
    """Forge outlines against a critic; returns the negative distance of the sorted projections.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate of the forger.
        critic_rate: learning rate of the critic.
        penalty: weight of the critic's gradient penalty at the true outlines.
        cut: whether the forger's outlines are judged without their gradient.
        fakes_called: label of forgeries for the critic; 1 means true.
        critic_updates: updates of the critic per step.
        same_noise: whether the forger gets the same noise at each step.
        total: number of steps.
    """
    torch.manual_seed(seed)
    forger = nn.Sequential(nn.Linear(4, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 12))
    critic = nn.Sequential(nn.Linear(12, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    of_forger = torch.optim.Adam(forger.parameters(), lr=rate, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=critic_rate, betas=(0.5, 0.99))
    called = functional.binary_cross_entropy_with_logits
    look = functional.normalize(torch.randn(12, 40, generator=torch.Generator().manual_seed(1)), dim=0)
    truth = shapes(800, torch.Generator().manual_seed(2))
    fixed = torch.randn(64, 4)

    def noise() -> Tensor:
        return fixed if same_noise else torch.randn(64, 4)

    @torch.no_grad()
    def distance() -> float:
        made = forger(torch.randn(800, 4, generator=torch.Generator().manual_seed(3)))
        return float(((made @ look).sort(0).values - (truth @ look).sort(0).values).abs().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(forger=forger, critic=critic, of_forger=of_forger, of_critic=of_critic)
        run.resume()
        for step in run.steps(total):
            for _ in range(critic_updates):
                real = shapes(64).requires_grad_()
                made = forger(noise()).detach()
                on_real, on_fake = critic(real), critic(made)
                (slope,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
                losses = Terms(
                    real=(1.0, called(on_real, torch.ones(64, 1))),
                    fake=(1.0, called(on_fake, torch.full((64, 1), fakes_called))),
                    penalty=(penalty, slope.square().sum(1).mean()),
                )
                of_critic.zero_grad()
                losses.total.backward()
                step.observe(losses)
                step.update(of_critic)
            made = forger(noise())
            fooled = Terms(fooled=(1.0, called(critic(made.detach() if cut else made), torch.ones(64, 1))))
            of_forger.zero_grad()
            fooled.total.backward()
            step.observe(fooled)
            step.update(of_forger)
            if step.every(40):
                with run.evaluation("forgeries"):
                    step.record({"Eval/distance": distance()})
    far = distance()
    return -far if math.isfinite(far) else -1e9
