"""Sound trainings with unusual loops: without evaluations, short, interrupted, resumed, several in one process."""

import contextlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from fieldwatch import Run, Saving, Terms
from verdict_runs.supervised import NO_SINKS

from .rows import mlp


def wells(n: int, gen: torch.Generator, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return places and depths of wells: a smooth function of three numbers."""
    x = 2 * torch.rand(n, 3, generator=gen) - 1
    return x, (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + noise * torch.randn(n, generator=gen)


def well_digger(
    folder: Path,
    seed: int,
    *,
    checked: str = "never",
    logged: int = 1,
    summed: bool = False,
    width: int = 48,
    batch: int = 64,
    shares: int = 1,
    lr: float = 3e-3,
    noise: float = 0.1,
    stopped: int = 0,
    total: int = 200,
) -> float:
    """Foretell depths of wells; returns the explained share of the exact depths of others.

    Args:
        folder: run folder.
        seed: seed.
        checked: what is evaluated: "never", "once" at the end, "training" data beside others, or under an "odd" name.
        logged: steps between those whose loss is observed.
        summed: whether the loss is a sum over the batch.
        width: width of the network.
        batch: size of a batch.
        shares: batches whose gradients are added up in a step.
        lr: learning rate.
        noise: noise of the depths.
        stopped: step at which a person interrupts the training; 0 for none.
        total: number of steps.
    """
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(127 * seed + 1)
    x, y = wells(2000, gen, noise)
    xv, yv = wells(500, gen, 0.0)
    net = mlp(3, width, width, 1)
    opt = torch.optim.Adam(net.parameters(), lr=lr)

    def explained(features: Tensor, truth: Tensor) -> float:
        with torch.no_grad():
            return float(1 - (net(features)[:, 0] - truth).square().mean() / truth.var())

    def measured() -> dict[str, float]:
        if checked == "training":
            return {"sanity/r2_train": explained(x, y), "sanity/r2": explained(xv, yv)}
        if checked == "odd":
            return {"wells/zeta": 1 - explained(xv, yv), "wells/q_factor": 1 / (1.01 - explained(xv, yv))}
        return {"eval/explained": explained(xv, yv)}

    with contextlib.suppress(KeyboardInterrupt), Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            opt.zero_grad()
            parts = []
            for _ in range(shares):
                i = torch.randint(2000, (batch,))
                loss = functional.mse_loss(net(x[i])[:, 0], y[i], reduction="sum" if summed else "mean")
                (loss / shares).backward()
                parts.append((1 / shares, Terms(mse=(1.0, loss.detach()))))
            if step.index % logged == 0:
                step.observe(Terms.merged(parts))
            step.update(opt)
            if checked in ("training", "odd") and step.every(max(total // 5, 1)):
                with run.evaluation("wells"):
                    step.record(measured())
            if checked == "once" and step.index == total - 1:
                with run.evaluation("wells"):
                    step.record(measured())
            if stopped and step.index == stopped:
                raise KeyboardInterrupt
    return explained(xv, yv)


def well_digger_resumed(folder: Path, seed: int) -> float:
    """Train half of the way, and the other half in a second run of the same folder; returns the explained share."""
    gen = torch.Generator().manual_seed(131 * seed + 1)
    x, y = wells(1000, gen)
    xv, yv = wells(400, gen, 0.0)
    score = 0.0
    for ended in (110, 220):
        torch.manual_seed(seed)
        net = mlp(3, 48, 1, act=nn.GELU)
        opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
        with Run(folder, outputs=NO_SINKS, saving=Saving(every=50)) as run:
            run.track(net=net, opt=opt)
            run.resume()
            for step in run.steps(220):
                i = torch.randint(1000, (64,))
                loss = functional.smooth_l1_loss(net(x[i])[:, 0], y[i])
                opt.zero_grad()
                loss.backward()
                step.observe(Terms(depth=(1.0, loss)))
                step.update(opt)
                if step.every(20):
                    with torch.no_grad(), run.evaluation("other wells"):
                        score = float(1 - (net(xv)[:, 0] - yv).square().mean() / yv.var())
                        step.record({"val/r2": score, "val/depth": functional.smooth_l1_loss(net(xv)[:, 0], yv)})
                if step.index + 1 == ended:
                    break
    return score


def folds(folder: Path, seed: int, *, total: int = 80) -> float:
    """Train on each of three folds in one process, the last one in the run folder; returns the mean of their shares."""
    gen = torch.Generator().manual_seed(137 * seed + 1)
    x, y = wells(600, gen, 0.3)
    parts = torch.randperm(600, generator=gen).chunk(3)
    scores: list[float] = []
    for k in range(3):
        torch.manual_seed(seed + k)
        held = parts[k]
        train = torch.cat([part for j, part in enumerate(parts) if j != k])
        net = mlp(3, 32, 32, 1)
        opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
        with Run(folder if k == 2 else folder.parent / f"fold{k}", outputs=NO_SINKS) as run:
            run.track(net=net, opt=opt)
            run.resume()
            for step in run.steps(total):
                i = train[torch.randint(len(train), (50,))]
                loss = functional.mse_loss(net(x[i])[:, 0], y[i])
                opt.zero_grad()
                loss.backward()
                step.observe(Terms(mse=(1.0, loss)))
                step.update(opt)
                if step.every(20):
                    with torch.no_grad(), run.evaluation("fold"):
                        step.record({"val/mse": float(functional.mse_loss(net(x[held])[:, 0], y[held]))})
        with torch.no_grad():
            error = functional.mse_loss(net(x[held])[:, 0], y[held])
        scores.append(float(1 - error / y[held].var()))
    return sum(scores) / 3


def choir(folder: Path, seed: int, *, total: int = 150) -> float:
    """Train four networks at once by calls with stacked parameters; returns the explained share of their mean."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(139 * seed + 1)
    x, y = wells(800, gen, 0.2)
    xv, yv = wells(400, gen, 0.0)
    base = mlp(3, 32, 32, 1)
    members = [mlp(3, 32, 32, 1) for _ in range(4)]
    stacked = nn.ParameterDict(
        {
            name.replace(".", "_"): nn.Parameter(
                torch.stack([dict(m.named_parameters())[name].detach() for m in members])
            )
            for name, _ in base.named_parameters()
        }
    )
    opt = torch.optim.Adam(stacked.parameters(), lr=4e-3)

    def answer(features: Tensor) -> Tensor:
        def one(values: dict[str, Tensor]) -> Tensor:
            return functional_call(base, values, (features,))[:, 0]

        return torch.vmap(one)({name: stacked[name.replace(".", "_")] for name, _ in base.named_parameters()})

    def explained() -> float:
        with torch.no_grad():
            return float(1 - (answer(xv).mean(0) - yv).square().mean() / yv.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(stacked=stacked, opt=opt)
        run.resume()
        for step in run.steps(total):
            i = torch.randint(800, (64,))
            loss = (answer(x[i]) - y[i]).square().mean(1).sum()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(members=(1.0, loss)))
            step.update(opt)
            if step.every(30):
                with run.evaluation("mean of the choir"):
                    step.record({"eval/r2_of_mean": explained()})
    return explained()


def tuner(folder: Path, seed: int, *, total: int = 250) -> float:
    """Learn first weights for sine waves of any phase from ten points (MAML); returns the share explained after it."""
    torch.manual_seed(seed)
    net = mlp(1, 40, 40, 1, act=nn.Tanh)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)

    def tasks(n: int) -> tuple[Tensor, Tensor]:
        x = 6 * torch.rand(n, 20, 1) - 3
        size, phase = 0.5 + 2 * torch.rand(n, 1, 1), 3.14 * torch.rand(n, 1, 1)
        return x, size * (x + phase).sin()

    def adapted_error(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        def error(weights: dict[str, Tensor], given: Tensor, target: Tensor) -> Tensor:
            return functional.mse_loss(functional_call(net, weights, (given,)), target)

        for _ in range(2):
            slopes = grad(error)(values, x[:10], y[:10])
            values = {name: value - 0.05 * slopes[name] for name, value in values.items()}
        return error(values, x[10:], y[10:])

    def share() -> float:
        x, y = tasks(200)
        values = {name: value.detach() for name, value in net.named_parameters()}
        error = torch.vmap(adapted_error, (None, 0, 0))(values, x, y).mean()
        return float(1 - error / y.var())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            x, y = tasks(16)
            loss = torch.vmap(adapted_error, (None, 0, 0))(dict(net.named_parameters()), x, y).mean()
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(outer=(1.0, loss)))
            step.update(opt, clip=5.0)
            if step.every(50):
                with run.evaluation("new waves"):
                    step.record({"eval/explained_after_adaptation": share()})
    return share()
