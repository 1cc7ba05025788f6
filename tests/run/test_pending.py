import numpy as np
import pytest

from fieldwatch.record import Block
from fieldwatch.run.pending import LONGEST_WAIT, MOST_ROWS, PendingBlocks


def rows_of(first, last, columns=("Loss/total", "Loss/component_pixel"), *, axis="step", samples=()):
    """Return a block of rows ``first`` to ``last`` (exclusive) with value = step + 0.25 * column."""
    steps = np.arange(first, last)
    return Block(
        axis=axis,
        columns=columns,
        steps=steps,
        seconds=steps * 0.5,
        positions=steps,
        values=np.add.outer(steps * 1.0, 0.25 * np.arange(len(columns))),
        samples=samples,
    )


@pytest.fixture
def clock():
    """Return a clock that is set by hand."""

    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    return Clock()


def test_rows_wait_from_the_first_one_on(clock):
    pending = PendingBlocks(clock)
    assert pending.wait() is None
    pending.add([rows_of(0, 3)])
    clock.now += 0.1
    pending.add([rows_of(3, 5)])
    assert pending.wait() == pytest.approx(LONGEST_WAIT - 0.1)
    clock.now += LONGEST_WAIT
    assert pending.wait() == 0
    assert pending.last_step == 4
    pending.take()
    assert (pending.wait(), pending.last_step) == (None, -1)


def test_many_rows_do_not_wait(clock):
    pending = PendingBlocks(clock)
    for first in range(0, MOST_ROWS, 64):
        assert pending.wait() != 0
        pending.add([rows_of(first, first + 64)])
    assert pending.wait() == 0


def test_consecutive_blocks_of_one_layout_become_one(clock):
    pending = PendingBlocks(clock)
    other = ("Loss/total",)
    blocks = [rows_of(0, 3), rows_of(3, 8), rows_of(8, 9, other), rows_of(9, 12), rows_of(12, 13)]
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


def test_epochs_and_samples_are_kept_apart(clock):
    pending = PendingBlocks(clock)
    named = rows_of(2, 4, samples=(("a",), ("b", "c")))
    more = rows_of(4, 5, samples=(("d",),))
    pending.add([rows_of(0, 2), named, more, rows_of(4, 5, axis="epoch")])
    assert [(block.axis, block.samples) for block in pending.take()] == [
        ("step", ()),
        ("step", (("a",), ("b", "c"), ("d",))),
        ("epoch", ()),
    ]
