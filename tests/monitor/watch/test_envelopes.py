"""The summary of a record: outliers are kept, and its size is fixed."""

import numpy as np
import pytest

from fieldwatch.monitor.watch.envelopes import BUCKETS, Envelopes
from fieldwatch.record import Block


def block(steps, **columns):
    steps = np.asarray(steps)
    values = np.stack([np.broadcast_to(column, len(steps)).astype(float) for column in columns.values()], axis=1)
    return Block(axis="step", columns=tuple(columns), steps=steps, seconds=steps * 1.0, positions=steps, values=values)


@pytest.mark.parametrize("count", [1, 5, BUCKETS, BUCKETS + 1, 70_000])
@pytest.mark.parametrize("piece", [1000, 4096])
def test_least_and_greatest_are_those_of_all_rows(count, piece):
    values = np.random.default_rng(1).normal(size=count)
    bands = Envelopes()
    for first in range(0, count, piece):
        steps = np.arange(first, min(count, first + piece))
        bands.extend(block(steps, loss=values[steps]))
    low, high, bad = bands.trend("loss")
    assert len(low) <= BUCKETS
    assert np.nanmin(low) == values.min()
    assert np.nanmax(high) == values.max()
    assert not bad.any()
    assert bands.last("loss") == (count - 1, values[-1])
    assert bands.total("loss") == pytest.approx(values.sum())
    assert bands.rows == count


def test_a_single_odd_step_of_a_long_run_stands_in_its_stretch():
    bands = Envelopes()
    for first in range(0, 100_000, 5000):
        steps = np.arange(first, first + 5000)
        bands.extend(block(steps, loss=np.where(steps == 70_001, 1e6, np.where(steps == 40_000, np.nan, 1.0))))
    low, high, bad = bands.trend("loss")
    width = 100_000 / len(low)
    assert np.flatnonzero(high > 1).tolist() == [pytest.approx(70_001 / width, abs=1.5)]
    assert np.flatnonzero(bad == 1).tolist() == [pytest.approx(40_000 / width, abs=1.5)]
    assert np.nanmax(low) == 1


def test_metrics_that_come_later_and_rarely_lie_at_their_steps():
    bands = Envelopes()
    bands.extend(block(range(100), loss=1.0))
    bands.extend(block(range(100, 200), loss=1.0, clip=2.0))
    for number in range(50):
        bands.extend(block([200 + number], **{f"late_{number}": 3.0}))
    assert np.flatnonzero(np.isfinite(bands.trend("clip")[0])).tolist() == list(range(100, 200))
    assert np.flatnonzero(np.isfinite(bands.trend("late_49")[0])).size == 1
    assert len(bands.trend("loss")[0]) == len(bands.trend("clip")[0])


def test_going_back_voids_what_came_after():
    bands = Envelopes()
    bands.extend(block(range(200), loss=np.arange(200.0)))
    bands.discard(120, {"loss": (119, 119.0)})
    assert np.nanmax(bands.trend("loss")[1]) == 119
    bands.extend(block(range(120, 130), loss=5.0))
    assert bands.trend("loss")[0][120:].tolist() == [5.0] * 10
    assert bands.last("loss") == (129, 5.0)
    bands.discard(0, {})
    assert bands.step == -1
    assert bands.trend("loss").shape[1] == 0


def test_rows_in_disorder_are_taken_in():
    bands = Envelopes()
    bands.extend(block([5, 3, 4, 3], loss=[5.0, 1.0, 4.0, 9.0]))
    assert bands.trend("loss")[:2].tolist() == [[1, 4, 5], [9, 4, 5]]


def test_what_was_never_recorded_is_empty():
    bands = Envelopes()
    assert (bands.last("x"), bands.total("x"), bands.trend("x").shape) == (None, 0.0, (3, 0))
