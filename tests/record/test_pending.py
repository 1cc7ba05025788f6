import numpy as np
import pytest

from fieldwatch.record.pending import LONGEST_WAIT, MOST_ROWS, PendingBlocks


@pytest.fixture
def clock():
    """Return a clock that is set by hand."""

    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    return Clock()


def test_rows_wait_from_the_first_one_on(make_block, clock):
    pending = PendingBlocks(clock)
    assert pending.wait() is None
    pending.add([make_block(0, 3)])
    clock.now += 0.1
    pending.add([make_block(3, 5)])
    assert pending.wait() == pytest.approx(LONGEST_WAIT - 0.1)
    clock.now += LONGEST_WAIT
    assert pending.wait() == 0
    assert pending.last_step == 4
    pending.take()
    assert (pending.wait(), pending.last_step) == (None, -1)


def test_many_rows_do_not_wait(make_block, clock):
    pending = PendingBlocks(clock)
    for first in range(0, MOST_ROWS, 64):
        assert pending.wait() != 0
        pending.add([make_block(first, first + 64)])
    assert pending.wait() == 0


def test_consecutive_blocks_of_one_layout_become_one(make_block, clock):
    pending = PendingBlocks(clock)
    other = ("Loss/total",)
    blocks = [make_block(0, 3), make_block(3, 8), make_block(8, 9, other), make_block(9, 12), make_block(12, 13)]
    pending.add(blocks[:2])
    pending.add(blocks[2:])
    taken = pending.take()
    assert [(block.columns, len(block)) for block in taken] == [
        (blocks[0].columns, 8),
        (other, 1),
        (blocks[0].columns, 4),
    ]
    rows = [row for block in blocks for row in block.rows()]
    assert [row for block in taken for row in block.rows()] == rows
    assert np.array_equal(taken[0].positions, np.arange(8))


def test_epochs_and_samples_are_kept_apart(make_block, clock):
    pending = PendingBlocks(clock)
    named = make_block(2, 4)
    object.__setattr__(named, "samples", (("a",), ("b", "c")))
    more = make_block(4, 5)
    object.__setattr__(more, "samples", (("d",),))
    pending.add([make_block(0, 2), named, more, make_block(4, 5, axis="epoch", positions=[1])])
    assert [(block.axis, block.samples) for block in pending.take()] == [
        ("step", ()),
        ("step", (("a",), ("b", "c"), ("d",))),
        ("epoch", ()),
    ]
