"""Shuffled epochs: every sample once per epoch, and exact resumption anywhere."""

from itertools import chain, islice

import pytest
import torch

from fieldwatch.checkpoint import CheckpointError, Checkpoints, Shuffled


def taken(shuffled, count):
    return [batch.tolist() for batch in islice(shuffled, count)]


@pytest.mark.parametrize(("drop_last", "per_epoch", "seen"), [(False, 4, 10), (True, 3, 9)])
def test_an_epoch_shows_every_sample_once(drop_last, per_epoch, seen):
    shuffled = Shuffled(10, 3, seed=1, drop_last=drop_last)
    assert shuffled.batches_per_epoch == per_epoch
    epochs = [list(chain.from_iterable(taken(shuffled, per_epoch))) for _ in range(3)]
    assert shuffled.epoch == 2
    assert all(len(epoch) == len(set(epoch)) == seen for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_seed_fixes_the_order_whatever_torch_draws():
    torch.manual_seed(0)
    one = taken(Shuffled(10, 3, seed=1), 9)
    torch.rand(7)
    assert taken(Shuffled(10, 3, seed=1), 9) == one
    assert taken(Shuffled(10, 3, seed=2), 9) != one


@pytest.mark.parametrize("drop_last", [False, True])
def test_it_goes_on_bit_for_bit_wherever_it_was_stopped(tmp_path, drop_last):
    for stop in range(10):
        whole = taken(Shuffled(10, 3, seed=4, drop_last=drop_last), 20)
        first = Shuffled(10, 3, seed=4, drop_last=drop_last)
        assert taken(first, stop) == whole[:stop]
        Checkpoints(tmp_path / str(stop)).save(stop, {"rays": first})
        second = Shuffled(10, 3, seed=99, drop_last=drop_last)
        Checkpoints(tmp_path / str(stop)).restore({"rays": second})
        assert second.epoch == first.epoch
        assert taken(second, 20 - stop) == whole[stop:]


def test_a_batch_belongs_to_whoever_drew_it():
    shuffled = Shuffled(4, 4, seed=1)
    state = shuffled.state_dict()["order"].clone()
    next(shuffled).zero_()
    assert torch.equal(shuffled.state_dict()["order"], state)


def test_as_a_batch_sampler_it_feeds_a_loader():
    loader = torch.utils.data.DataLoader(list(range(5)), batch_sampler=Shuffled(5, 2, seed=0))
    assert sorted(torch.cat(list(islice(loader, 3))).tolist()) == [0, 1, 2, 3, 4]


def test_another_length_is_refused():
    state = Shuffled(10, 3).state_dict()
    with pytest.raises(CheckpointError, match=r"is \(11, 3, False\).*with \(10, 3, False\)"):
        Shuffled(11, 3).load_state_dict(state)


@pytest.mark.parametrize(
    ("length", "batch", "drop_last", "wanted"),
    [
        (0, 1, False, "both must be 1 or more"),
        (3, 0, False, "both must be"),
        (3, 4, True, "has no complete batch: lower"),
    ],
)
def test_impossible_sizes_are_refused(length, batch, drop_last, wanted):
    with pytest.raises(ValueError, match=wanted):
        Shuffled(length, batch, drop_last=drop_last)
