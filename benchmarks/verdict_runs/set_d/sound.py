"""Signals: tones of instruments, and the load of a power grid."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS

SAMPLES = 256
PITCHES = 5


def tones(seed: int, count: int, salt: int, *, pace: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return noisy tones with overtones, shape [count, 256], and their pitches."""
    draw = torch.Generator().manual_seed(17 * seed + 211 * salt)
    pitch = torch.randint(PITCHES, (count,), generator=draw)
    base = (0.16 * 1.25 ** pitch.float() * (1 + 0.02 * torch.randn(count, generator=draw)))[:, None] * pace
    phase, loud, over = (torch.rand(count, 1, generator=draw) for _ in range(3))
    time = torch.arange(SAMPLES)
    wave = (base * time + 6.28 * phase).sin() + 0.6 * over * (2 * base * time + 3 * over).sin()
    return (0.4 + 0.6 * loud) * (wave + 0.8 * torch.randn(count, SAMPLES, generator=draw)), pitch


def listener(momentum: float | None) -> nn.Sequential:
    """Return a network that hears pitches; its last layer is called ``head``."""
    body = nn.Sequential(
        nn.Conv1d(1, 16, 17, stride=4, padding=8),
        nn.BatchNorm1d(16, momentum=momentum),
        nn.ReLU(),
        nn.Conv1d(16, 24, 9, stride=4, padding=4),
        nn.BatchNorm1d(24, momentum=momentum),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
    )
    net = nn.Sequential()
    net.add_module("body", body)
    net.add_module("head", nn.Linear(96, PITCHES))
    return net


def tune(
    folder: Path,
    seed: int,
    *,
    rate: float = 0.03,
    momentum: float | None = 0.1,
    silent: int | None = None,
    normalizes: str = "safe",
    features: str = "wave",
    floor: float = 1e-6,
    amplitude: float = 1.0,
    pace: float = 1.0,
    first_label: int = 0,
    smoothing: float = 0.0,
    micro: int = 1,
    kept: int = 0,
    tracks_schedule: bool = True,
    warmup: int = 20,
    stop: int = 0,
    watched: str = "accuracy",
    total: int = 140,
) -> float:
    """Hear the pitch of a tone; returns the accuracy on held-out tones.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        momentum: momentum of the running statistics of the norms.
        silent: training clip without a sound.
        normalizes: how clips are scaled to deviation 1: "safe" or "plain" (divides by 0 for silence).
        features: "wave" or "log" (logarithm of the power, of which ``floor`` is added).
        floor: see ``features``.
        amplitude: factor of the training clips, such as that of 16-bit numbers.
        pace: sample rate of the evaluation over that of the training.
        first_label: number of the first pitch in the labels of the training.
        smoothing: label smoothing.
        micro: batches per update.
        kept: numbers that the loop keeps of every step.
        tracks_schedule: whether checkpoints hold the schedule.
        warmup: steps of the linear warm-up.
        stop: step at which the run stops and is continued; 0 for one part.
        watched: "accuracy", "rate" (the highest rate over the chosen one, negative) or "memory".
        total: number of steps.
    """
    x, y = tones(seed, 800, 1)
    held_x, held_y = tones(seed, 300, 2, pace=pace)
    x *= amplitude
    if silent is not None:
        x[silent] = 0.0
    y = (y + first_label) % PITCHES
    history: list[Tensor] = []
    rates: list[float] = []
    net = listener(momentum)

    def prepared(clips: Tensor) -> Tensor:
        if features == "log":
            power = torch.fft.rfft(clips - clips.mean(1, keepdim=True)).abs().square()[:, : SAMPLES // 2]
            return (power + floor).log()[:, None] / 4
        if normalizes == "none":
            return clips[:, None]
        spread = clips.std(1, keepdim=True)
        return (clips / (spread.clamp(min=1e-3) if normalizes == "safe" else spread))[:, None]

    @torch.no_grad()
    def right() -> float:
        net.eval()
        share = float((net(prepared(held_x)).argmax(1) == held_y).float().mean())
        net.train()
        return share

    for first, last in ((0, stop), (stop, total)) if stop else ((0, total),):
        torch.manual_seed(seed + first)
        net = listener(momentum)
        sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
        rise = torch.optim.lr_scheduler.LinearLR(sgd, 1 / warmup, 1.0, warmup)
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, total - warmup if total > warmup else 1)
        schedule = torch.optim.lr_scheduler.SequentialLR(sgd, [rise, fall], [warmup])
        loader = ResumableLoader(
            TensorDataset(torch.arange(len(x)), x, y), batch_size=32 // micro, seed=seed, drop_last=True
        )
        items: dict[str, Any] = {"net": net, "sgd": sgd, "loader": loader}
        if tracks_schedule:
            items["schedule"] = schedule
        with Run(folder, outputs=NO_SINKS) as run:
            run.track(**items)
            run.resume()
            batches = iter(run.batches(loader))
            for step in run.steps(last):
                rates.append(sgd.param_groups[0]["lr"])
                sgd.zero_grad()
                for _ in range(micro):
                    places, clips, pitches = next(batches)
                    scores = net(prepared(clips))
                    each = functional.cross_entropy(scores, pitches, reduction="none", label_smoothing=smoothing)
                    loss = each.mean() / micro
                    loss.backward()
                    names = [f"clip_{i:03d}.wav" for i in places.tolist()]
                    step.observe(Terms(pitch=(1.0, loss)), sample=names, sample_loss=each)
                step.update(sgd)
                schedule.step()
                if kept:
                    history.append(torch.full((kept,), float(step.index)))
                if step.every(28):
                    with run.evaluation("held out"):
                        step.record({"Val/accuracy": right()})
    if watched == "memory":
        return -sum(4 * one.numel() for one in history) / 1e6
    if watched == "rate":
        return -max(rates) / rate
    return right()


