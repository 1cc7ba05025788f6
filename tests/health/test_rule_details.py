"""What the rules measure, what they excuse, and that healthy runs stay silent."""

import numpy as np
import pytest

from fieldwatch import health
from fieldwatch.health import NORMALS, SPLATS, VIDEO, Examiner
from fieldwatch.health.window import excused, first_held, on_steps, trailing_count, trailing_mean

STEPS = np.arange(4096)
EVAL = {"stride": 50, "axis": "epoch"}


def views(rng, count=4000, noise=None):
    """Losses of 40 views that differ by factors; all fall slowly, each wobbles."""
    who = rng.integers(0, 40, count)
    wobble = 1 + 0.03 * rng.standard_normal(count) if noise is None else noise
    return rng.lognormal(0, 0.7, 40)[who] * np.exp(-np.arange(count) / 3000) * wobble, [f"view_{i}" for i in who]


def test_a_spike_on_one_view_is_missed_by_a_global_window_and_found_by_ours(make, rng):
    """+50 % on one visit: far below 6 sigma of the last 128 losses, and the only finding in 4000 steps."""
    losses, names = views(rng)
    at = 2500
    healthy = health.SampleSpike()(make(({"Loss/total": losses}, {"samples": names})))
    losses[at] *= 1.5
    before = losses[at - 128 : at]
    assert (losses[at] - before.mean()) / before.std() < 3
    found = health.SampleSpike()(make(({"Loss/total": losses}, {"samples": names})))
    assert healthy == ()
    assert [(finding.step, finding.subject) for finding in found] == [(at, names[at])]


def test_a_spike_that_triples_a_view_is_a_warning(make, rng):
    losses, names = views(rng)
    losses[2500] *= 4
    found = health.SampleSpike()(make(({"Loss/total": losses}, {"samples": names})))
    assert [finding.severity for finding in found] == ["warning"]


@pytest.mark.parametrize("kind", ["normal", "wide", "lognormal", "heavy tails"])
def test_noise_of_any_kind_is_no_warning(make, rng, kind):
    """Views that differ, with noise of 3 %, 15 %, 30 % and Student's t: nothing above a note in all rule sets."""
    draws = {
        "normal": 1 + 0.03 * rng.standard_normal(4000),
        "wide": np.abs(1 + 0.15 * rng.standard_normal(4000)),
        "lognormal": rng.lognormal(0, 0.3, 4000),
        "heavy tails": np.abs(1 + 0.05 * rng.standard_t(3, 4000)),
    }
    losses, names = views(rng, noise=draws[kind])
    history = make(({"Loss/total": losses}, {"samples": names}))
    found = Examiner((*VIDEO, *NORMALS, *SPLATS)).look(history)
    assert [finding for finding in found if finding.severity != "note"] == []
    assert len(found) <= 3


def test_a_healthy_run_with_everything_recorded_is_silent(make, rng):
    """A steep start, a term that begins at 1500, a learning rate that decays to 0, evaluations, memory, times."""
    wobble = 1 + 0.05 * rng.standard_normal(4096)
    fall = (0.2 + 0.8 * np.exp(-STEPS / 300)) * wobble
    late, rate = STEPS >= 1500, 1e-3 * np.cos(STEPS / 4096 * np.pi / 2) ** 4
    columns = {
        "Loss/total": 8 * fall + 2 * late,
        "Loss/component_rgb": fall,
        "Loss/weighted_rgb": 8 * fall,
        "Gradients/total_norm": 30 * fall,
        "Gradients/sdf_norm": 20 * fall,
        "Gradients/update_ratio_sdf": 2 * rate,
        "LearningRate/sdf": rate,
        "Guard/refused": (STEPS == 3) * 1.0,
        "Time/step": 40 * np.abs(wobble),
        "Time/data": 3 * np.abs(wobble),
        "samples_per_ray": 3 * np.abs(wobble),
        "occupied_frac": np.where(STEPS < 300, 1.0, 0.1),
    }
    term = {"Loss/component_clip": 0.2 * fall[late], "Loss/weighted_clip": fall[late] * 2}
    psnr = 30 - 18 * np.exp(-np.arange(80) / 10)
    epochs = {
        "Train/PSNR": psnr + 0.1 * rng.standard_normal(80),
        "Train/Loss/total_loss": np.exp(-np.arange(80) / 20),
        "Eval/Frame/train_psnr": psnr,
        "Eval/Frame/val_psnr": psnr - 2.5,
        "Eval/Gap/psnr_gap": np.full(80, 2.5),
        "Eval/Frame/val_clip_sim": np.where(np.arange(80) < 30, -0.02, 0.95),
        "Eval/Info/num_val_frames": np.full(80, 4.0),
        "Model/Params/clip_head_mean": np.where(np.arange(80) < 30, 0.1, 0.1 + 1e-3 * np.arange(80)),
        "Model/Params/clip_head_std": np.full(80, 0.02),
        "TensorProfiling/Tensor_Category/activations_MB": 900 + 90 * rng.standard_normal(80),
        "TensorProfiling/Tensor_Category/parameters_MB": np.full(80, 300.0),
        "TensorProfiling/fragmentation_percent": np.full(80, 24.0),
    }
    reference = {"Reference/mean_frame_psnr": [19.7]}
    parts = (columns, (term, {"first": 1500}), (epochs, EVAL), reference)
    history = make(*parts, windows={"rgb": (0, 9999), "clip": (1500, 9999)})
    assert Examiner((*VIDEO, *NORMALS, *SPLATS)).look(history) == [
        finding for finding in health.NonFinite()(history) if finding.severity == "note"
    ]


