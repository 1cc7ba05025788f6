"""Results that look odd and are sound: a record of each, beside one of a fault that looks alike."""

import numpy as np
import pytest

from fieldwatch.health.rules import chance, evaluations, gradients, objectives, progress

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
