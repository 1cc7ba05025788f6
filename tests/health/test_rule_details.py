"""Details of the rules: what they measure, what they excuse, and no findings for healthy runs."""

import numpy as np
import pytest

from fieldwatch.health.rules import finite, gradients, losses, parameters, samples
from fieldwatch.health.window import excused, first_sustained, on_steps, trailing_count, trailing_mean

STEPS = np.arange(4096)
EVAL = {"stride": 50, "axis": "epoch"}


def views(rng, count=4000, noise=None):
    """Losses of 40 views that differ by large factors; all decrease slowly, with noise."""
    who = rng.integers(0, 40, count)
    wobble = 1 + 0.03 * rng.standard_normal(count) if noise is None else noise
    return rng.lognormal(0, 0.7, 40)[who] * np.exp(-np.arange(count) / 3000) * wobble, [f"view_{i}" for i in who]


def test_a_spike_on_one_view_is_missed_by_a_global_window_and_found_by_ours(make, rng):
    """+50 % on one visit: far below 6 sigma of the last 128 losses, and the only finding in 4000 steps."""
    values, names = views(rng)
    at = 2500
    healthy = samples.SampleSpike()(make(({"Loss/total": values}, {"samples": names})))
    values[at] *= 1.5
    before = values[at - 128 : at]
    assert (values[at] - before.mean()) / before.std() < 3
    found = samples.SampleSpike()(make(({"Loss/total": values}, {"samples": names})))
    assert healthy == ()
    assert [(finding.step, finding.subject) for finding in found] == [(at, names[at])]


def test_a_spike_that_triples_a_view_is_a_warning(make, rng):
    values, names = views(rng)
    values[2500] *= 4
    found = samples.SampleSpike()(make(({"Loss/total": values}, {"samples": names})))
    assert [finding.severity for finding in found] == ["warning"]


def test_updates_that_are_too_small(make):
    ratio = np.full(600, 1e-10)
    rate = np.where(np.arange(600) < 50, 1.0, 1e-6)
    found = gradients.UpdateRatio()(make({"Gradients/update_ratio_sdf": ratio}))
    assert ["too small" in finding.message for finding in found] == [True]
    decayed = make({"Gradients/update_ratio_sdf": ratio, "LearningRate/sdf": rate})
    assert gradients.UpdateRatio()(decayed) == ()


def test_a_group_whose_gradient_is_no_longer_recorded(make):
    history = make({"Loss/total": np.ones(600)}, {"Gradients/pose_norm": np.ones(300)})
    found = gradients.DeadGroup()(history)
    assert [(finding.subject, finding.step) for finding in found] == [("pose", 499)]
    assert "until step 299" in found[0].message


def test_a_standstill_of_refused_updates_is_an_error(make):
    found = finite.RefusedUpdates()(make({"Guard/refused": (np.arange(100) >= 10) * 1.0}))
    assert [(finding.severity, finding.step) for finding in found] == [("warning", 13), ("error", 19)]


def test_a_weight_that_was_raised_explains_a_jump(make):
    raised = np.where(np.arange(600) < 300, 1.0, 5.0)
    assert losses.LossJump()(make({"Loss/total": raised})) != ()
    assert losses.LossJump()(make({"Loss/total": raised, "Loss/weight_normal": raised})) == ()


def test_a_view_that_is_always_hard_is_no_spike(make):
    """One view of 30 has 20 times the loss of the others: a spike only if samples have no names."""
    who = np.arange(900) % 30
    columns, names = {"Loss/total": np.where(who == 7, 20.0, 1.0)}, [f"view_{i}" for i in who]
    assert losses.LossSpike()(make(columns)) != ()
    assert losses.LossSpike()(make((columns, {"samples": names}))) == ()


def test_unchanged_parameters_without_gradient_are_frozen_on_purpose(make):
    still = {"Parameters/head_mean": np.full(9, 0.1), "Parameters/head_std": np.full(9, 0.2)}
    for norms in ({}, {"Gradients/head_norm": np.zeros(600)}):
        assert parameters.UnchangedParameters()(make({"Loss/total": np.ones(600)} | norms, (still, EVAL))) == ()


def test_nan_never_enters_a_baseline(make):
    """A single NaN must not disable the rule for the length of its window."""
    values = np.ones(600)
    values[280], values[300] = np.nan, 20.0
    assert [finding.step for finding in losses.LossSpike()(make({"Loss/total": values}))] == [300]
    means = trailing_mean(values, 64, least=8)
    assert np.isfinite(means[8:]).all()
    assert means[290] == pytest.approx(1.0)


@pytest.mark.parametrize("lag", [0, 5])
@pytest.mark.parametrize("spoilt", [False, True])
def test_the_moving_mean_is_the_mean_of_what_came_before(rng, lag, spoilt):
    values = rng.standard_normal(50)
    if spoilt:
        values[20] = np.inf
    means = trailing_mean(values, 10, least=4, lag=lag)
    for i in range(50):
        before = values[max(0, i - lag - 10) : max(0, i - lag)]
        before = before[np.isfinite(before)]
        expected = before.mean() if len(before) >= 4 else np.nan
        assert means[i] == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("mask", "patience", "warmup", "expected"),
    [
        ("0110111", 3, 0, 6),
        ("0110111", 2, 0, 2),
        ("1110111", 2, 2, 5),
        ("1111111", 1, 4, 4),
        ("0110110", 3, 0, None),
        ("", 1, 0, None),
    ],
)
def test_the_first_place_where_a_condition_had_held(mask, patience, warmup, expected):
    assert first_sustained(np.array([c == "1" for c in mask], np.bool_), patience=patience, warmup=warmup) == expected


def test_counts_of_the_last_recordings():
    assert trailing_count(np.array([True, False, True, True, True]), 3).tolist() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("count", range(12))
def test_trailing_counts_are_right_for_windows_of_any_length(count):
    mask = np.arange(count) % 3 != 1
    for width in range(1, 15):
        wanted = [int(mask[max(0, i - width + 1) : i + 1].sum()) for i in range(count)]
        assert trailing_count(mask, width).tolist() == wanted


def test_values_at_the_steps_of_another_metric(make):
    history = make({"a": np.arange(6.0)}, ({"b": [10, 20, 30]}, {"stride": 2}))
    assert on_steps(history["b"], history["a"].steps).tolist() == pytest.approx(
        [10, np.nan, 20, np.nan, 30, np.nan], nan_ok=True
    )


def test_an_event_excuses_the_steps_after_it(make):
    history = make({"a": np.zeros(9)}, events=[{"kind": "reset", "step": 3}])
    assert excused(history, ["reset", "other"], history["a"].steps, 2).nonzero()[0].tolist() == [3, 4, 5]
