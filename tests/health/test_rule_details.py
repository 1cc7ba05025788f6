"""Details of the rules: what they measure, what they excuse, and no findings for healthy runs."""

import numpy as np
import pytest

from fieldwatch.health import outcomes, window
from fieldwatch.health.outcomes import held_out_metrics
from fieldwatch.health.rules import (
    finite,
    gradients,
    losses,
    parameters,
    progress,
    quality,
    rates,
    results,
    samples,
    terms,
    timing,
)
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
    columns = {"Loss/total": np.where(who == 7, 20.0, 1.0)}
    names = [f"view_{i}" for i in who]
    assert losses.LossSpike()(make(columns)) != ()
    assert losses.LossSpike()(make((columns, {"samples": names}))) == ()


def test_a_spike_below_the_first_losses_is_a_note(make):
    """What is lost for a few steps is less than what had been learned."""
    learned = np.where(np.arange(600) < 100, 5.0, 0.1)
    for height, severity in ((3.0, "note"), (8.0, "warning")):
        values = np.where(np.arange(600) == 300, height, learned)
        assert [found.severity for found in losses.LossSpike()(make({"Loss/total": values}))] == [severity]


def test_a_loss_of_noisy_targets_need_not_fall_if_evaluations_show_learning(make):
    loss = {"Loss/total": 0.69 * (1 + 0.01 * np.sin(np.arange(2000)))}
    better = ({"val/auc": np.array([0.6, 0.66, 0.68, 0.69])}, {"stride": 500})
    guess = ({"val/auc": np.array([0.5, 0.51, 0.49, 0.52])}, {"stride": 500})
    assert losses.LossNotDecreasing()(make((loss, {}), guess)) != ()
    assert losses.LossNotDecreasing()(make((loss, {}), better)) == ()


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("Eval/Gap/psnr_gap", "lower"),
        ("Eval/psnr", "higher"),
        ("Eval/ce", "lower"),
        ("Test/c_index", "higher"),
        ("Test/skill", "higher"),
        ("Eval/hit_rate_5", "higher"),
        ("Eval/queue", None),
    ],
)
def test_the_direction_of_a_metric_follows_from_its_name(name, better, make):
    assert outcomes.direction_of(name, make({"Loss/total": np.ones(8)})) == better


def test_a_gap_between_training_and_held_out_data_is_no_result(make):
    history = make({"Loss/total": np.ones(8)}, {"Eval/Gap/psnr_gap": np.arange(4.0), "Eval/psnr": np.arange(4.0)})
    assert outcomes.held_out_metrics(history) == {"Eval/psnr": "higher"}


@pytest.mark.parametrize(("ended", "steps", "over"), [(600, 600, True), (300, 600, False), (100, 100, False)])
def test_a_loop_that_ended_in_order_is_finished_unless_it_went_on(ended, steps, over, make):
    plan = {"kind": "plan", "step": 0, "steps": 1000}
    end = {"kind": "ended", "step": ended - 1, "steps": ended}
    assert window.finished(make({"Loss/total": np.ones(steps)}, events=[plan, end])) is over


def test_a_held_out_loss_that_gains_nothing_of_the_training_is_a_gap(make):
    plan = {"kind": "plan", "step": 0, "steps": 600}
    loss = {name: 2 * np.exp(-np.arange(600) / 150) + 0.4 for name in ("Loss/total", "Loss/component_nll")}
    for last, count in ((2.2, 1), (0.9, 0)):
        held_out = ({"Test/nll": np.array([2.4, 2.3, last, last])}, {"stride": 150})
        found = results.HeldOutGap()(make((loss, {}), held_out, events=[plan]))
        assert [finding.subject for finding in found] == ["Test/nll"] * count


def test_unchanged_parameters_without_gradient_are_frozen_on_purpose(make):
    still = {"Parameters/head_mean": np.full(9, 0.1), "Parameters/head_std": np.full(9, 0.2)}
    for norms in ({}, {"Gradients/head_norm": np.zeros(600)}):
        assert parameters.UnchangedParameters()(make({"Loss/total": np.ones(600)} | norms, (still, EVAL))) == ()


def test_nan_never_enters_a_baseline(make):
    """A single NaN must not disable the rule for the length of its window."""
    values = np.ones(600)
    values[280] = np.nan
    values[300] = 20.0
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


