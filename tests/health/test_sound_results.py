"""Results that look odd and are sound: a record of each, beside one of a fault that looks alike."""

import numpy as np
import pytest

from fieldwatch.health.rules import (
    chance,
    evaluated,
    evaluations,
    gradients,
    losses,
    objectives,
    progress,
    results,
    simple,
)

STEPS = 640
FALLING = 2.3 * np.exp(-np.arange(STEPS) / 60) + 0.1


def ended(make, rare, loss=FALLING, first=0):
    """Return the history of a finished run, with metrics that are recorded more rarely than the loss."""
    spaced = [({name: np.asarray(v, float)}, {"stride": STEPS // len(v), "first": first}) for name, v in rare.items()]
    return make(({"Loss/total": loss}, {}), *spaced, events=[{"kind": "plan", "step": 0, "steps": STEPS}])


def measured(**values):
    return {f"Forward/net_{name}": series for name, series in values.items()}


@pytest.mark.parametrize(("moved", "faults"), [(0.2, 1), (0.8, 0)])
def test_outputs_that_move_with_drifting_inputs_are_those_of_the_same_function(make, moved, faults):
    facts = measured(
        input_std=np.ones(40),
        evaluation_input_std=np.ones(4),
        evaluation_input_shift=np.full(4, moved),
        output_std=np.ones(40),
        evaluation_output_std=np.ones(4),
        evaluation_output_shift=np.full(4, 1.8),
    )
    assert len(evaluations.EvaluationOutput()(ended(make, facts))) == faults


@pytest.mark.parametrize(
    ("unseen", "faults"),
    [
        ([0.2, 0.4, 0.6, 0.65], 0),
        ([0.2, 0.3, 0.5, 0.55], 1),
        ([0.65, 0.66, 0.66, 0.65], 1),
        ([0.2, 0.75, 0.7, 0.65], 1),
    ],
)
def test_held_out_data_that_gain_by_few_samples_up_to_the_end_are_no_fault(make, unseen, faults):
    facts = measured(class_sum=np.full(40, 1e-8), hits=np.linspace(0.3, 1, 40), target_share=np.full(40, 0.1))
    assert len(chance.TrainingGap()(ended(make, facts | {"val/right": unseen}))) == faults


@pytest.mark.parametrize(
    ("scores", "faults"),
    [([0.9, 0.85, 0.8, 0.79, 0.78, 0.79], 0), ([0.9, 0.85, 0.7, 0.65, 0.66, 0.65], 1)],
)
def test_what_was_learned_early_may_be_overfitted_a_little(make, scores, faults):
    assert len(progress.NoProgress()(ended(make, {"val/recall": scores}, first=100))) == faults


@pytest.mark.parametrize(("last", "faults"), [(0.05, 0), (0.057, 1)])
def test_a_result_of_a_game_that_swings_and_comes_back_is_not_judged_by_its_first_value(make, last, faults):
    swings = {"eval/distance": [0.055, 0.28, 0.4, 0.29, last]}
    both_signs = np.sin(np.arange(STEPS))
    assert len(progress.NoProgress()(ended(make, swings, both_signs))) == faults


@pytest.mark.parametrize(("shift", "faults"), [(130.0, 1), (8.0, 0)])
def test_an_argument_in_another_unit_is_a_fault_even_if_the_result_is_good(make, shift, faults):
    facts = measured(evaluation_input_mean=np.zeros(4), evaluation_argument_shift=np.full(4, shift))
    assert len(evaluations.EvaluationInput()(ended(make, facts | {"val/loss": [1.2, 0.6, 0.3, 0.2]}))) == faults


@pytest.mark.parametrize(("begin", "advised"), [(3e6, True), (2.0, False)])
def test_gradients_that_are_huge_from_the_first_step_on_are_those_of_a_large_unit(make, begin, advised):
    norm = np.where(np.arange(STEPS) < 100, begin, 3e6)
    (found,) = gradients.GradientExploding()(make({"Gradients/total_norm": norm}))
    assert ("targets" in found.remedy) == advised
    assert "Clip" in found.remedy


@pytest.mark.parametrize(
    ("twice", "unlogged", "results", "words"),
    [
        (1e-12, 0.01, [0.2, 0.4, 0.6, 0.7], ("squashed twice", "logits")),
        (0.01, 1e-12, [0.2, 0.2, 0.2, 0.2], ("negative probability", "log_softmax")),
        # Maximized on purpose, with a good result.
        (0.01, 1e-12, [0.2, 0.5, 0.8, 0.9], ()),
        (0.2, 0.3, [0.2, 0.2, 0.2, 0.2], ()),
        (np.nan, np.nan, [0.2, 0.2, 0.2, 0.2], ()),
    ],
)
def test_the_form_of_a_loss_that_is_handed_over_detached_shows_in_the_gradients(make, twice, unlogged, results, words):
    facts = measured(softmax_twice=np.full(40, twice), no_logarithm=np.full(40, unlogged))
    loss = np.full(STEPS, 2.3) - 0.1 * (np.arange(STEPS) > 300)
    found = objectives.LossForm()(ended(make, facts | {"val/accuracy": results}, loss))
    assert len(found) == bool(words)
    for finding in found:
        assert finding.subject == "net"
        assert words[0] in finding.message
        assert words[1] in finding.remedy


@pytest.mark.parametrize(("share", "faults"), [(1.0, 0), (0.4, 1)])
def test_outputs_for_one_answer_differ_by_less_than_those_for_both(make, share, faults):
    facts = measured(
        input_std=np.ones(40),
        evaluation_input_std=np.ones(4),
        output_std=np.full(40, 0.8),
        evaluation_output_std=np.full(4, 2.0),
        binary_spread=np.full(40, 1e-8),
        binary_share=np.full(40, share),
    )
    assert len(evaluations.EvaluationOutput()(ended(make, facts))) == faults


@pytest.mark.parametrize(("late", "faults"), [(0.1, 0), (0.5, 1)])
def test_what_a_module_explains_is_known_from_all_losses_of_the_end(make, late, faults):
    loss = np.full(STEPS, late)
    loss[:100] = 1.0
    # The last batches that were measured are hard ones.
    loss[560::16] = 0.5
    squares = loss[::16]
    facts = measured(
        error_square=squares,
        error_variance=squares,
        error_covariance=np.zeros(40),
        output_variance=1 - squares,
        simple_count=np.full(40, 300.0),
        linear_explained=np.full(40, 0.75),
        nearest_explained=np.zeros(40),
    )
    assert len(simple.LosesToSimpleModel()(ended(make, facts, loss))) == faults


@pytest.mark.parametrize(("fallen", "faults"), [(0.0005, 0), (0.05, 1)])
def test_an_error_that_rises_while_the_loss_stands_still_is_not_overfitted(make, fallen, faults):
    steps = np.arange(STEPS)
    noise = 0.02 * np.where(steps % 2, 1, -1)
    loss = np.full(STEPS, 0.2) + noise - fallen * (steps > 300)
    loss[:20] = 1.0
    history = ended(make, {"eval/distance": [0.031, 0.017, 0.011, 0.0154, 0.0148]}, loss)
    assert len(results.HeldOutGap()(history)) == faults


@pytest.mark.parametrize(("name", "faults"), [("val/balanced_accuracy", 0), ("val/accuracy", 1)])
def test_a_loss_says_nothing_of_an_accuracy_that_is_averaged_over_the_classes(make, name, faults):
    loss = 0.7 * np.exp(-np.arange(STEPS) / 60) + 0.02
    columns = {"Loss/total": loss, "Loss/component_ce": loss}
    scores = {name: np.array([0.6, 0.62, 0.61, 0.6])}
    history = make((columns, {}), (scores, {"stride": 160}), events=[{"kind": "plan", "step": 0, "steps": STEPS}])
    assert len(results.HeldOutGap()(history)) == faults


@pytest.mark.parametrize(("fallen", "faults"), [(1.9, 0), (0.3, 1)])
def test_what_was_learned_before_the_first_evaluation_may_be_perfect_then(make, fallen, faults):
    loss = 4.9 - fallen * (1 - np.exp(-np.arange(STEPS) / 25))
    history = ended(make, {"neighbor/accuracy": [1.0] * 5}, loss, first=100)
    assert len(evaluated.PerfectFromStart()(history)) == faults


@pytest.mark.parametrize(("implied", "faults"), [(0.36, 0), (1.35, 1)])
def test_a_classifier_far_better_than_a_guess_has_learned_however_fast(make, implied, faults):
    loss = np.r_[implied + 0.9, np.full(STEPS - 1, implied)]
    facts = measured(class_sum=np.full(40, 1e-8), implied_loss=np.full(40, implied), target_entropy=np.full(40, 1.374))
    scores = {"test/accuracy": [0.77, 0.78, 0.775, 0.773, 0.773]}
    assert len(progress.NoProgress()(ended(make, facts | scores, loss))) == faults


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        (0.05, 0.05, "note"),
        # Higher than ever before, and no rise at all.
        (0.05, 0.5, "warning"),
        (0.001, 0.001, "warning"),
    ],
)
def test_a_spike_after_a_restart_of_the_rate_is_a_note(make, before, after, severity):
    steps = np.arange(STEPS)
    rates = np.where(steps < 320, before * np.cos(steps / 320 * np.pi / 2) + 1e-5, after)
    if before == after < 0.01:
        rates[:] = before
    loss = np.full(STEPS, 0.2)
    loss[330] = 2.8
    columns = {"Loss/total": loss, "LearningRate/0": rates}
    history = make(columns, events=[{"kind": "plan", "step": 0, "steps": STEPS}])
    assert [found.severity for found in losses.LossSpike()(history)] == [severity]
