# ruff: noqa: NPY002 - the global generators are what is tested
"""A resumed run is bitwise identical, but not if any part of its state is omitted."""

import random

import numpy as np
import pytest
import torch

from fieldwatch.checkpoint import Checkpoints, RandomState, Shuffled

STEPS = 17


class Training:
    """A small training that draws from all random generators."""

    def __init__(self, seed):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.samples = torch.linspace(-1, 1, 44).reshape(11, 4)
        layers = (torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.model = torch.nn.Sequential(*layers)
        self.exposure = torch.zeros(1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05, amsgrad=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 4, 0.5)
        self.order = Shuffled(11, 3, seed)
        self.rays = torch.Generator().manual_seed(seed)
        self.noise = np.random.default_rng(seed)

    @property
    def items(self):
        random_state = RandomState(rays=self.rays, noise=self.noise)
        return {
            "model": self.model,
            "exposure": self.exposure,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "order": self.order,
            "random": random_state,
        }

    def step(self):
        batch = self.samples[next(self.order)]
        jitter = random.random() + np.random.rand() + self.noise.random() + torch.rand(1, generator=self.rays)
        loss = (self.model(batch + 0.1 * jitter.float()) - 1 - self.exposure).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.exposure += 0.01 * loss.detach()
        return loss.item()

    def final(self):
        return [one.clone() for one in (*self.model.state_dict().values(), self.exposure)]


def same(one, two):
    return one[0] == two[0] and all(map(torch.equal, one[1], two[1]))


def uninterrupted(seed=1):
    training = Training(seed)
    return [training.step() for _ in range(STEPS)], training.final()


def resumed(folder, stop, spoilt=None, part=""):
    """Train to ``stop``, save, restart with another seed, restore all but one part, and continue."""
    first = Training(1)
    losses = [first.step() for _ in range(stop)]
    Checkpoints(folder).save(stop, first.items)
    second = Training(2)
    items = {name: Spoilt(item, part) if name == spoilt else item for name, item in second.items.items()}
    Checkpoints(folder).restore(items)
    return losses + [second.step() for _ in range(STEPS - stop)], second.final()


class Spoilt:
    """An item that does not restore one part of its state, or any of it (``""``)."""

    def __init__(self, item, part):
        self.item = item
        self.part = part

    def state_dict(self):
        return self.item.state_dict()

    def load_state_dict(self, state):
        if self.part:
            self.item.load_state_dict({**state, self.part: self.item.state_dict()[self.part]})


@pytest.mark.parametrize("stop", [1, 3, 4, 5, 8, 13, 16])
def test_a_resumed_run_is_the_same_run_bit_for_bit(tmp_path, stop):
    assert same(resumed(tmp_path, stop), uninterrupted())


def test_a_resume_of_a_resume_is_the_same_run(tmp_path):
    losses = []
    training = Training(1)
    for seed in range(2, STEPS + 2):
        losses.append(training.step())
        Checkpoints(tmp_path).save(seed, training.items)
        training = Training(seed)
        Checkpoints(tmp_path).restore(training.items)
    assert same((losses, training.final()), uninterrupted())


@pytest.mark.parametrize(
    ("item", "part"),
    [
        *(("model", ""), ("model", "0.weight"), ("model", "1.running_mean"), ("optimizer", ""), ("optimizer", "state")),
        *(("optimizer", "param_groups"), ("schedule", ""), ("schedule", "last_epoch"), ("order", "order")),
        *(("order", "cursor"), ("order", "generator"), ("random", "python"), ("random", "numpy"), ("random", "torch")),
        ("random", "generators"),
    ],
)
def test_without_any_one_part_of_the_state_it_is_another_run(tmp_path, item, part):
    assert not same(resumed(tmp_path, 5, item, part), uninterrupted())


def test_without_a_plain_tensor_it_is_another_run(tmp_path):
    training = Training(1)
    losses = [training.step() for _ in range(5)]
    Checkpoints(tmp_path).save(5, training.items)
    other = Training(2)
    Checkpoints(tmp_path).restore(other.items)
    other.exposure.zero_()
    assert not same((losses + [other.step() for _ in range(STEPS - 5)], other.final()), uninterrupted())


def test_a_fresh_seed_is_another_run():
    assert not same(uninterrupted(1), uninterrupted(2))