def test_a_schedule_that_ended_excuses_the_parameters_of_every_group(make):
    """An optimizer without named groups records LearningRate/0, whatever the watched group is called."""
    still = {"Parameters/head_mean": np.full(9, 0.1), "Parameters/head_std": np.full(9, 0.2)}
    columns = {"Gradients/head_norm": np.ones(600), "LearningRate/0": np.where(np.arange(600) < 50, 1e-3, 0.0)}
    assert parameters.UnchangedParameters()(make(columns, (still, EVAL))) == ()
    assert (
        parameters.UnchangedParameters()(make({**columns, "LearningRate/0": np.full(600, 1e-3)}, (still, EVAL))) != ()
    )


def test_summed_losses_of_a_game_need_not_decrease(make, rng):
    noise = 0.01 * rng.standard_normal(1200)
    swap = 0.3 * np.minimum(np.arange(1200) / 20, 1)
    terms = {"Loss/weighted_critic": 1.4 - swap + noise, "Loss/weighted_maker": 0.7 + swap - noise}
    game = {"Loss/total": terms["Loss/weighted_critic"] + terms["Loss/weighted_maker"], **terms}
    assert losses.LossNotDecreasing()(make(game)) == ()
    stuck = {name: np.full(1200, values.mean()) + noise for name, values in terms.items()}
    assert losses.LossNotDecreasing()(make({"Loss/total": np.full(1200, 2.1) + noise, **stuck})) != ()


def test_a_short_run_is_judged_after_half_of_its_plan(make, rng):
    values = 2.3 + 0.02 * rng.standard_normal(600)
    plan = [{"kind": "plan", "step": 0, "steps": 600}]
    assert [found.step for found in losses.LossNotDecreasing()(make({"Loss/total": values}, events=plan))] == [363]
    fallen = np.where(np.arange(600) < 4, 23.0, values)
    assert losses.LossNotDecreasing()(make({"Loss/total": fallen}, events=plan)) == ()


def test_losses_of_both_signs_have_no_ratio_to_a_mean(make, rng):
    values = 0.05 * np.sign(np.sin(2 * np.pi * np.arange(1200) / 96)) + 0.1 * rng.standard_normal(1200)
    values[900] = 20.0
    history = make({"Loss/total": values})
    for rule in (losses.LossSpike(), losses.LossJump(), losses.LossNotDecreasing(), losses.LossOscillating()):
        assert rule(history) == ()
    values[900:] = 500.0
    assert [found.severity for found in losses.LossJump()(make({"Loss/total": values}))] == ["error"]


def test_a_batch_far_above_a_loss_near_zero_is_no_spike(make, rng):
    values = np.exp(-np.arange(800) / 60) * np.exp(0.1 * rng.standard_normal(800))
    values[700] *= 40
    assert losses.LossSpike()(make({"Loss/total": values})) == ()
    values[700] = 0.5
    assert [found.step for found in losses.LossSpike()(make({"Loss/total": values}))] == [700]


def test_heavy_tails_are_no_spikes(make, rng):
    values = np.exp(1.4 * rng.standard_normal(4000))
    values[:64] = 1.0
    calm = 1 + 0.05 * rng.standard_normal(4000)
    calm[3000] = 30.0
    assert losses.LossSpike()(make({"Loss/total": values})) == ()
    assert [found.step for found in losses.LossSpike()(make({"Loss/total": calm}))] == [3000]


def test_a_group_that_hands_its_parameters_over_is_not_dead(make):
    frozen = {"Gradients/other_norm": np.ones(100)}
    unfrozen = ({"Gradients/backbone_norm": np.ones(500)}, {"first": 100})
    assert gradients.DeadGroup()(make({"Loss/total": np.ones(600)}, frozen, unfrozen)) == ()
    late = ({"Gradients/backbone_norm": np.ones(300)}, {"first": 300})
    assert [found.subject for found in gradients.DeadGroup()(make({"Loss/total": np.ones(600)}, frozen, late))] == [
        "other"
    ]


def test_gradients_that_vanish_because_the_fit_converged_are_a_note(make):
    norm = np.geomspace(1.0, 1e-9, 600)
    converged = make({"Gradients/total_norm": norm, "Loss/total": 0.2 + 0.8 * np.exp(-np.arange(600) / 30)})
    saturated = make({"Gradients/total_norm": np.full(600, 1e-9), "Loss/total": np.full(600, 2.3)})
    (note,) = gradients.GradientVanishing()(converged)
    (warning,) = gradients.GradientVanishing()(saturated)
    assert (note.severity, warning.severity) == ("note", "warning")
    # There is nothing to repair in a fit that has converged.
    assert "saturated" in warning.remedy
    assert "saturated" not in note.remedy


