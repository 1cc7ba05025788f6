"""Choices: an agent that opens valves, and an embedding of voices by triplets."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import Run, Terms
from verdict_runs.supervised import NO_SINKS

VALVES = 5


def valves(
    folder: Path,
    seed: int,
    *,
    rate: float = 4e-3,
    entropy: float = 0.01,
    reward: str = "right",
    scale: float = 1.0,
    frozen_ratio: bool = False,
    clipped: float = 0.2,
    rate_of_critic: float = 1.0,
    rounds: int = 60,
) -> float:
    """Open the valve that a state asks for, by proximal policy optimization; returns the expected reward.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        entropy: weight of the entropy.
        reward: "right", "shuffled" (rewards of other states of the batch) or "reversed".
        scale: factor of the rewards.
        frozen_ratio: whether the new probabilities are taken without their gradient.
        clipped: width of the clipped ratio.
        rate_of_critic: weight of the critic's loss.
        rounds: number of batches of experience, each used four times.
    """
    torch.manual_seed(seed)
    rule = torch.randn(6, VALVES, generator=torch.Generator().manual_seed(500 + seed))
    actor = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, VALVES))
    values = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
    adam = torch.optim.Adam([*actor.parameters(), *values.parameters()], lr=rate)

    def paid(states: Tensor, opened: Tensor) -> Tensor:
        wishes = functional.normalize(states @ rule, dim=1)
        return wishes.gather(1, opened[:, None])[:, 0]

    @torch.no_grad()
    def expected() -> float:
        states = torch.randn(500, 6, generator=torch.Generator().manual_seed(8))
        wishes = functional.normalize(states @ rule, dim=1)
        return float((actor(states).softmax(1) * wishes).sum(1).mean())

    total = 4 * rounds
    states = torch.zeros(0, 6)
    opened = torch.zeros(0, dtype=torch.long)
    before = rewards = torch.zeros(0)
    with Run(folder, outputs=NO_SINKS) as run:
        run.track(actor=actor, values=values, adam=adam)
        run.resume()
        for step in run.steps(total):
            if step.index % 4 == 0:
                with torch.no_grad():
                    states = torch.randn(256, 6)
                    policy = torch.distributions.Categorical(logits=actor(states))
                    opened = policy.sample()
                    before = policy.log_prob(opened)
                    rewards = scale * (paid(states, opened) + 0.1 * torch.randn(256))
                    if reward == "shuffled":
                        rewards = rewards[torch.randperm(256)]
                    if reward == "reversed":
                        rewards = -rewards
            policy = torch.distributions.Categorical(logits=actor(states))
            chance = policy.log_prob(opened)
            ratio = ((chance.detach() if frozen_ratio else chance) - before).exp()
            guess = values(states)[:, 0]
            gain = (rewards - guess).detach()
            gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - clipped, 1 + clipped) * gain).mean()
            spread = policy.entropy().mean()
            terms = Terms(
                policy=(1.0, -surrogate),
                critic=(rate_of_critic, (guess - rewards).square().mean()),
                entropy=(entropy, -spread),
            )
            adam.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.record({"Agent/entropy": spread, "Agent/reward": rewards.mean() / scale})
            step.update(adam, clip=0.5)
            if step.every(48):
                with run.evaluation("policy"):
                    step.record({"Eval/reward": expected()})
    return expected()


def voices(seed: int, count: int, salt: int, *, known: bool) -> tuple[Tensor, Tensor]:
    """Return features of speakers, twelve of them known and ten not, and their numbers."""
    draw = torch.Generator().manual_seed(37 * seed + salt)
    shared = torch.Generator().manual_seed(37 * seed + (1 if known else 2))
    speakers = 12 if known else 10
    centers = torch.randn(speakers, 4, generator=shared)
    way = torch.randn(4, 24, generator=torch.Generator().manual_seed(37 * seed))
    noise = torch.randn(8, 24, generator=torch.Generator().manual_seed(37 * seed + 3))
    who = torch.randint(speakers, (count,), generator=draw)
    spoken = 1.4 * torch.randn(count, 8, generator=draw)
    return ((centers[who] + 0.2 * torch.randn(count, 4, generator=draw)) @ way + spoken @ noise) / 4, who


def triplets(
    folder: Path,
    seed: int,
    *,
    rate: float = 2e-3,
    margin: float = 0.4,
    swapped: bool = False,
    same_speaker: bool = True,
    total: int = 240,
) -> float:
    """Embed voices by triplets; returns the accuracy of nearest centers on held-out voices.

    Args:
        folder: run folder.
        seed: seed.
        rate: learning rate.
        margin: margin of the triplets.
        swapped: whether positive and negative are exchanged.
        same_speaker: whether positives are of the same speaker.
        total: number of steps.
    """
    torch.manual_seed(seed)
    x, who = voices(seed, 1500, 1, known=True)
    held_x, held_who = voices(seed, 400, 5, known=True)
    body = nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Linear(96, 64), nn.GELU(), nn.Linear(64, 8))
    adam = torch.optim.Adam(body.parameters(), lr=rate)

    def placed(features: Tensor) -> Tensor:
        return functional.normalize(body(features), dim=1)

    @torch.no_grad()
    def nearest() -> float:
        places = placed(x)
        centers = torch.stack([places[who == k].mean(0) for k in range(12)])
        return float((torch.cdist(placed(held_x), centers).argmin(1) == held_who).float().mean())

    with Run(folder, outputs=NO_SINKS) as run:
        run.track(body=body, adam=adam)
        run.resume()
        for step in run.steps(total):
            picked = torch.randint(len(x), (96,))
            places = placed(x[picked])
            same = who[picked][:, None] == who[picked][None]
            if not same_speaker:
                same = same[torch.randperm(96)]
            far = torch.cdist(places, places)
            # The farthest of the same speaker and the nearest of another one.
            positive = far.masked_fill(~same, 0).amax(1)
            negative = far.masked_fill(same, 9).amin(1)
            if swapped:
                positive, negative = negative, positive
            loss = functional.relu(positive - negative + margin).mean()
            adam.zero_grad()
            loss.backward()
            step.observe(Terms(triplet=(1.0, loss)))
            step.update(adam)
            if step.every(48):
                with run.evaluation("nearest"):
                    step.record({"Eval/nearest": nearest(), "Eval/spread": placed(held_x).std(0).mean()})
    return nearest()
