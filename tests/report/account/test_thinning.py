"""Thinning keeps spikes of a single step, extremes and gaps, and shares the points fairly among the series."""

import numpy as np
import pytest

from fieldwatch.record import TOOLKIT, Series
from fieldwatch.report.account import chosen_points, fair_shares
from fieldwatch.report.account.series import one_series


def series_of(values):
    steps = np.arange(len(values), dtype=float)
    return Series(steps=steps, seconds=steps, positions=steps, values=np.asarray(values, float))


@pytest.mark.parametrize("seed", range(30))
def test_every_planted_spike_is_there_at_its_own_step_with_its_value(seed):
    random = np.random.default_rng(seed)
    count = int(random.integers(2_000, 60_000))
    most = int(random.integers(400, 1_500))
    base = random.normal(0, 0.05, count) + 3 * np.sin(np.arange(count) / random.uniform(50, 5_000))
    spikes = random.choice(np.arange(0, count, 3), size=int(random.integers(1, most // 5)), replace=False)
    values = base.copy()
    values[spikes] += random.choice([-1, 1], len(spikes)) * random.uniform(2, 1e6, len(spikes))
    told = one_series(series_of(values), None, most)
    points = dict(zip(told["x"], told["y"], strict=True))
    assert len(points) <= most
    assert {int(at) for at in spikes} <= points.keys()
    for at in spikes.tolist():
        assert points[at] == pytest.approx(values[at], rel=5e-6)


@pytest.mark.parametrize("seed", range(10))
def test_every_bucket_keeps_its_extremes_and_the_ends_stay(seed):
    random = np.random.default_rng(seed)
    values = np.cumsum(random.normal(size=10_000))
    kept = chosen_points(values, 600)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert (np.diff(kept) > 0).all()
    length = -(-len(values) // ((600 - 150 - 2) // 2))
    for start in range(0, len(values), length):
        part = values[start : start + length]
        mine = values[kept[(kept >= start) & (kept < start + length)]]
        assert mine.min() == part.min()
        assert mine.max() == part.max()


def test_a_long_series_gives_the_same_spikes_as_looking_at_all_of_it():
    random = np.random.default_rng(3)
    values = random.normal(size=400_000)
    height = np.maximum(
        values[1:-1] - np.maximum(values[:-2], values[2:]), np.minimum(values[:-2], values[2:]) - values[1:-1]
    )
    tallest = 1 + np.argsort(height)[-100:]
    assert set(tallest.tolist()) <= set(chosen_points(values, 400).tolist())


def test_a_series_of_equal_values_is_thinned_too():
    assert len(chosen_points(np.zeros(100_000), 300)) <= 300


def test_what_fits_stays_whole():
    told = one_series(series_of([3.0, 1.0, 2.0]), None, 16)
    assert told["x"] == [0, 1, 2]
    assert told["y"] == [3.0, 1.0, 2.0]
    assert not told["thinned"]
    assert (told["min"], told["max"], told["last"]) == ([1.0, 1], [3.0, 0], 2.0)


def test_values_that_are_not_finite_leave_a_gap_and_are_listed():
    values = np.ones(50_000)
    values[[7, 123, 40_000]] = np.nan, np.inf, -np.inf
    told = one_series(series_of(values), None, 400)
    assert told["bad"] == [7, 123, 40_000]
    assert told["bad_count"] == 3
    points = dict(zip(told["x"], told["y"], strict=True))
    assert points[7] is None
    assert points[40_000] is None


def test_a_long_stretch_of_nan_is_counted_where_it_cannot_be_listed():
    values = np.concatenate((np.ones(1_000), np.full(5_000, np.nan)))
    told = one_series(series_of(values), None, 200)
    assert len(told["bad"]) == 200
    assert (told["bad_count"], told["bad_first"], told["bad_last"], told["last"]) == (5_000, 1_000, 5_999, None)
    assert told["max"] == [1.0, 0]
    assert sum(value is None for value in told["y"]) > 20


def test_a_series_of_nan_alone_has_no_extremes():
    told = one_series(series_of([np.nan] * 5), None, 16)
    assert told["y"] == [None] * 5
    assert told["min"] == told["max"] == [None, None]


def test_what_a_metric_means_stands_beside_it():
    told = one_series(series_of([1.0, 2.0]), TOOLKIT.find("Time/forward"), 16)
    assert (told["unit"], told["better"]) == ("ms", "lower")
    assert "span" in told["meaning"]


def test_numbers_have_six_digits():
    told = one_series(series_of([1 / 3, 123_456_789.0, 1.5e-20]), None, 16)
    assert told["y"] == [0.333333, 123_457_000.0, 1.5e-20]


def test_short_series_leave_their_room_to_the_long_ones():
    assert fair_shares([10, 1_000, 1_000], 1_010, 4) == [10, 500, 500]
    assert fair_shares([5, 5], 1_000, 4) == [5, 5]
    assert fair_shares([], 1_000, 4) == []
    assert fair_shares([100] * 50, 10, 16) == [16] * 50