def test_gradients_that_vanish_on_the_way_to_the_first_layers(make):
    columns = {"Gradients/total_norm": np.ones(600), "Gradients/last_norm": np.ones(600)}
    first = {"Gradients/first_norm": np.full(600, 1e-10)}
    assert [found.subject for found in gradients.GradientVanishing()(make(columns | first))] == ["first"]
    assert gradients.GradientVanishing()(make(columns | {"Gradients/first_norm": np.full(600, 1e-3)})) == ()


def test_outliers_that_cost_little_time_are_the_machine(make):
    """One step in 25 took four times as long: 11 % of the time."""
    times = np.where(np.arange(600) % 25 == 24, 40.0, 10.0)
    assert timing.StepOutlier()(make({"Time/step": times})) == ()
    assert timing.StepOutlier()(make({"Time/step": np.where(times > 10, 240.0, 10.0)})) != ()


PLAN = {"kind": "plan", "step": 0, "steps": 600}


def test_a_disturbance_of_the_whole_run_is_no_sample_s_fault(make, rng):
    """All views rise at step 2500: no single one is to blame. The same spike right after a prune is the prune's."""
    values, names = views(rng)
    values[2500] *= 4
    alone = make(({"Loss/total": values}, {"samples": names}))
    pruned = make(({"Loss/total": values}, {"samples": names}), events=[{"kind": "prune", "step": 2495}])
    assert samples.SampleSpike()(alone) != ()
    assert samples.SampleSpike()(pruned) == ()
    values[2490:2520] *= 4
    together = samples.SampleSpike()(make(({"Loss/total": values}, {"samples": names})))
    # The first steps of a disturbance cannot be told from a spike of their samples.
    assert {finding.step for finding in together} <= {2490, 2491}


def test_a_regularizer_of_any_name_dominates_if_nothing_else_can_be_learned(make, rng):
    noise = 0.02 * rng.standard_normal(600)
    terms_by_name = {"Loss/weighted_policy": 0.1 + noise, "Loss/weighted_entropy": np.full(600, -13.8)}
    assert [found.subject for found in terms.TermDominates()(make(terms_by_name))] == ["entropy"]
    # A term that is large because it has not been learned yet is the data term.
    learned = {**terms_by_name, "Loss/weighted_entropy": 13.8 * np.exp(-np.arange(600) / 100)}
    assert terms.TermDominates()(make(learned)) == ()


def test_a_term_that_is_recorded_every_other_step_dominates_too(make):
    sparse = ({"Loss/weighted_between": np.full(300, 20.0)}, {"stride": 2})
    history = make({"Loss/weighted_pixel": np.ones(600)}, sparse, events=[PLAN])
    assert [found.subject for found in terms.TermDominates()(history)] == ["between"]


def test_a_loss_that_rises_slowly_and_stays_high_has_too_high_a_rate(make):
    rising = 0.3 + 0.7 * np.minimum(np.arange(600) / 60, 1)
    columns = {"Loss/total": rising, "Loss/weighted_color": rising, "LearningRate/0": np.full(600, 0.5)}
    assert [found.step for found in rates.RateTooHigh()(make(columns, events=[PLAN]))] == [40]
    assert rates.RateTooHigh()(make({**columns, "LearningRate/0": np.zeros(600)}, events=[PLAN])) == ()
    # A term that starts later, and a loss that one side of a game loses to the other, rise without any fault.
    later = ({"Loss/weighted_extra": np.full(500, 5.0)}, {"first": 100})
    total = {"Loss/total": 1 + 5.0 * (np.arange(600) >= 100), "Loss/weighted_color": np.ones(600)}
    assert rates.RateTooHigh()(make({**columns, **total}, later, events=[PLAN])) == ()
    won = {**columns, "Loss/weighted_maker": 0.7 * np.exp(-np.arange(600) / 50)}
    assert rates.RateTooHigh()(make(won, events=[PLAN])) == ()


def test_held_out_losses_that_rise_while_training_gains(make):
    falling = {"Loss/total": 3 * np.exp(-np.arange(600) / 100)}
    evaluations = {"first": 99, "stride": 100}
    overfit = make(falling, ({"Eval/loss": np.array([1.3, 1.2, 1.5, 1.9, 2.2, 2.4])}, evaluations), events=[PLAN])
    wobbling = make(
        falling, ({"Eval/loss": np.array([0.05, 0.04, 0.05, 0.055, 0.05, 0.06])}, evaluations), events=[PLAN]
    )
    assert [found.subject for found in results.HeldOutGap()(overfit)] == ["Eval/loss"]
    assert results.HeldOutGap()(wobbling) == ()


