"""Choices: a driver imitated, a pole balanced, loans, few labels, a game of rings, a puzzle, short messages."""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import ResumableLoader, Run, Terms
from fieldwatch.adapters import AccelerateTracker
from verdict_runs.supervised import NO_SINKS


def road(state: Tensor, command: Tensor, draw: torch.Generator) -> Tensor:
    """Return where cars are a moment later: offset, heading, curve of the road."""
    offset, heading, curve = state.unbind(1)
    heading = heading + 0.3 * (command - curve)
    offset = offset + 0.5 * heading
    curve = 0.9 * curve + 0.15 * torch.randn(len(state), generator=draw)
    return torch.stack([offset, heading, curve], 1)


def expert(state: Tensor) -> Tensor:
    """Return the command of a good driver."""
    return (state[:, 2] - 0.8 * state[:, 0] - 1.2 * state[:, 1]).clamp(-2, 2)


def drives(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return what a camera sees of a good driver's road, and the driver's commands."""
    draw = torch.Generator().manual_seed(89 * seed + salt)
    state = torch.randn(60, 3, generator=draw) * 0.5
    seen: list[Tensor] = []
    done: list[Tensor] = []
    for _ in range(count // 60):
        command = expert(state) + 0.05 * torch.randn(60, generator=draw)
        seen.append(view(state, draw))
        done.append(command)
        state = road(state, command, draw)
    return torch.cat(seen), torch.cat(done)


def view(state: Tensor, draw: torch.Generator) -> Tensor:
    """Return a noisy row of twelve pixels in which the road lies."""
    pixel = torch.linspace(-3, 3, 12)
    near = (-(pixel - state[:, :1]).square()).exp()
    far = (-(pixel - state[:, :1] - 2 * state[:, 1:2]).square()).exp()
    bend = (-(pixel - 3 * state[:, 2:]).square()).exp()
    return torch.cat([near, far, bend], 1) + 0.05 * torch.randn(len(state), 36, generator=draw)


def lane(
    folder: Path,
    seed: int,
    *,
    lr: float = 3e-3,
    wheel: bool = False,
    total: int = 300,
) -> float:
    """Imitate a driver; returns the negative mean distance from the lane when the network drives.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        wheel: whether the network sees the wheel, which in the recordings has already been turned.
        total: number of steps.
    """
    torch.manual_seed(seed)
    seen, done = drives(seed, 3000, 1)
    middle = done.mean()
    spread = done.std()
    policy = nn.Sequential(nn.Linear(37, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optim = torch.optim.Adam(policy.parameters(), lr=lr, weight_decay=1e-5)

    def act(picture: Tensor, last: Tensor) -> Tensor:
        return policy(torch.cat([picture, last[:, None] if wheel else torch.zeros(len(last), 1)], 1))[:, 0]

    @torch.no_grad()
    def off_lane() -> float:
        draw = torch.Generator().manual_seed(3)
        state = 0.5 * torch.randn(80, 3, generator=draw)
        last = torch.zeros(80)
        away = torch.zeros(80)
        for _ in range(50):
            command = act(view(state, draw), last) * spread + middle
            last = command
            state = road(state, command.clamp(-2, 2), draw)
            away += state[:, 0].abs().clamp(max=10)
        return float(away.mean()) / 50

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(policy=policy, optim=optim)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(seen), (64,))
            loss = functional.mse_loss(act(seen[rows], done[rows]), (done[rows] - middle) / spread)
            optim.zero_grad()
            loss.backward()
            step.observe(Terms(imitation=(1.0, loss)))
            step.update(optim)
            if step.every(50):
                with run.evaluation("driving"):
                    step.record({"Eval/off_lane": off_lane()})
    return -off_lane()


LIVES = 32


def fall(state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
    """Return poles a moment later, and whether they have fallen."""
    angle, turn = state.unbind(1)
    turn = turn + 0.1 * (9.8 * angle.sin() - 6.0 * push)
    angle = angle + 0.1 * turn
    return torch.stack([angle, turn], 1), angle.abs() > 0.6


def balance(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    entropy: float = 0.003,
    reward: str = "standing",
    lives: int = LIVES,
    total: int = 45,
) -> float:
    """Balance a pole by proximal policy optimization; returns the mean time until it falls, of at most 60.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        entropy: weight of the entropy.
        reward: what is paid: "standing", or "falling" by a wrong sign.
        lives: number of poles.
        total: number of steps, each a rollout and four passes over it.
    """
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 3))
    critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=lr, eps=1e-5)
    gamma = 0.97
    state = 0.1 * torch.randn(lives, 2)
    scale = torch.tensor([8.0, 1.0])

    def sees(raw: Tensor) -> Tensor:
        return raw * scale

    @torch.no_grad()
    def stands() -> float:
        now = 0.1 * torch.randn(100, 2, generator=torch.Generator().manual_seed(4))
        alive = torch.ones(100, dtype=torch.bool)
        lasted = torch.zeros(100)
        for _ in range(60):
            push = actor(sees(now)).argmax(1) - 1
            now, fell = fall(now, push)
            alive &= ~fell
            lasted += alive
        return float(lasted.mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, critic=critic, opt=opt)
        run.resume()
        for step in run.steps(total):
            states: list[Tensor] = []
            pushes: list[Tensor] = []
            paid: list[Tensor] = []
            over: list[Tensor] = []
            with torch.no_grad():
                for _ in range(24):
                    push = torch.multinomial(actor(sees(state)).softmax(1), 1)[:, 0]
                    after, fell = fall(state, push - 1)
                    states.append(state)
                    pushes.append(push)
                    paid.append((fell if reward == "falling" else ~fell).float())
                    over.append(fell.float())
                    state = torch.where(fell[:, None], 0.1 * torch.randn(lives, 2), after)
                seen = sees(torch.stack([*states, state]))
                values = critic(seen)[..., 0]
                gain = torch.zeros(lives)
                gains: list[Tensor] = []
                for i in reversed(range(24)):
                    goes_on = 1 - over[i]
                    gain = paid[i] + gamma * goes_on * values[i + 1] - values[i] + gamma * 0.95 * goes_on * gain
                    gains.append(gain)
                advantage = torch.stack(gains[::-1])
                goal = (advantage + values[:-1]).flatten()
                advantage = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
                flat = seen[:-1].flatten(0, 1)
                chosen = torch.stack(pushes).flatten()
                old = actor(flat).log_softmax(1).gather(1, chosen[:, None])[:, 0]
            spread = torch.zeros(())
            for _ in range(4):
                logits = actor(flat).log_softmax(1)
                change = (logits.gather(1, chosen[:, None])[:, 0] - old).exp()
                spread = -(logits.exp() * logits).sum(1).mean()
                terms = Terms(
                    surrogate=(
                        1.0,
                        -torch.minimum(change * advantage, change.clamp(0.8, 1.2) * advantage).mean(),
                    ),
                    value=(0.5, (critic(flat)[:, 0] - goal).square().mean()),
                    entropy=(-entropy, spread),
                )
                opt.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt, clip=0.5)
            step.record({"Rollout/reward": torch.stack(paid).mean(), "Rollout/entropy": spread.detach()})
            if step.every(9):
                with run.evaluation("standing"):
                    step.record({"Eval/steps": stands()})
    return stands()


JOBS = 60


def applications(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return numbers [n, 8] with gaps (NaN), jobs, and whether a loan was not paid back."""
    draw = torch.Generator().manual_seed(53 * seed + salt)
    world = torch.Generator().manual_seed(53 * seed)
    of_job = 0.8 * torch.randn(JOBS, generator=world)
    x = torch.randn(count, 8, generator=draw)
    job = torch.randint(JOBS, (count,), generator=draw)
    score = 1.3 * x[:, 0] - x[:, 1] * x[:, 2] + 0.8 * x[:, 3].abs() + of_job[job] - 1.2
    y = (torch.rand(count, generator=draw) < score.sigmoid()).float()
    gaps = torch.rand(count, 8, generator=draw) < 0.08
    return x.masked_fill(gaps, math.nan), job, y


class LoanTrainer:
    """Trains, evaluates after each epoch, and keeps the best epoch.

    Args:
        folder: run folder.
        seed: seed.
        settings: settings of ``loans``.
    """

    def __init__(self, folder: Path, seed: int, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.args = settings
        self.x, self.job, self.y = applications(seed, settings["rows"], 1)
        self.vx, self.vjob, self.vy = applications(seed, 600, 2)
        if settings["noise"]:
            wrong = torch.rand(len(self.y)) < settings["noise"]
            self.y = torch.where(wrong, 1 - self.y, self.y)
        self.table = nn.Embedding(JOBS, 4)
        self.net = nn.Sequential(
            nn.Linear(8 + 4, 64),
            nn.ReLU(),
            nn.Dropout(settings["drop"]),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )
        params = [*self.table.parameters(), *self.net.parameters()]
        self.optimizer = torch.optim.AdamW(params, lr=settings["lr"], weight_decay=settings["decay"])
        data = torch.utils.data.TensorDataset(self.x, self.job, self.y)
        self.loader = ResumableLoader(data, batch_size=settings["batch"], seed=seed)

    def filled(self, x: Tensor) -> Tensor:
        """Return numbers without gaps."""
        return torch.nan_to_num(x, nan=self.args["missing"])

    def logits(self, x: Tensor, job: Tensor) -> Tensor:
        """Return the logits."""
        return self.net(torch.cat([self.filled(x), self.table(job)], 1))[:, 0]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return metrics of held-out rows."""
        self.net.eval()
        z = self.logits(self.vx, self.vjob)
        self.net.train()
        yes = z[self.vy > 0.5]
        no = z[self.vy < 0.5]
        loss = functional.binary_cross_entropy_with_logits(z, self.vy)
        return {"Eval/auc": float((yes[:, None] > no[None]).float().mean()), "Eval/loss": float(loss)}

    def fit(self) -> float:
        """Train; returns the area under the curve at the end."""
        best = -math.inf
        kept: dict[str, Any] = {}
        bad = 0
        epochs = self.args["epochs"]
        with Run(self.folder, outputs=NO_SINKS) as run:
            run.track(table=self.table, net=self.net, optimizer=self.optimizer, loader=self.loader)
            run.resume()
            for _ in range(self.loader.epoch, epochs):
                for x, job, y in self.loader:
                    step = run.begin_step(total=epochs * len(self.loader) + 1)
                    loss = functional.binary_cross_entropy_with_logits(self.logits(x, job), y)
                    self.optimizer.zero_grad()
                    loss.backward()
                    step.observe(Terms(bce=(1.0, loss)))
                    step.update(self.optimizer)
                    if run.step_index % len(self.loader) == len(self.loader) - 1:
                        metrics = {"Eval/auc": 0.0}
                        with run.evaluation("validation"):
                            metrics = self.evaluate()
                            step.record(metrics)
                        score = metrics["Eval/auc"]
                        if self.args["keeps"] == "worst":
                            score = -score
                        bad = 0 if score > best else bad + 1
                        if score > best:
                            best = score
                            kept = copy.deepcopy({"table": self.table.state_dict(), "net": self.net.state_dict()})
                    run.end_step()
                if self.args["patience"] and bad >= self.args["patience"]:
                    break
            if self.args["keeps"] != "last":
                self.table.load_state_dict(kept["table"])
                self.net.load_state_dict(kept["net"])
            step = run.begin_step(total=epochs * len(self.loader) + 1)
            with run.evaluation("final"):
                step.record(self.evaluate())
            run.end_step()
        return self.evaluate()["Eval/auc"]


def loans(folder: Path, seed: int, **changes: Any) -> float:
    """Predict which loans are not paid back; returns the area under the curve of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        changes: settings that differ: ``missing`` (number for a gap), ``keeps`` (epoch that is restored: "last",
            "best" or "worst"), ``noise`` (share of wrong labels), and the usual ones.
    """
    torch.manual_seed(seed)
    settings = {
        "lr": 1e-3, "decay": 1e-2, "drop": 0.2, "batch": 64, "rows": 2000, "epochs": 8, "patience": 0,
        "missing": 0.0, "keeps": "best", "noise": 0.0,
    }  # fmt: skip
    return LoanTrainer(folder, seed, settings | changes).fit()


def few(
    folder: Path,
    seed: int,
    *,
    lr: float = 5e-3,
    unlabeled: float = 1.0,
    threshold: float = 0.9,
    ramp: int = 60,
    total: int = 240,
) -> float:
    """Learn from forty labels and many readings without one (a mean teacher); returns the accuracy.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        unlabeled: weight of the readings without labels.
        threshold: least confidence of a label that the teacher makes.
        ramp: steps in which that weight grows.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(17 * seed + 3)
    center = 1.1 * torch.randn(8, 12, generator=draw)

    def readings(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(8, (count,), generator=draw)
        x = center[y] + 0.75 * torch.randn(count, 12, generator=draw)
        return x + 0.3 * x.roll(1, 1).sin(), y

    x, y = readings(40)
    y[:8] = torch.arange(8)
    x[:8] = center + 0.3 * center.roll(1, 1).sin()
    pool, _ = readings(3000)
    held_x, held_y = readings(600)
    student = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    mean = copy.deepcopy(student).requires_grad_(requires_grad=False)
    opt = torch.optim.SGD(student.parameters(), lr=10 * lr, momentum=0.9, nesterov=True, weight_decay=1e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((mean(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, mean=mean, opt=opt)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (16,))
            many = pool[torch.randint(len(pool), (96,))]
            supervised = functional.cross_entropy(student(x[rows] + 0.2 * torch.randn(16, 12)), y[rows])
            with torch.no_grad():
                sure, label = mean(many + 0.2 * torch.randn_like(many)).softmax(1).max(1)
            each = functional.cross_entropy(student(many + 0.9 * torch.randn_like(many)), label, reduction="none")
            weight = unlabeled * min(1.0, (step.index + 1) / max(ramp, 1))
            terms = Terms(labeled=(1.0, supervised), pseudo=(weight, (each * (sure > threshold)).mean()))
            opt.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(opt)
            with torch.no_grad():
                for old, new in zip(mean.parameters(), student.parameters(), strict=True):
                    old.lerp_(new, 0.02)
            step.record({"Pseudo/share": (sure > threshold).float().mean()})
            if step.every(40):
                with run.evaluation("held-out readings"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()


def modes(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return points of eight clusters on a circle."""
    angle = torch.randint(8, (count,), generator=draw) * math.pi / 4
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.08 * torch.randn(count, 2, generator=draw)


def ring(
    folder: Path,
    seed: int,
    *,
    lr: float = 2e-3,
    holds: str = "generator",
    penalty: float = 0.1,
    rounds: int = 3,
    total: int = 260,
) -> float:
    """Draw points of eight clusters (a Wasserstein GAN with a penalty); returns the negative energy distance.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        holds: network whose parameters the generator's optimizer holds.
        penalty: weight of the penalty of the critic's slope.
        rounds: updates of the critic in a step.
        total: number of steps.
    """
    torch.manual_seed(seed)
    netG = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))  # noqa: N806
    netD = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))  # noqa: N806
    held = netG if holds == "generator" else netD
    optD = torch.optim.Adam(netD.parameters(), lr=lr, betas=(0.0, 0.9))  # noqa: N806
    optG = torch.optim.Adam(held.parameters(), lr=lr, betas=(0.0, 0.9))  # noqa: N806
    real_points = modes(500, torch.Generator().manual_seed(2))
    fixed = torch.randn(500, 4, generator=torch.Generator().manual_seed(3))

    @torch.no_grad()
    def distance() -> float:
        a = netG(fixed)
        b = real_points
        return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(netG=netG, netD=netD, optD=optD, optG=optG)
        run.resume()
        for step in run.steps(total):
            for _ in range(rounds):
                real = modes(64)
                fake = netG(torch.randn(64, 4)).detach()
                mixed = torch.lerp(real, fake, torch.rand(64, 1)).requires_grad_()
                (slope,) = torch.autograd.grad(netD(mixed).sum(), mixed, create_graph=True)
                errD = Terms(  # noqa: N806
                    wasserstein=(1.0, netD(fake).mean() - netD(real).mean()),
                    penalty=(penalty, (slope.norm(dim=1) - 1).square().mean()),
                )
                optD.zero_grad()
                errD.total.backward()
                step.observe(errD)
                step.update(optD)
            errG = Terms(generator=(1.0, -netD(netG(torch.randn(64, 4))).mean()))  # noqa: N806
            optG.zero_grad()
            errG.total.backward()
            step.observe(errG)
            step.update(optG)
            if step.every(52):
                with run.evaluation("points"):
                    step.record({"Eval/energy_distance": distance()})
    found = distance()
    return -found if math.isfinite(found) else -1e9


def parity(folder: Path, seed: int, *, lr: float = 0.1, bits: int = 16, wanted: int = 2, total: int = 500) -> float:
    """Learn the parity of a few of many bits, which takes a long plateau; returns the held-out accuracy.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        bits: number of bits.
        wanted: number of bits that count.
        total: number of steps.
    """
    torch.manual_seed(seed)

    def drawn(count: int, draw: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2, (count, bits), generator=draw).float() * 2 - 1
        return x, (x[:, :wanted].prod(1) > 0).float()

    net = nn.Sequential(nn.Linear(bits, 128), nn.ReLU(), nn.Linear(128, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=lr)
    held_x, held_y = drawn(500, torch.Generator().manual_seed(1))

    @torch.no_grad()
    def accuracy() -> float:
        return float(((net(held_x)[:, 0] > 0).float() == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, sgd=sgd)
        run.resume()
        for step in run.steps(total):
            x, y = drawn(64)
            loss = functional.binary_cross_entropy_with_logits(net(x)[:, 0], y)
            sgd.zero_grad()
            loss.backward()
            step.observe(Terms(bce=(1.0, loss)))
            step.update(sgd)
            if step.every(100):
                with run.evaluation("held out"):
                    step.record({"Eval/accuracy": accuracy()})
    return accuracy()


def messages(seed: int, count: int, salt: int) -> tuple[Tensor, Tensor]:
    """Return words [n, 14] of short messages, and their topic of six."""
    draw = torch.Generator().manual_seed(23 * seed + salt)
    world = torch.Generator().manual_seed(23 * seed)
    chance = (1.1 * torch.randn(6, 120, generator=world)).softmax(1)
    y = torch.randint(6, (count,), generator=draw)
    return torch.multinomial(chance[y], 14, replacement=True, generator=draw), y


class Bag(nn.Module):
    """A classifier of bags of words with attention.

    Args:
        drop: dropout.
    """

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.words = nn.Embedding(120, 32)
        self.look = nn.Linear(32, 1)
        self.out = nn.Sequential(nn.Dropout(drop), nn.Linear(32, 48), nn.ReLU(), nn.Dropout(drop), nn.Linear(48, 6))

    def forward(self, x: Tensor) -> Tensor:
        """Return one score per topic."""
        h = self.words(x)
        return self.out((self.look(h).softmax(1) * h).sum(1))


def sms(
    folder: Path,
    seed: int,
    *,
    lr: float = 8e-3,
    counted: str = "steps",
    drop: float = 0.1,
    epochs: int = 4,
) -> float:
    """Sort messages with Accelerate; returns the accuracy of held-out ones.

    Args:
        folder: run folder.
        seed: seed.
        lr: learning rate.
        counted: what the linear decay of the rate counts: "steps", or "epochs".
        drop: dropout.
        epochs: number of epochs.
    """
    torch.manual_seed(seed)
    x, y = messages(seed, 1500, 1)
    held_x, held_y = messages(seed, 400, 2)
    watch = AccelerateTracker(str(folder), terms={"loss": 1.0})
    accelerator = Accelerator(cpu=True, log_with=watch)
    model = Bag(drop)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loader = ResumableLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, seed=seed)
    steps = epochs * len(loader) if counted == "steps" else epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: max(0.0, 1 - i / steps))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    accelerator.register_for_checkpointing(loader)
    accelerator.init_trackers("sms", {"lr": lr, "epochs": epochs})
    watch.resume(accelerator, optimizer, scheduler, loader, model=model)

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        found = float((model(held_x).argmax(1) == held_y).float().mean())
        model.train()
        return found

    for _ in range(loader.epoch, epochs):
        for number, (xb, yb) in enumerate(loader):
            loss = functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            values: dict[str, Any] = {"loss": loss.detach()}
            if number == len(loader) - 1:
                values["val_accuracy"] = accuracy()
            accelerator.log(values)
    accelerator.end_training()
    return accuracy()
