"""Agents: one that docks by continuous thrust with a replay memory, one that catches by policy gradients."""

import itertools
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

WORLDS = 16
LENGTH = 20


def mlp(*widths: int, last: nn.Module | None = None) -> nn.Sequential:
    """Return linear layers with ReLUs between."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([] if last is None else [last]))


def thrust(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next states, rewards and whether a boat has left the harbor."""
    place, speed = state.unbind(1)
    speed = 0.95 * speed + 0.4 * action[:, 0]
    place = place + 0.4 * speed
    lost = place.abs() > 2.5
    paid = -place.square() - 0.1 * speed.square() - 5.0 * lost
    return torch.stack([place, speed], 1), 0.2 * paid, lost


def harbor(count: int, draw: torch.Generator | None = None) -> Tensor:
    """Return states at the begin of an episode."""
    return torch.rand(count, 2, generator=draw) * torch.tensor([3.0, 1.0]) - torch.tensor([1.5, 0.5])


def dock(
    folder: Path,
    seed: int,
    *,
    rate: float = 3e-3,
    pace: float = 0.02,
    sign: float = 1.0,
    ends: str = "right",
    discount: float = 0.95,
    cut: bool = False,
    aliases: bool = False,
    noise: float = 0.4,
    reward: float = 1.0,
    total: int = 300,
) -> float:
    """Dock with deterministic policy gradients; returns the mean reward of a step of held-out episodes.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        pace: share of the target networks that each update renews.
        sign: sign of the actor's loss.
        ends: "right", or "inverted" (the bootstrap counts only at the ends).
        discount: discount.
        cut: whether the critic sees the actor's actions without their gradient.
        aliases: whether the memory holds the state itself where the next one belongs.
        noise: spread of the exploration.
        reward: factor of the rewards in the memory.
        total: number of steps.
    """
    torch.manual_seed(seed)
    actor = mlp(2, 40, 40, 1, last=nn.Tanh())
    critic = mlp(3, 40, 40, 1)
    old_actor = mlp(2, 40, 40, 1, last=nn.Tanh())
    old_critic = mlp(3, 40, 40, 1)
    old_actor.requires_grad_(requires_grad=False)
    old_critic.requires_grad_(requires_grad=False)
    if pace > 0:
        # Without this copy, a target network that is never updated stays a random function.
        old_actor.load_state_dict(actor.state_dict())
        old_critic.load_state_dict(critic.state_dict())
    of_actor = torch.optim.Adam(actor.parameters(), lr=rate / 3)
    of_critic = torch.optim.Adam(critic.parameters(), lr=rate)
    memory = torch.zeros(4000, 7)
    filled = 0
    state = harbor(WORLDS)

    @torch.no_grad()
    def sailed() -> float:
        now = harbor(100, torch.Generator().manual_seed(5))
        earned = torch.zeros(100)
        alive = torch.ones(100)
        for _ in range(LENGTH):
            now, paid, lost = thrust(now, actor(now))
            earned += alive * paid
            alive = alive * ~lost
        return float(earned.mean()) / LENGTH

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(
            actor=actor,
            critic=critic,
            old_actor=old_actor,
            old_critic=old_critic,
            of_actor=of_actor,
            of_critic=of_critic,
        )
        run.resume()
        for step in run.steps(total):
            with torch.no_grad():
                action = (actor(state) + noise * torch.randn(WORLDS, 1)).clamp(-1, 1)
                after, paid, lost = thrust(state, action)
                row = torch.cat([state, action, reward * paid[:, None], state if aliases else after, lost[:, None]], 1)
                place = filled % len(memory)
                memory[place : place + WORLDS] = row
                filled += WORLDS
                over = lost if step.index % LENGTH else torch.ones(WORLDS, dtype=torch.bool)
                state = torch.where(over[:, None], harbor(WORLDS), after)
            batch = memory[torch.randint(min(filled, len(memory)), (96,))]
            seen, done, earned, then, ended = batch.split([2, 1, 1, 2, 1], 1)
            with torch.no_grad():
                goes_on = ended if ends == "inverted" else 1 - ended
                goal = earned + discount * goes_on * old_critic(torch.cat([then, old_actor(then)], 1))
            value = Terms(value=(1.0, functional.mse_loss(critic(torch.cat([seen, done], 1)), goal)))
            of_critic.zero_grad()
            value.total.backward()
            step.observe(value)
            step.update(of_critic)
            wished = actor(seen)
            policy = Terms(policy=(sign, -critic(torch.cat([seen, wished.detach() if cut else wished], 1)).mean()))
            of_actor.zero_grad()
            policy.total.backward()
            step.observe(policy)
            step.update(of_actor)
            with torch.no_grad():
                for old, new in ((old_actor, actor), (old_critic, critic)):
                    for mine, theirs in zip(old.parameters(), new.parameters(), strict=True):
                        mine.lerp_(theirs, pace)
            step.record({"Agent/reward": paid.mean(), "Agent/value": goal.mean()})
            if step.every(50):
                with run.evaluation("episodes"):
                    step.record({"Eval/reward": sailed()})
    earned = sailed()
    return earned if math.isfinite(earned) else -1e9