def test_results_are_judged_when_the_plan_is_done(make):
    """A run that is still training, or has no plan, is not judged by its last evaluation."""
    columns = {"Loss/total": np.full(600, 1.0)}
    scores = ({"Eval/psnr": np.array([12.0]), "Baseline/Eval/psnr": np.array([13.5])}, {"first": 599})
    assert [found.subject for found in results.WorseThanNothing()(make(columns, scores, events=[PLAN]))] == [
        "Eval/psnr"
    ]
    assert results.WorseThanNothing()(make(columns, scores)) == ()
    longer = {**PLAN, "steps": 5000}
    assert results.WorseThanNothing()(make(columns, scores, events=[longer])) == ()


def test_a_baseline_named_by_the_rule(make):
    columns = {"Eval/Pooled/val_psnr": np.array([16.9]), "Reference/val_mean_frame": np.array([20.5])}
    history = make({"Loss/total": np.ones(600)}, (columns, {"first": 599}), events=[PLAN])
    rule = results.WorseThanNothing(baselines={"Eval/Pooled/val_psnr": "Reference/val_mean_frame"})
    assert "Reference/val_mean_frame" in rule(history)[0].message
    assert results.WorseThanNothing()(history) == ()


def test_few_evaluations_over_several_phases_show_overfitting(make):
    phases = [{"kind": "phase", "step": step, "name": str(step)} for step in (0, 200, 400)]
    gaps = ({"Test/psnr_gap": np.array([2.0, 8.0])}, {"first": 299, "stride": 300})
    rule = quality.Overfitting(metrics=("Test/psnr_gap",))
    assert [found.step for found in rule(make({"Loss/total": np.ones(600)}, gaps, events=[PLAN, *phases]))] == [599]
    recovered = ({"Test/psnr_gap": np.array([8.0, 2.0])}, {"first": 299, "stride": 300})
    assert rule(make({"Loss/total": np.ones(600)}, recovered, events=[PLAN, *phases])) == ()


DECLINES = {
    "to below its start": ((0.05, 0.08, 0.04, -0.03, -0.1, -0.2, -0.3, -0.4), 1),
    "up and down": ((0.05, 0.08, -0.4, 0.03, -0.3, 0.06, -0.2, -0.1), 0),
    "above its start": ((0.2, 0.9, 0.8, 0.7, 0.65, 0.6, 0.55, 0.5), 0),
    "of a few evaluations": ((0.05, 0.08, -0.1, -0.2, -0.4), 0),
    "no larger than its noise": ((0.5, 0.51, 0.49, 0.5, 0.47, 0.48), 0),
}


@pytest.mark.parametrize(("scores", "count"), DECLINES.values(), ids=DECLINES)
def test_a_score_that_declines_steadily_while_the_loss_falls_is_overfitted(scores, count, make):
    loss = {"Loss/total": 2.3 * np.exp(-np.arange(640) / 200) + 0.1}
    plan = {"kind": "plan", "step": 0, "steps": 640}
    stride = 640 // len(scores)
    history = make((loss, {}), ({"val/gain": np.array(scores)}, {"stride": stride}), events=[plan])
    assert [found.subject for found in results.HeldOutGap()(history)] == ["val/gain"] * count
    # What a policy earns goes up and down.
    rewards = make((loss, {}), ({"val/reward": np.array(scores)}, {"stride": stride}), events=[plan])
    assert results.HeldOutGap()(rewards) == ()