def load(seed: int, count: int, salt: int) -> Tensor:
    """Return the load of a grid over 60 hours, shape [count, 60], about -1 to 1."""
    draw = torch.Generator().manual_seed(5 * seed + 977 * salt)
    start = torch.randint(24, (count, 1), generator=draw)
    hour = (start + torch.arange(60)) * 6.2832 / 24
    depth, second = (torch.rand(count, 1, generator=draw) for _ in range(2))
    drift = 0.05 * torch.randn(count, 60, generator=draw).cumsum(1)
    return (0.3 + 0.5 * depth) * hour.sin() + 0.4 * second * (2 * hour + 1).cos() + drift


class Convolved(nn.Module):
    """Causal convolutions over the hours, and a forecast of the next twelve."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(1 if i == 0 else 20, 20, 3, dilation=2**i) for i in range(4)])
        self.out = nn.Linear(20, 12)

    def forward(self, hours: Tensor) -> Tensor:
        """Return the forecast, shape [batch, 12]."""
        hidden = hours[:, None]
        for i, layer in enumerate(self.layers):
            hidden = functional.gelu(layer(functional.pad(hidden, (2 ** (i + 1), 0))))
        return self.out(hidden[:, :, -1])


def power(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    loss: str = "huber",
    leaks: bool = False,
    broadcast: bool = False,
    plateau: Literal["", "min", "max"] = "",
    eps: float = 1e-8,
    beta: float = 0.9,
    total: int = 240,
) -> float:
    """Forecast twelve hours from 48; returns the explained share of the variance.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        loss: "huber" or "quantile" (the median).
        leaks: whether the window of the training ends with the hours to forecast.
        broadcast: whether the error is taken between all pairs of a batch.
        plateau: mode of a schedule that reduces the rate on a plateau; empty for none.
        eps: epsilon of the optimizer.
        beta: decay of the optimizer's first moment.
        total: number of steps.
    """
    torch.manual_seed(seed)
    known = load(seed, 900, 1)
    held = load(seed, 300, 2)
    model = Convolved()
    optimizer = torch.optim.RAdam(model.parameters(), lr=rate, eps=eps, betas=(beta, 0.999))
    wait = None
    if plateau:
        wait = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode=plateau, factor=0.5, patience=3)

    def objective(series: Tensor) -> Terms:
        window = series[:, 12:] if leaks else series[:, :48]
        truth = series[:, 48:]
        made = model(window)
        error = made[:, None] - truth[None] if broadcast else made - truth
        if loss == "quantile":
            return Terms(pinball=(1.0, 0.5 * error.abs().mean()))
        return Terms(huber=(1.0, functional.huber_loss(error, torch.zeros_like(error), delta=0.5)))

    @torch.no_grad()
    def explained() -> float:
        truth = held[:, 48:]
        return 1 - float((model(held[:, :48]) - truth).square().mean() / (truth - truth.mean(0)).square().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        items: dict[str, Any] = {"model": model, "optimizer": optimizer}
        if wait is not None:
            items["wait"] = wait
        run.track(**items)
        run.resume()
        for step in run.steps(total):
            terms = step.backward(objective, known[torch.randint(len(known), (32,))])
            step.update(optimizer)
            if wait is not None and step.index % 8 == 7:
                wait.step(float(terms.total))
            if step.every(48):
                with run.evaluation("backtest"):
                    step.record({"Backtest/explained": explained()})
    return explained()