WIDTH = 7
HEIGHT = 6


def catch(
    folder: Path,
    seed: int,
    *,
    rate: float = 1e-2,
    entropy: float = 0.01,
    counts: str = "from now",
    executed: bool = True,
    stale: bool = False,
    baseline: str = "learned",
    total: int = 120,
) -> float:
    """Catch balls in a wind by REINFORCE with a learned baseline; returns the share of caught balls.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        entropy: weight of the entropy.
        counts: rewards that a choice is judged by: "from now", or "until now".
        executed: whether the probabilities are those of the choices that were executed.
        stale: whether the agent sees the first state all the time.
        baseline: "learned" or "none".
        total: number of steps.
    """
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 3))
    value = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 1))
    adam = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=rate)

    def play(worlds: int, draw: torch.Generator | None, *, greedy: bool) -> tuple[Tensor, Tensor, Tensor]:
        ball = torch.randint(WIDTH, (worlds,), generator=draw)
        hand = torch.randint(WIDTH, (worlds,), generator=draw)
        states: list[Tensor] = []
        choices: list[Tensor] = []
        for height in range(HEIGHT):
            state = torch.stack([ball / 3 - 1, hand / 3 - 1, torch.full((worlds,), height / 3 - 1)], 1)
            states.append(states[0] if stale and states else state)
            with torch.no_grad():
                chances = policy(states[-1]).softmax(1)
            choice = chances.argmax(1) if greedy else torch.multinomial(chances, 1, generator=draw)[:, 0]
            choices.append(choice)
            hand = (hand + choice - 1).clamp(0, WIDTH - 1)
            wind = torch.randint(-1, 2, (worlds,), generator=draw)
            ball = (ball + wind * (torch.rand(worlds, generator=draw) < 0.3)).clamp(0, WIDTH - 1)
        paid = torch.zeros(HEIGHT, worlds)
        paid[-1] = (hand == ball).float()
        return torch.stack(states), torch.stack(choices), paid

    def caught() -> float:
        return float(play(400, torch.Generator().manual_seed(6), greedy=True)[2][-1].mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(policy=policy, value=value, adam=adam)
        run.resume()
        for step in run.steps(total):
            states, choices, paid = play(48, None, greedy=False)
            returns = paid.flip(0).cumsum(0).flip(0) if counts == "from now" else paid.cumsum(0) - paid
            if counts == "until now":
                # The reward of the last choice is that of the episode before it.
                returns = returns.roll(1, 1)
            if not executed:
                choices = torch.distributions.Categorical(logits=policy(states)).sample()
            spread = torch.distributions.Categorical(logits=policy(states))
            guess = value(states)[..., 0]
            gain = returns - guess.detach() if baseline == "learned" else returns
            terms = Terms(
                policy=(1.0, -(spread.log_prob(choices) * gain).mean()),
                value=(0.5, functional.mse_loss(guess, returns)),
                entropy=(-entropy, spread.entropy().mean()),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Agent/return": paid[-1].mean()})
            step.update(adam, clip=1.0)
            if step.every(24):
                with run.evaluation("greedy"):
                    step.record({"Eval/caught": caught()})
    return caught()
