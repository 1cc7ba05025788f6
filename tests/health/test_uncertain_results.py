"""Changes that may be chance, and results that cannot be better: a record of each, beside one of a fault."""

import numpy as np
import pytest

from fieldwatch.health import outcomes, window
from fieldwatch.health.rules import chance, evaluated, evaluations, losses, progress, quality, results, terms, untrained

STEPS = 640
FALLING = 2.3 * np.exp(-np.arange(STEPS) / 60) + 0.1


def ended(make, rare, loss=FALLING, events=()):
    """Return the history of a finished run, with metrics that are recorded more rarely than the loss."""
    spaced = [({name: np.asarray(values, float)}, {"stride": STEPS // len(values)}) for name, values in rare.items()]
    plan = {"kind": "plan", "step": 0, "steps": STEPS}
    return make(({"Loss/total": loss}, {}), *spaced, events=[plan, *events])


def measured(**values):
    return {f"Forward/net_{name}": series for name, series in values.items()}


def classes(**values):
    return measured(class_sum=np.full(40, 1e-8), **values)


def test_noise_is_that_of_neighbors_and_not_a_trend_or_a_step(rng):
    noise = rng.normal(0, 0.2, 400)
    assert window.noise(noise + np.linspace(0, 30, 400)) == pytest.approx(0.2, rel=0.15)
    assert window.noise(np.repeat([5.0, 1.0], 20)) == 0
    assert window.noise(np.array([1.0, np.nan, 2.0])) == 0


@pytest.mark.parametrize(
    ("errors", "faults"),
    [([0.1, 0.19, 0.13, 0.11, 0.113], 0), ([0.1, 0.112, 0.113, 0.112, 0.114], 1)],
)
def test_a_lucky_first_evaluation_among_noisy_ones_is_no_decline(make, errors, faults):
    assert len(progress.NoProgress()(ended(make, {"val/error": errors}))) == faults


@pytest.mark.parametrize(
    ("scores", "faults"),
    [
        # What was gained is within the noise of single evaluations.
        ([0.95, 0.88, 1.0, 1.0, 0.8], 0),
        ([0.5, 0.6, 0.7, 0.7, 0.48], 1),
        # A course that bends is no noise.
        ([0.5, 0.6, 0.64, 0.55, 0.45], 1),
    ],
)
def test_only_what_evaluations_show_for_certain_can_be_lost(make, scores, faults):
    assert len(progress.ProgressLost()(ended(make, {"val/accuracy": scores}))) == faults


@pytest.mark.parametrize(("start", "follows"), [(2.8, True), (2.1, False)])
def test_a_steep_start_is_no_noise_of_a_loss(make, rng, start, follows):
    loss = 2.08 + (start - 2.08) * np.exp(-np.arange(STEPS) / 3) + rng.normal(0, 0.07, STEPS)
    history = ended(make, {"Eval/log_likelihood": [-2.2, -2.21, -2.2, -2.19]}, loss)
    assert outcomes.follows_training("Eval/log_likelihood", history) == follows


@pytest.mark.parametrize(("start", "faults"), [(2.2, 0), (1.4, 1)])
def test_a_jump_late_in_a_run_does_not_hide_what_the_loss_has_lost(make, rng, start, faults):
    steps = np.arange(STEPS)
    loss = 1.0 + (start - 1.0) * np.exp(-steps / 25) + 0.8 * (steps > 300) + rng.normal(0, 0.2, STEPS)
    assert len(losses.LossNotDecreasing()(ended(make, {}, loss))) == faults


@pytest.mark.parametrize(("first", "severity"), [(9.0, "note"), (1.0, "warning")])
def test_a_spike_below_the_very_first_loss_is_a_note(make, first, severity):
    loss = np.full(STEPS, 0.1)
    loss[:3] = [first, 0.5, 0.2]
    loss[400] = 5.0
    assert [found.severity for found in losses.LossSpike()(ended(make, {}, loss))] == [severity]


@pytest.mark.parametrize(("last", "faults"), [(0.0, 0), (0.5, 1)])
def test_an_error_that_is_back_at_its_best_has_not_risen(make, last, faults):
    history = ended(make, {"Eval/missed": [0.0, 0.1, 0.2, 0.4, last]})
    assert len(results.HeldOutGap()(history)) == faults


@pytest.mark.parametrize(("first", "faults"), [(0.1, 0), (0.4, 1)])
def test_a_gap_of_few_samples_is_none_while_held_out_data_gain_the_larger_part(make, first, faults):
    curves = {"train/accuracy": [0.15, 0.6, 0.9, 0.92], "val/accuracy": [first, 0.45, 0.57, 0.58]}
    assert len(results.HeldOutGap()(ended(make, curves))) == faults


@pytest.mark.parametrize(("last", "faults"), [((18.6, 18.9), 0), ((17.8, 17.6), 1)])
def test_validation_that_recovers_from_a_shock_is_not_overtrained(make, last, faults):
    curves = {"Test/train_psnr": [17.5, 19.7, 18.7, 19.9, 20.3], "Test/psnr": [17.6, 19.6, 17.9, *last]}
    rule = quality.Overtraining(train="Test/train_psnr", validation="Test/psnr")
    assert len(rule(ended(make, curves))) == faults


@pytest.mark.parametrize(("words", "scores", "faults"), [("balanced_accuracy", 0.63, 0), ("accuracy", 0.63, 1)])
def test_a_balanced_accuracy_is_compared_with_equal_chances(make, words, scores, faults):
    facts = classes(target_share=np.full(40, 0.56), target_entropy=np.full(40, np.log(2)))
    history = ended(make, facts | {f"val/{words}": [0.55, 0.6, scores, scores]})
    assert len(chance.BarelyLearned()(history)) == faults


@pytest.mark.parametrize(("following", "faults"), [(1.0, 0), (0.1, 1)])
def test_nobody_knows_how_much_of_the_next_token_can_be_learned(make, following, faults):
    facts = classes(target_share=np.full(40, 0.11), target_entropy=np.full(40, 2.5), next_share=np.full(40, following))
    history = ended(make, facts | {"val/token_accuracy": [0.19, 0.22, 0.24, 0.25]})
    assert len(chance.BarelyLearned()(history)) == faults


@pytest.mark.parametrize(("guess", "faults"), [(0.69, 0), (0.62, 1)])
def test_the_answers_that_a_policy_gets_become_others_as_it_learns(make, guess, faults):
    entropies = np.concatenate([np.full(36, 0.55), np.full(4, guess)])
    facts = measured(binary_spread=np.full(40, 1e-8), binary_guess=entropies, binary_loss=np.full(40, 0.63))
    assert len(chance.ChanceLevel()(ended(make, facts))) == faults


@pytest.mark.parametrize(("last", "moved"), [(0.98, True), (0.86, False)])
def test_a_fraction_of_unknown_direction_has_moved_if_its_rest_to_one_has(make, last, moved):
    history = ended(make, {"eval/share_of_possible_clicks": [0.845, 0.95, last, last]})
    assert outcomes.has_improved(history) == moved


@pytest.mark.parametrize(("entropy", "faults"), [(1.6, 0), (0.9, 1)])
def test_a_pretrained_model_may_be_right_from_the_start(make, entropy, faults):
    loss = np.linspace(0.8, 0.45, STEPS)
    history = ended(make, classes(target_entropy=np.full(40, entropy)) | {"val/acc": [1.0] * 5}, loss)
    assert len(evaluated.PerfectFromStart()(history)) == faults


@pytest.mark.parametrize(("right", "severity"), [(1.0, "note"), (0.9, "warning")])
def test_parameters_that_a_perfect_result_does_not_need_are_a_note(make, right, severity):
    names = {"names": ["net.a", "net.b"], "count": 2, "updates": 32, "share": 0.2, "called": True}
    history = ended(make, {"val/accuracy": [right] * 4}, events=[{"kind": "without_gradient", "step": 31, **names}])
    assert [found.severity for found in untrained.NeverTrained()(history)] == [severity]


@pytest.mark.parametrize(("right", "severity"), [(0.98, "note"), (0.6, "warning")])
def test_other_outputs_of_a_model_that_is_right_are_a_note(make, right, severity):
    facts = measured(
        input_std=np.ones(40),
        evaluation_input_std=np.ones(4),
        evaluation_input_shift=np.full(4, 0.1),
        output_std=np.ones(40),
        evaluation_output_std=np.ones(4),
        evaluation_output_shift=np.full(4, 1.6),
    )
    history = ended(make, facts | {"val/accuracy": [0.5, 0.6, 0.6, right]})
    assert [found.severity for found in evaluations.EvaluationOutput()(history)] == [severity]


@pytest.mark.parametrize(("rewards", "severity"), [([1.0, 1.2, 1.3, 1.4], "note"), ([1.0, 1.0, 1.0, 1.0], "warning")])
def test_a_term_that_dwarfs_all_others_and_lets_the_result_be_learned_is_a_note(make, rewards, severity):
    parts = {"Loss/weighted_critic": np.full(STEPS, 9000.0), "Loss/weighted_policy": np.full(STEPS, 0.01)}
    plan = {"kind": "plan", "step": 0, "steps": STEPS}
    history = make((parts, {}), ({"Eval/reward": np.asarray(rewards)}, {"stride": 160}), events=[plan])
    assert [found.severity for found in terms.TermDominates()(history)] == [severity]