def test_updates_that_are_too_small(make):
    ratio = np.full(600, 1e-10)
    rate = np.where(np.arange(600) < 50, 1.0, 1e-6)
    found = health.UpdateRatio()(make({"Gradients/update_ratio_sdf": ratio}))
    assert ["too small" in finding.message for finding in found] == [True]
    decayed = make({"Gradients/update_ratio_sdf": ratio, "LearningRate/sdf": rate})
    assert health.UpdateRatio()(decayed) == ()


def test_a_group_whose_gradient_is_no_longer_recorded(make):
    history = make({"Loss/total": np.ones(600)}, {"Gradients/pose_norm": np.ones(300)})
    found = health.DeadGroup()(history)
    assert [(finding.subject, finding.step) for finding in found] == [("pose", 499)]
    assert "until step 299" in found[0].message


def test_a_standstill_of_refused_updates_is_an_error(make):
    found = health.RefusedUpdates()(make({"Guard/refused": (np.arange(100) >= 10) * 1.0}))
    assert [(finding.severity, finding.step) for finding in found] == [("warning", 13), ("error", 19)]


def test_semantics_no_better_than_the_mean_embedding_is_a_note(make):
    columns = {"Eval/Frame/val_clip_sim": np.full(9, 0.93), "Eval/Baseline/val_clip_sim_mean": np.full(9, 0.95)}
    found = health.PoorSemantics()(make((columns, EVAL)))
    assert [finding.severity for finding in found] == ["note"]
    assert "mean embedding (0.950)" in found[0].message


@pytest.mark.parametrize(("active", "expected"), [([0, 0, 0, 0, 0, 0], 0), ([0, 0, 1, 1, 1, 1], 1)])
def test_semantics_wait_for_the_clip_term(make, active, expected):
    columns = {"Eval/Frame/val_clip_sim": np.full(6, 0.1), "Train/clip_loss_active": np.array(active, float)}
    assert len(health.PoorSemantics()(make((columns, EVAL)))) == expected


def test_a_weight_that_was_raised_explains_a_jump(make):
    raised = np.where(np.arange(600) < 300, 1.0, 5.0)
    assert health.LossJump()(make({"Loss/total": raised})) != ()
    assert health.LossJump()(make({"Loss/total": raised, "Loss/weight_normal": raised})) == ()


def test_a_view_that_is_always_hard_is_no_spike(make):
    """One view of 30 has 20 times the loss of the others: a spike only for who does not know the views."""
    who = np.arange(900) % 30
    losses, names = np.where(who == 7, 20.0, 1.0), [f"view_{i}" for i in who]
    assert health.LossSpike()(make({"Loss/total": losses})) != ()
    assert health.LossSpike()(make(({"Loss/total": losses}, {"samples": names}))) == ()


def test_gradient_ratios_that_were_recorded_are_judged_too(make):
    ratio = {"Train/Gradients/rgb_to_clip_ratio": np.full(8, 0.02)}
    video = [rule for rule in VIDEO if rule.name == "GroupImbalance"]
    assert [finding.step for finding in video[0](make((ratio, EVAL)))] == [250]


def test_unchanged_parameters_without_gradient_are_frozen_on_purpose(make):
    still = {"Parameters/head_mean": np.full(9, 0.1), "Parameters/head_std": np.full(9, 0.2)}
    for gradients in ({}, {"Gradients/head_norm": np.zeros(600)}):
        assert health.UnchangedParameters()(make({"Loss/total": np.ones(600)} | gradients, (still, EVAL))) == ()


def test_nan_never_enters_a_baseline(make):
    """One NaN must not blind the rule for the window's length."""
    values = np.ones(600)
    values[280], values[300] = np.nan, 20.0
    assert [finding.step for finding in health.LossSpike()(make({"Loss/total": values}))] == [300]
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
    assert first_held(np.array([c == "1" for c in mask], np.bool_), patience=patience, warmup=warmup) == expected


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
