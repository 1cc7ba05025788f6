"""Whether windows of an evaluation overlap with those of the training."""

import math

import pytest
import torch

from fieldwatch.run.loop_checks.seen_samples import SeenSamples
from fieldwatch.run.loop_checks.seen_windows import SeenWindows

GENERATOR = torch.Generator().manual_seed(11)
WALK = torch.randn(3000, 3, generator=GENERATOR).cumsum(0)
"""A series of 3,000 steps with three channels."""


def windows(layout, stride=1, length=24):
    """Windows of the series, ``[n, steps]``, ``[n, steps, channels]`` or ``[n, channels, steps]``."""
    cut = WALK.unfold(0, length, stride)
    return {"steps": cut[:, 0], "steps, channels": cut.mT, "channels, steps": cut}[layout]


def share(training, others):
    """The share of other windows that overlap with those of the training; NaN if there is nothing to compare."""
    seen = SeenWindows()
    for batch in training:
        seen.note(batch)
    found = seen.share(others)
    return float("nan") if found is None else found.item()


def dealt(data):
    """Windows dealt at random: those of the training in batches, and 100 others."""
    order = torch.randperm(len(data), generator=GENERATOR)
    return data[order[100:]].split(32), data[order[:100]]


@pytest.mark.parametrize("layout", ["steps", "steps, channels", "channels, steps"])
def test_windows_dealt_at_random_overlap(layout):
    training, others = dealt(windows(layout))
    assert share(training, others) > 0.8


@pytest.mark.parametrize(("stride", "length"), [(5, 40), (32, 128), (25, 100)])
def test_so_do_windows_at_greater_distances(stride, length):
    series = torch.randn(400 * stride + length, generator=GENERATOR)
    training, others = dealt(series.unfold(0, length, stride))
    assert share(training[:9], others) > 0.4


def test_later_windows_do_not():
    data = windows("steps, channels")
    assert share(data[:1500].split(32), data[1500:]) < 0.1


def test_values_at_the_same_place_of_many_samples_are_no_overlap():
    """Each of the eight people has features, which stand beside what is measured anew."""
    people = torch.randn(8, 20, generator=GENERATOR)
    samples = torch.cat([people.repeat(50, 1), torch.randn(400, 6, generator=GENERATOR)], dim=1)
    assert share(samples[:300].split(30), samples[300:]) == 0


def test_constant_stretches_and_codes_are_no_overlap():
    codes = torch.randint(2, (400, 30), generator=GENERATOR).float()
    assert share(codes[:300].split(30), codes[300:]) == 0


def test_few_windows_and_tokens_are_not_compared():
    data = windows("steps")
    assert math.isnan(share([data[:128]], data[128:]))
    tokens = torch.randint(100, (400, 30), generator=GENERATOR)
    assert math.isnan(share(tokens.split(30), tokens))


def test_a_restored_copy_finds_the_same_and_is_part_of_the_samples():
    training, others = dealt(windows("steps"))
    samples = SeenSamples()
    for batch in training:
        samples.note(batch)
    copy = SeenSamples()
    copy.load_state_dict(samples.state_dict())
    first, second = samples.share(others), copy.share(others)
    assert first is not None
    assert second is not None
    assert first.item() == second.item() > 0.8
