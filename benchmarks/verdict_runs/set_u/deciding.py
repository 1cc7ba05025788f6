"""Sound trainings of policies and values: a corridor, a pendulum, doors, levers, by several methods."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

from .rows import mlp

SIDE = 5
"""Side of the field."""


class Field:
    """Many fields at once, in which a robot walks to a goal; each move costs a little."""

    def __init__(self, count: int) -> None:
        self.place = torch.randint(SIDE, (count, 2))
        self.goal = torch.randint(SIDE, (count, 2))
        self.left = torch.full((count,), 12)

    def seen(self) -> Tensor:
        """Return what the robots see, shape [count, 4]."""
        return torch.cat([self.goal - self.place, self.place - 2], 1).float() / 2

    def move(self, way: Tensor) -> tuple[Tensor, Tensor]:
        """Move; return rewards and whether an episode ended. Those that ended begin again."""
        moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
        self.place = (self.place + moves[way]).clamp(0, SIDE - 1)
        self.left -= 1
        there = (self.place == self.goal).all(1)
        done = there | (self.left == 0)
        count = int(done.sum())
        self.place[done] = torch.randint(SIDE, (count, 2))
        self.goal[done] = torch.randint(SIDE, (count, 2))
        self.left[done] = 12
        return there.float() - 0.05, done


@torch.no_grad()
def arrivals(policy: nn.Module, count: int = 300) -> float:
    """Return the share of the robots that reach their goal in 12 moves of the best guess."""
    state = torch.random.get_rng_state()
    torch.manual_seed(99)
    field = Field(count)
    reached = torch.zeros(count, dtype=torch.bool)
    ended = torch.zeros(count, dtype=torch.bool)
    for _ in range(12):
        reward, done = field.move(policy(field.seen()).argmax(1))
        reached |= (reward > 0.5) & ~ended
        ended |= done
    torch.random.set_rng_state(state)
    return float(reached.float().mean())


def robot(folder: Path, seed: int, *, method: str = "ppo", total: int = 120) -> float:
    """Teach a robot to walk to a goal; returns the share of arrivals.

    Args:
        folder: run folder.
        seed: seed.
        method: "ppo", "a2c", or "reinforce" without a critic.
        total: number of steps.
    """
    torch.manual_seed(seed)
    actor, critic = mlp(4, 64, 64, 4, act=nn.Tanh), mlp(4, 64, 64, 1, act=nn.Tanh)
    opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
    field = Field(32)
    length = 24

    def rollout() -> tuple[Tensor, ...]:
        seen, ways, rewards, ends, logs = [], [], [], [], []
        with torch.no_grad():
            for _ in range(length):
                x = field.seen()
                chances = torch.distributions.Categorical(logits=actor(x))
                way = chances.sample()
                reward, done = field.move(way)
                for rows, each in zip(
                    (seen, ways, rewards, ends, logs), (x, way, reward, done, chances.log_prob(way)), strict=True
                ):
                    rows.append(each)
            value = critic(field.seen())[:, 0] if method != "reinforce" else torch.zeros(32)
            returns = []
            for reward, done in zip(reversed(rewards), reversed(ends), strict=True):
                value = reward + 0.95 * value * ~done
                returns.append(value)
        return (
            torch.cat(seen),
            torch.cat(ways),
            torch.cat(returns[::-1]),
            torch.cat(logs),
            torch.cat(rewards),
            torch.cat(ends),
        )

    def terms_of(x: Tensor, way: Tensor, returns: Tensor, old: Tensor) -> Terms:
        chances = torch.distributions.Categorical(logits=actor(x))
        value = critic(x)[:, 0]
        log = chances.log_prob(way)
        if method == "reinforce":
            gain = (returns - returns.mean()) / (returns.std() + 1e-6)
            return Terms(policy=(1.0, -(log * gain).mean()), entropy=(-0.01, chances.entropy().mean()))
        gain = (returns - value).detach()
        if method == "ppo":
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            ratio = (log - old).exp()
            policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        else:
            policy = -(log * gain).mean()
        return Terms(
            policy=(1.0, policy),
            value=(0.5, functional.mse_loss(value, returns)),
            entropy=(-0.01, chances.entropy().mean()),
        )

    with Run(folder, outputs=NO_SINKS) as run:
        if method == "reinforce":
            run.track(actor=actor, opt=opt)
        else:
            run.track(actor=actor, opt=opt, critic=critic)
        run.resume()
        for step in run.steps(total):
            x, way, returns, old, rewards, ends = rollout()
            step.record({"rollout/mean_reward": rewards.mean(), "rollout/episodes": ends.sum()})
            for _ in range(3 if method == "ppo" else 1):
                terms = terms_of(x, way, returns, old)
                opt.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(opt, clip=0.5)
            if step.every(20):
                with run.evaluation("best guesses"):
                    step.record({"eval/arrivals": arrivals(actor)})
    return arrivals(actor)


def robot_by_values(folder: Path, seed: int, *, total: int = 700) -> float:
    """Teach the robot by Q-learning with a memory and a late copy; returns the share of arrivals."""
    torch.manual_seed(seed)
    net, late = mlp(4, 64, 64, 4), mlp(4, 64, 64, 4)
    late.load_state_dict(net.state_dict())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    field = Field(16)
    memory: list[tuple[Tensor, ...]] = []

    def act(step: int) -> float:
        x = field.seen()
        with torch.no_grad():
            way = net(x).argmax(1)
        bold = torch.rand(16) < max(0.05, 1 - step / 300)
        way = torch.where(bold, torch.randint(4, (16,)), way)
        reward, done = field.move(way)
        memory.append((x, way, reward, field.seen(), done))
        return float(reward.mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, late=late, opt=opt)
        run.resume()
        for _ in range(20):
            act(0)
        for step in run.steps(total):
            reward = act(step.index)
            picked = [memory[int(i)] for i in torch.randint(max(0, len(memory) - 400), len(memory), (8,))]
            x, way, gain, after, done = (torch.cat(rows) for rows in zip(*picked, strict=True))
            with torch.no_grad():
                target = gain + 0.95 * late(after).max(1).values * ~done
            loss = functional.smooth_l1_loss(net(x).gather(1, way[:, None])[:, 0], target)
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(td=(1.0, loss)))
            step.update(opt, clip=10.0)
            step.record({"train/reward": reward})
            if step.index % 50 == 49:
                late.load_state_dict(net.state_dict())
            if step.every(100):
                with run.evaluation("greedy"):
                    step.record({"eval/success_rate": arrivals(net)})
    return arrivals(net)


def newsroom(folder: Path, seed: int, *, total: int = 400) -> float:
    """Choose headlines for readers by a neural bandit; returns the clicks of the best guesses, of the possible ones."""
    torch.manual_seed(seed)
    gen = torch.Generator().manual_seed(83 * seed + 1)
    taste = torch.randn(6, 8, generator=gen)

    def chance(x: Tensor) -> Tensor:
        return (1.2 * x @ taste.T / 8**0.5 - 1.5).sigmoid()

    net = mlp(8, 48, 6)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    test = torch.randn(800, 8, generator=gen)

    def clicks() -> float:
        with torch.no_grad():
            best = chance(test).gather(1, net(test).argmax(1, keepdim=True)).mean()
        return float(best / chance(test).max(1).values.mean())

    regret = 0.0
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(net=net, opt=opt)
        run.resume()
        for step in run.steps(total):
            x = torch.randn(64, 8)
            with torch.no_grad():
                pick = net(x).argmax(1)
            pick = torch.where(torch.rand(64) < 0.15, torch.randint(6, (64,)), pick)
            p = chance(x)
            clicked = (torch.rand(64) < p.gather(1, pick[:, None])[:, 0]).float()
            regret += float((p.max(1).values - p.gather(1, pick[:, None])[:, 0]).sum())
            loss = functional.binary_cross_entropy_with_logits(net(x).gather(1, pick[:, None])[:, 0], clicked)
            opt.zero_grad()
            loss.backward()
            step.observe(Terms(click=(1.0, loss)))
            step.update(opt)
            step.record({"online/click_rate": clicked.mean(), "online/regret": regret})
            if step.every(80):
                with run.evaluation("best guesses"):
                    step.record({"eval/share_of_possible_clicks": clicks()})
    return clicks()
