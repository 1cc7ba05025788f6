"""How far the arguments of a module in evaluations are from those of the training."""

import pytest
import torch

from fieldwatch.run.loop_checks.input_samples import SeenInputs, sampled

GENERATOR = torch.Generator().manual_seed(3)
FEATURES = torch.randn(64, 5, generator=GENERATOR)


def seen(*batches):
    inputs = SeenInputs()
    for batch in batches:
        inputs.note(sampled(batch))
    return inputs


def tokens(high=20):
    return torch.randint(high, (64, 12), generator=GENERATOR)


def test_times_of_another_unit_are_far_away():
    times = torch.rand(64, 1, generator=GENERATOR)
    inputs = seen(*([FEATURES, 1000 * times] for _ in range(8)))
    assert inputs.shift(sampled([FEATURES, 1000 * times])) < 1.5
    # A batch of equal times from anywhere in the range is no other unit.
    assert inputs.shift(sampled([FEATURES, torch.full((64, 1), 10.0)])) < 2
    assert seen([FEATURES, times]).shift(sampled([FEATURES, 1000 * times])) > 100


def test_tokens_of_another_vocabulary_are_far_away():
    inputs = seen(*([tokens()] for _ in range(8)))
    assert inputs.shift(sampled([tokens()])) < 1
    assert inputs.shift(sampled([tokens() + 15])) > 5


def test_a_sequence_that_has_just_begun_is_not_compared():
    assert seen([FEATURES, tokens()]).shift(sampled([FEATURES, torch.full((64, 1), 19)])) is None


def test_the_first_argument_of_numbers_has_measures_of_its_own():
    assert seen([FEATURES]).shift(sampled([100 * FEATURES])) is None


def test_a_restored_copy_measures_the_same():
    inputs = seen([FEATURES, FEATURES[:, :1], tokens()], [FEATURES, FEATURES[:, 1:2], tokens()])
    copy = SeenInputs()
    copy.load_state_dict(inputs.state_dict())
    for batch in ([FEATURES, 7 * FEATURES[:, :1], tokens()], [FEATURES, FEATURES[:, :1], tokens() + 4]):
        first, second = inputs.shift(sampled(batch)), copy.shift(sampled(batch))
        assert first is not None
        assert second is not None
        assert second.item() == pytest.approx(first.item())
