"""Learning rate notation, against values of the original's log."""

import itertools
import math

import pytest

from fieldwatch.recon.pipelines.video.schedule import Schedule, parse_schedule


def test_the_default_to_the_digits_of_the_log():
    schedule = parse_schedule("cosine_0.1_1_0.1")
    rate = lambda epoch, step, steps=173, epochs=300: 1e-3 * schedule.factor((epoch + step / steps) / epochs)  # noqa: E731
    assert f"{rate(0, 0):.2e}" == "1.00e-04"
    assert f"{rate(30, 0):.2e}" == "1.00e-03"
    assert f"{rate(299, 172):.2e}" == "1.13e-12"
    assert rate(15, 0) == pytest.approx(5.5e-4)
    assert rate(165, 0) == pytest.approx(5e-4)


def test_the_cosine_ends_at_zero_whatever_its_third_number():
    assert parse_schedule("cosine_0.2_2_0.5").factor(1.0) == pytest.approx(0, abs=1e-12)
    assert parse_schedule("cosine_0.2_2_0.5").factor(0.1) == pytest.approx(0.5 + 0.5 * 0.25)


def test_no_warm_up():
    assert parse_schedule("cosine_0_1_0.1").factor(0.0) == 1
    assert parse_schedule("cosine_0_1_0.1").factor(0.25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_hybrid_by_hand():
    schedule = parse_schedule("hybrid_0.2_2_0.5_0.1_0.05")
    assert schedule.factor(0.0) == pytest.approx(0.1)
    assert schedule.factor(0.1) == pytest.approx(0.1 + 0.9 * 0.25)
    assert schedule.factor(0.2) == pytest.approx(1)
    assert schedule.factor(0.4) == pytest.approx(1 - 0.95 * math.sqrt(0.25))
    assert schedule.factor(1.0) == pytest.approx(0.05)


def test_it_is_continuous_and_bounded():
    for text in ("cosine_0.1_1_0.1", "hybrid_0.3_2_3_0.01_0.1"):
        values = [parse_schedule(text).factor(i / 2000) for i in range(2001)]
        assert max(abs(a - b) for a, b in itertools.pairwise(values)) < 0.01
        assert min(values) >= 0
        assert max(values) <= 1


@pytest.mark.parametrize(
    "text", ["", "cosine", "cosine_0.1_1", "cosine_0.1_1_0.1_3", "hybrid_0.1_1_0.1", "step_10_0.1_1", "cosine_a_b_c"]
)
def test_other_notations_are_refused(text):
    with pytest.raises(ValueError, match=r"--lr-type must be cosine_<up>_<pow>_<min> or hybrid_<up>_.*, got "):
        parse_schedule(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosine_1_1_0.1", "warm-up fraction must be at least 0 and less than 1, got 1.0"),
        ("cosine_-0.1_1_0.1", "warm-up fraction must .* got -0.1"),
        ("cosine_nan_1_0.1", "warm-up fraction must .* got nan"),
        ("cosine_0.1_0_0.1", "up_power must be finite and greater than 0, got 0.0"),
        ("hybrid_0.1_1_inf_0.1_0", "down_power must be finite and greater than 0, got inf"),
        ("cosine_0.1_1_2", r"start scales the peak and must be in \[0, 1\], got 2.0"),
        ("hybrid_0.1_1_1_0.1_-1", r"final scales the peak and must be in \[0, 1\], got -1.0"),
    ],
)
def test_bounds(text, message):
    with pytest.raises(ValueError, match=message):
        parse_schedule(text)


def test_progress_outside_is_refused():
    for progress in (-0.01, 1.01, math.nan):
        with pytest.raises(ValueError, match=rf"progress .*\[0, 1\], got {progress}"):
            Schedule(shape="cosine").factor(progress)
