import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwatch.report.memory import trend_of
from fieldwatch.report.memory.trend import startup, verdict_of

STEPS = 50 * np.arange(400, dtype=np.int64)


def test_a_line_has_its_slope():
    trend = trend_of(STEPS, 8000 + 0.02 * STEPS)
    assert (trend.per_1000, trend.low, trend.high) == pytest.approx((20, 20, 20))
    assert trend.sign == 1


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_the_interval_holds_the_true_slope_as_often_as_it_says(memory):
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        noise = np.zeros(400)
        shocks = rng.normal(0, 5, 400)
        for i in range(1, 400):
            noise[i] = memory * noise[i - 1] + shocks[i]
        trend = trend_of(STEPS, 8000 + 0.001 * STEPS + noise)
        held += trend.low <= 1 <= trend.high
    assert 0.91 <= held / 300 <= 1  # 95 % but for chance (binomial, 3 sigma)


def test_spikes_do_not_move_the_slope():
    values = 8000 + 0.02 * STEPS
    values[::17] += 5000
    assert trend_of(STEPS, values).per_1000 == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize("at", [40, 200, 360])
def test_a_single_step_is_no_slope(at):
    values = np.where(np.arange(400) < at, 8000.0, 9000.0)
    trend = trend_of(STEPS, values)
    assert trend.sign == 0
    assert verdict_of(STEPS, values, trend, 40.0) in {"in steps", "steady"}


def test_two_points_are_not_a_trend():
    assert trend_of(STEPS[:2], np.array([8000.0, 9000.0])) is None
    assert trend_of(STEPS[:5], np.arange(5.0)) is None
    assert verdict_of(STEPS[:2], np.array([8000.0, 9000.0]), None, 1.0) == "too short"
    assert trend_of(STEPS[:6], np.arange(6.0)).sign == 1


def test_unknown_values_are_left_out():
    values = 0.02 * STEPS
    values[3] = np.nan
    values[7] = np.inf
    assert trend_of(STEPS, values).per_1000 == pytest.approx(20, rel=0.05)


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=60))
def test_the_slope_lies_in_its_interval(values):
    trend = trend_of(STEPS[: len(values)], np.array(values))
    assert trend.low <= trend.per_1000 <= trend.high


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (np.full(400, 8000.0), "steady"),
        (np.linspace(8000, 9000, 400), "rising"),
        (np.linspace(9000, 8000, 400), "falling"),
        (np.linspace(8000, 8010, 400), "steady"),
        (np.where(np.arange(400) < 200, 8000.0, 9000.0), "in steps"),
        (8000 + 1000 * np.clip((np.arange(400) - 250) / 100, 0, 1), "uneven"),
    ],
)
def test_verdicts(values, verdict):
    assert verdict_of(STEPS, values, trend_of(STEPS, values), 40.0) == verdict


def test_what_comes_before_the_optimizer_is_start_up():
    allocated = np.full(400, 8000.0)
    optimizer = np.full(400, 900.0)
    optimizer[:3] = 0
    assert startup(allocated, optimizer) == 3
    assert startup(allocated, None) == 0
    allocated[:2] = 6000
    assert startup(allocated, None) == 2
    assert startup(allocated[:8], None) == 0
