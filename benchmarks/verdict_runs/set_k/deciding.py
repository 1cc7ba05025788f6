"""Strangers' loops on networks, games and teachers: commuters, an elevator, a harvester, a scribe, and a glacier."""

from collections import deque
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fieldwatch import ResumableLoader, Run, Terms
from verdict_runs.supervised import NO_SINKS


def town(stations: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return features of stations, tracks between near ones (each pair once), and what commuters do there."""
    place = torch.rand(stations, 2, generator=draw)
    away = torch.cdist(place, place).fill_diagonal_(9.0)
    near = away.topk(4, largest=False).indices
    pairs = torch.stack([torch.arange(stations).repeat_interleave(4), near.flatten()])
    tracks = torch.stack([pairs.amin(0), pairs.amax(0)]).unique(dim=1)
    x = torch.randn(stations, 6, generator=draw)
    crowd = torch.zeros(stations, 2)
    for start, end in (tracks, tracks.flip(0)):
        crowd.index_add_(0, end, x[start, :2])
    kind = (crowd[:, 0] > 0).long() + 2 * (crowd[:, 1] > 0).long()
    return x, tracks, kind


class Messages(nn.Module):
    """Sums what comes along the tracks."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(size, width)
        self.told = nn.Linear(size, width)

    def forward(self, x: Tensor, tracks: Tensor) -> Tensor:
        """Return new features of the stations; messages go from the first row of the tracks to the second."""
        told = torch.zeros(len(x), self.told.out_features).index_add(0, tracks[1], self.told(x)[tracks[0]])
        return self.own(x) + told


class Commuters(nn.Module):
    """Tells what happens at stations."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Messages(6, 32)
        self.second = Messages(32, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x: Tensor, tracks: Tensor) -> Tensor:
        """Return the logits of the kinds of stations."""
        x = self.first(x, tracks).relu()
        return self.out(self.second(x, tracks).relu())


def commuters(folder: Path, seed: int, *, ways: str = "both", left_out: float = 0.0, total: int = 200) -> float:
    """Tell what commuters do at stations; returns the accuracy in another town.

    Args:
        folder: run folder.
        seed: seed.
        ways: ways in which messages go along a track: "both", or "one".
        left_out: share of the tracks that are left out at random in each step.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(443 * seed + 7)
    x, tracks, kind = town(1200, draw)
    held_x, held_tracks, held_kind = town(500, draw)
    if ways == "both":
        tracks = torch.cat([tracks, tracks.flip(0)], 1)
        held_tracks = torch.cat([held_tracks, held_tracks.flip(0)], 1)
    net = Commuters()
    adam = torch.optim.Adam(net.parameters(), lr=5e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((net(held_x, held_tracks).argmax(1) == held_kind).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, adam=adam)
        run.resume()
        for step in run.steps(total):
            used = tracks[:, torch.rand(tracks.shape[1]) >= left_out]
            some = torch.randperm(len(x))[:400]
            loss = functional.cross_entropy(net(x, used)[some], kind[some])
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(kind=(1.0, loss)))
            step.update(adam)
            if step.every(40):
                with run.evaluation("another town"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()


FLOORS = 12
"""Floors of the house."""


def floors_of(state: Tensor) -> Tensor:
    """Return what the elevator knows: its floor and where it is called, each one-hot."""
    return torch.cat([functional.one_hot(state[:, i], FLOORS) for i in range(2)], 1).float()


def elevator(
    folder: Path,
    seed: int,
    *,
    stored: str = "before it moves",
    rare: bool = False,
    lr: float = 3e-3,
    total: int = 420,
) -> float:
    """Move an elevator to where it is called by Q-learning; returns the share of calls that it reaches in 14 moves.

    Args:
        folder: run folder.
        seed: seed.
        stored: when the state of a memory is taken: "before it moves", or "after it moved".
        rare: whether only an arrival is rewarded, and no way towards it.
        lr: learning rate.
        total: number of rounds.
    """
    torch.manual_seed(seed)
    values = nn.Sequential(nn.Linear(2 * FLOORS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    late = nn.Sequential(nn.Linear(2 * FLOORS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    late.load_state_dict(values.state_dict())
    adam = torch.optim.Adam(values.parameters(), lr=lr)
    memory: deque[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = deque(maxlen=120)

    def moved(state: Tensor, move: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        floor = (state[:, 0] + move - 1).clamp(0, FLOORS - 1)
        after = torch.stack([floor, state[:, 1]], 1)
        there = (floor == state[:, 1]) & (move == 1)
        nearer = (state[:, 0] - state[:, 1]).abs() - (floor - state[:, 1]).abs()
        reward = there.float() + (0.0 if rare else 0.1) * (nearer.float() - 0.5)
        return after, reward, there

    @torch.no_grad()
    def reached() -> float:
        state = torch.cartesian_prod(torch.arange(FLOORS), torch.arange(FLOORS))
        done = torch.zeros(len(state), dtype=torch.bool)
        for _ in range(14):
            state, _, there = moved(state, values(floors_of(state)).argmax(1))
            done |= there
        return float(done.float().mean())

    state = torch.randint(FLOORS, (64, 2))
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(values=values, late=late, adam=adam)
        run.resume()
        for step in run.steps(total):
            explore = max(0.15, 1 - step.index / (0.6 * total))
            with torch.no_grad():
                best = values(floors_of(state)).argmax(1)
            move = torch.where(torch.rand(64) < explore, torch.randint(3, (64,)), best)
            after, reward, there = moved(state, move)
            memory.append((state if stored == "before it moves" else after, move, reward, after, there))
            fresh = there | (torch.rand(64) < 0.06)
            state = torch.where(fresh[:, None], torch.randint(FLOORS, (64, 2)), after)
            was, chosen, gained, then, end = memory[int(torch.randint(len(memory), ()))]
            with torch.no_grad():
                target = gained + 0.9 * late(floors_of(then)).amax(1) * ~end
            loss = functional.smooth_l1_loss(values(floors_of(was))[torch.arange(64), chosen], target)
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(value=(1.0, loss)))
            step.record({"train/reward": reward.mean()})
            step.update(adam)
            if step.every(15):
                late.load_state_dict(values.state_dict())
            if step.every(60):
                with run.evaluation("all calls"):
                    step.record({"eval/reached": reached()})
    return reached()


def harvester(
    folder: Path,
    seed: int,
    *,
    at_the_limit: str = "goes on",
    clipped: float = 0.2,
    total: int = 260,
) -> float:
    """Lead a harvester to a rich field behind a poor one by an actor and a critic; returns its mean reward.

    Args:
        folder: run folder.
        seed: seed.
        at_the_limit: what the value is told where an episode is cut off after six moves: that it "goes on", or "ends".
        clipped: largest change of a chance in one update, as of PPO.
        total: number of rounds.
    """
    torch.manual_seed(seed)
    places = 9
    actor = nn.Sequential(nn.Linear(places, 48), nn.Tanh(), nn.Linear(48, 3))
    critic = nn.Sequential(nn.Linear(places, 48), nn.Tanh(), nn.Linear(48, 1))
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=6e-3)
    crop = torch.zeros(places)
    crop[1], crop[8] = 0.5, 1.0

    def seen(place: Tensor) -> Tensor:
        return functional.one_hot(place, places).float()

    def moved(place: Tensor, move: Tensor) -> Tensor:
        return (place + move - 1).clamp(0, places - 1)

    @torch.no_grad()
    def reward() -> float:
        place = torch.randint(places, (400,))
        gains = 0.0
        for _ in range(30):
            place = moved(place, actor(seen(place)).argmax(1))
            gains += float(crop[place].mean()) / 30
        return gains

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, critic=critic, adam=adam)
        run.resume()
        for step in run.steps(total):
            place = torch.randint(places, (48,))
            steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
            with torch.no_grad():
                for _ in range(6):
                    logits = actor(seen(place))
                    move = torch.multinomial(logits.softmax(1), 1)[:, 0]
                    after = moved(place, move)
                    steps.append((place, move, crop[after], logits.log_softmax(1)[torch.arange(48), move]))
                    place = after
                future = critic(seen(place))[:, 0] if at_the_limit == "goes on" else torch.zeros(48)
                returns: list[Tensor] = []
                for _, _, gained, _ in reversed(steps):
                    future = gained + 0.93 * future
                    returns.insert(0, future)
            was = seen(torch.cat([one[0] for one in steps]))
            move = torch.cat([one[1] for one in steps])
            old = torch.cat([one[3] for one in steps])
            told = torch.cat(returns)
            value = critic(was)[:, 0]
            gain = told - value.detach()
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            logs = actor(was).log_softmax(1)
            ratio = (logs[torch.arange(len(move)), move] - old).exp()
            policy = -torch.minimum(ratio * gain, ratio.clamp(1 - clipped, 1 + clipped) * gain).mean()
            entropy = -(logs.exp() * logs).sum(1).mean()
            terms = Terms(policy=(1.0, policy), value=(0.5, functional.mse_loss(value, told)), entropy=(-0.02, entropy))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam, clip=1.0)
            if step.every(52):
                with run.evaluation("without chance"):
                    step.record({"eval/reward": reward()})
    return reward()


def scribe(
    folder: Path,
    seed: int,
    *,
    names: str = "same order",
    warmth: float = 3.0,
    share: float = 0.8,
    total: int = 200,
) -> float:
    """Teach a small network to read hands of writers by a large one; returns its accuracy on other pages.

    Args:
        folder: run folder.
        seed: seed.
        names: order of the writers in the answers of the teacher: the "same order", or that of the "alphabet".
        warmth: temperature of the answers.
        share: weight of the teacher; the rest is that of the labels.
        total: number of steps.
    """
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(449 * seed + 3)
    middles = torch.randn(12, 20, generator=draw)

    def pages(count: int) -> tuple[Tensor, Tensor]:
        writer = torch.randint(12, (count,), generator=draw)
        return middles[writer] + 1.2 * torch.randn(count, 20, generator=draw), writer

    x, y = pages(1500)
    held_x, held_y = pages(500)
    teacher = nn.Sequential(nn.Linear(20, 192), nn.ReLU(), nn.Linear(192, 12))
    before = torch.optim.Adam(teacher.parameters(), lr=3e-3, weight_decay=1e-3)
    for _ in range(250):
        rows = torch.randint(len(x), (64,))
        before.zero_grad()
        functional.cross_entropy(teacher(x[rows]), y[rows]).backward()
        before.step()
    teacher.requires_grad_(requires_grad=False)
    # writer 10 and 11 come after writer 1
    shown = torch.arange(12) if names == "same order" else torch.tensor([0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9])
    student = nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 12))
    adam = torch.optim.Adam(student.parameters(), lr=6e-3)

    @torch.no_grad()
    def accuracy() -> float:
        return float((student(held_x).argmax(1) == held_y).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(student=student, adam=adam)
        run.resume()
        for step in run.steps(total):
            rows = torch.randint(len(x), (48,))
            logits = student(x[rows])
            wanted = (teacher(x[rows])[:, shown] / warmth).softmax(1)
            taught = functional.kl_div((logits / warmth).log_softmax(1), wanted, reduction="batchmean")
            label = functional.cross_entropy(logits, y[rows])
            terms = Terms(taught=(share * warmth**2, taught), label=(1 - share, label))
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(adam)
            if step.every(40):
                with run.evaluation("other pages"):
                    step.record({"val/accuracy": accuracy()})
    return accuracy()


def glacier(folder: Path, seed: int, *, order: str = "goes on", jobs: int = 15, total: int = 150) -> float:
    """Tell kinds of ice in jobs that are cut off within an epoch; returns the accuracy on new samples.

    Args:
        folder: run folder.
        seed: seed.
        order: order of the samples in a job: it "goes on" where the last job ended, or "begins anew".
        jobs: number of jobs.
        total: number of steps of all jobs.
    """
    draw = torch.Generator().manual_seed(457 * seed + 5)
    middles = 0.35 * torch.randn(8, 40, generator=draw)

    def ice(count: int) -> tuple[Tensor, Tensor]:
        kind = torch.randint(8, (count,), generator=draw)
        return middles[kind] + torch.randn(count, 40, generator=draw), kind

    data = TensorDataset(*ice(2400))
    new_x, new_y = ice(800)
    net = nn.Sequential()

    def accuracy() -> float:
        with torch.no_grad():
            return float((net(new_x).argmax(1) == new_y).float().mean())

    for job in range(jobs):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 8))
        adam = torch.optim.Adam(net.parameters(), lr=5e-3)
        kept = ResumableLoader(data, batch_size=16, seed=seed)
        anew = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))
        with Run(folder, outputs=NO_SINKS) as run:
            run.track(net=net, adam=adam)
            if order == "goes on":
                run.track(kept=kept)
            run.resume()
            batches = run.batches(kept) if order == "goes on" else iter(anew)
            for step, (x, y) in zip(run.steps((job + 1) * total // jobs), batches, strict=False):
                loss = functional.cross_entropy(net(x), y)
                adam.zero_grad()
                loss.backward()
                step.observe(Terms(kind=(1.0, loss)))
                step.update(adam)
                if step.every(30):
                    with run.evaluation("new samples"):
                        step.record({"val/accuracy": accuracy()})
    return accuracy()
