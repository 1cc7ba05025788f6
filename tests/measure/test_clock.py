import itertools

import pytest

from fieldwatch.measure import Clock


def test_batches_come_again_and_again_and_may_be_none():
    taken = list(itertools.islice(Clock().timed([1, None, 3]), 7))
    assert taken == [1, None, 3, 1, None, 3, 1]


def test_the_wait_for_a_batch_is_measured():
    clock = Clock()
    next(clock.timed([1]))
    assert clock.take()["Time/data"] >= 0
    assert clock.take() == {}


def test_spans_of_one_name_add_up():
    clock = Clock()
    clock.add("render", 2.0)
    clock.add("render", 3.0)
    assert clock.take() == {"Time/render": 5.0}


def test_nothing_to_iterate_over_is_an_error():
    with pytest.raises(ValueError, match="was given nothing to iterate over"):
        next(Clock().timed([]))