def ended(make, loss, events=(), **rare):
    """A finished run of 640 steps with a loss, and results that are recorded rarely."""
    plan = {"kind": "plan", "step": 0, "steps": 640}
    columns = {"Loss/total": loss, "Loss/component_fit": loss}
    spaced = [
        ({name.replace("__", "/"): np.array(values)}, {"first": 640 // len(values) - 1, "stride": 640 // len(values)})
        for name, values in rare.items()
    ]
    return make((columns, {}), *spaced, events=[plan, *events])


LEARNED_EARLY = 2.1 + 0.7 * np.exp(-np.arange(640) / 10) + 0.02 * np.sin(np.arange(640) * 1.7)


def test_a_density_that_was_learned_before_its_first_evaluation_has_made_progress(make):
    for name, sign in (("Eval__log_likelihood", -1), ("Eval__nll", 1)):
        follows = [sign * value for value in (2.21, 2.22, 2.2, 2.23, 2.22)]
        assert progress.NoProgress()(ended(make, LEARNED_EARLY, **{name: follows})) == ()
        stays = [sign * value for value in (2.8, 2.81, 2.8, 2.82, 2.81)]
        assert len(progress.NoProgress()(ended(make, LEARNED_EARLY, **{name: stays}))) == 1


def test_what_was_perfect_at_once_has_nothing_to_gain(make):
    loss = np.linspace(4.0, 3.4, 640)
    assert progress.NoProgress()(ended(make, loss, Eval__knn_accuracy=[1.0] * 6)) == ()
    assert len(progress.NoProgress()(ended(make, loss, Eval__knn_accuracy=[0.3] * 6))) == 1


def test_results_that_are_always_worse_than_the_first_are_no_progress(make):
    loss = np.concatenate([np.linspace(0.5, 0.2, 60), np.full(580, 0.2)])
    worse = ended(make, loss, Val__error=[0.276, 0.297, 0.287, 0.296, 0.31])
    noise = ended(make, loss, Val__error=[0.276, 0.28, 0.27, 0.296, 0.287])
    assert [found.subject for found in progress.NoProgress()(worse)] == ["Val/error"]
    assert progress.NoProgress()(noise) == ()


@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        ("Eval__gain", (-0.013, -0.004, 0.001, 0.0, -0.0003), 1),
        ("Eval__gain", (-0.013, 0.01, 0.03, 0.04, 0.05), 0),
        ("Eval__relative_error", (0.94, 0.9, 0.95, 0.88, 0.89), 1),
        ("Eval__relative_error", (0.94, 0.7, 0.5, 0.4, 0.3), 0),
    ],
)
def test_a_gain_of_nothing_and_the_error_of_predicting_nothing_are_known(make, name, values, count):
    loss = 2.3 * np.exp(-np.arange(640) / 200) + 0.1
    found = results.WorseThanNothing()(ended(make, loss, **{name: values}))
    assert [each.subject for each in found] == [name.replace("__", "/")] * count


def test_the_scores_of_a_game_go_back_and_forth(make):
    distances = (0.065, 0.024, 0.027, 0.056, 0.056)
    learned = 2.3 * np.exp(-np.arange(640) / 200) + 0.1
    game = 1.38 + 0.4 * np.exp(-((np.arange(640) - 200) ** 2) / 1e4) + np.linspace(0, 0.1, 640)
    assert len(results.HeldOutGap()(ended(make, learned, Eval__distance=distances))) == 1
    assert results.HeldOutGap()(ended(make, game, Eval__distance=distances)) == ()


@pytest.mark.parametrize(("held_out", "count"), [((0.5, 0.6, 0.7, 0.725), 0), ((0.5, 0.8, 0.76, 0.725), 1)])
def test_few_samples_may_be_learned_by_heart_while_others_gain_by_them(make, held_out, count):
    loss = 2.3 * np.exp(-np.arange(640) / 60)
    history = ended(make, loss, val__accuracy=held_out, train__accuracy=[0.6, 0.9, 1.0, 1.0])
    assert len(results.HeldOutGap()(history)) == count


def test_a_loss_near_nothing_may_triple(make):
    loss = np.concatenate([2.0 * np.exp(-np.arange(400) / 20), np.full(240, 1e-3)])
    low = np.maximum(loss, 1e-6)
    assert losses.LossJump()(make({"Loss/total": low})) == ()
    assert len(losses.LossJump()(make({"Loss/total": np.where(np.arange(640) < 400, low, 0.2)}))) == 1


def test_the_errors_of_a_value_network_may_swing(make):
    swinging = np.where(np.arange(2400) // 32 % 2, 0.02, 0.001)
    columns = {"Loss/total": swinging, "Gradients/update_ratio_net": np.full(2400, 1e-3)}
    assert len(losses.LossOscillating()(make(columns))) == 1
    assert losses.LossOscillating()(make({**columns, "Rollout/return": np.linspace(0, 1, 2400)})) == ()


def test_a_baseline_is_no_result(make):
    """It is a result of the data, not of the run."""
    scores = {"Test/psnr": np.linspace(12, 20, 5), "Baseline/Test/psnr": np.full(5, 16.7)}
    history = make({"Loss/total": np.linspace(1, 0.1, 500)}, (scores, {"first": 99, "stride": 100}))
    assert list(held_out_metrics(history)) == ["Test/psnr"]
