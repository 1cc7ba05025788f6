"""Rules of video runs: each finds a planted fault, and is silent on a healthy run."""

import numpy as np
import pytest

from fieldwatch.recon.pipelines.video.rules import (
    VIDEO_RULES,
    EpochGradientExploding,
    EpochGradientVanishing,
    EpochLossNotDecreasing,
    EpochLossOscillating,
    FramesWorseThanNothing,
    LearnedNothing,
    NoValidation,
    PoorSemantics,
)

EVAL = {"stride": 50, "axis": "epoch"}


def flat(value, count=40):
    return np.full(count, float(value))


def epochs(make, name, values):
    return make(({name: np.asarray(values, np.float64)}, EVAL))


def semantics(make, similarity, baseline):
    columns = {
        "Eval/Frame/val_clip_sim": similarity,
        "Eval/Baseline/val_clip_sim_mean": flat(baseline, len(similarity)),
    }
    return make((columns, EVAL), windows={"clip": (500, 10_000)})


def against_mean_frame(make, psnr):
    return make({"Reference/train_mean_frame": flat(19.7, 1)}, ({"Train/PSNR": psnr}, EVAL))


def judged_at(rule, history, step):
    """Return the only finding, after checking that it is absent one recording earlier."""
    (found,) = rule(history)
    assert found.step == step
    history.discard(step)
    assert rule(history) == ()
    return found


def test_poor_semantics(make):
    fault = semantics(make, [-0.02] * 10 + [0.5, 0.6, 0.62, 0.63], baseline=0.4)
    found = judged_at(PoorSemantics(), fault, 600)
    assert (found.severity, found.subject) == ("warning", "Eval/Frame/val_clip_sim")
    assert "0.620" in found.message
    healthy = semantics(make, [-0.02] * 10 + [0.79, 0.97, 0.98, 0.99], baseline=0.93)
    assert PoorSemantics()(healthy) == ()


def test_semantics_no_better_than_the_mean_embedding_is_a_note(make):
    columns = {"Eval/Frame/val_clip_sim": np.full(9, 0.93), "Eval/Baseline/val_clip_sim_mean": np.full(9, 0.95)}
    found = PoorSemantics()(make((columns, EVAL)))
    assert [finding.severity for finding in found] == ["note"]
    assert "mean embedding (0.950)" in found[0].message


@pytest.mark.parametrize(("active", "expected"), [([0, 0, 0, 0, 0, 0], 0), ([0, 0, 1, 1, 1, 1], 1)])
def test_semantics_wait_for_the_clip_term(make, active, expected):
    columns = {"Eval/Frame/val_clip_sim": np.full(6, 0.1), "Train/clip_loss_active": np.array(active, float)}
    assert len(PoorSemantics()(make((columns, EVAL)))) == expected


def test_a_run_no_better_than_the_mean_frame_has_learned_nothing(make):
    found = judged_at(LearnedNothing(), against_mean_frame(make, flat(19.5)), 1200)
    assert (found.severity, found.subject) == ("warning", "Train/PSNR")
    assert [word for word in ("19.50 dB", "19.70 dB") if word not in found.message] == []
    assert LearnedNothing()(against_mean_frame(make, np.linspace(12, 26, 40))) == ()


def test_an_evaluation_without_validation_frames_is_a_note(make):
    name = "Eval/Info/num_val_frames"
    found = judged_at(NoValidation(), epochs(make, name, [0, 0]), 0)
    assert found.severity == "note"
    assert "9_9_10" in found.remedy
    assert NoValidation()(epochs(make, name, [4, 4])) == ()


def test_gradient_ratios_that_were_recorded_are_judged_too(make):
    ratio = {"Train/Gradients/rgb_to_clip_ratio": np.full(8, 0.02)}
    video = [rule for rule in VIDEO_RULES if rule.name == "GroupImbalance"]
    assert [finding.step for finding in video[0](make((ratio, EVAL)))] == [250]


WILD = np.where(np.arange(24) % 2 < 1, 2.0, 0.1)


@pytest.mark.parametrize(
    ("variant", "fault", "healthy", "step"),
    [
        (EpochLossNotDecreasing(), flat(1), 1 / (1 + np.arange(40)), 600),
        (EpochLossOscillating(), WILD, np.linspace(2, 1, 24), 550),
        (EpochGradientVanishing(), flat(5e-4), flat(5e-3), 100),
        (EpochGradientExploding(), flat(150), flat(90), 100),
    ],
    ids=["not_decreasing", "oscillating", "vanishing", "exploding"],
)
def test_what_is_recorded_once_per_epoch_has_thresholds_in_epochs(make, variant, fault, healthy, step):
    """The findings carry the name of the general rule."""
    (name,) = variant.metrics
    found = judged_at(variant, epochs(make, name, fault), step)
    assert (found.rule, found.subject) == (type(variant).__base__.__name__, name)
    assert variant(epochs(make, name, healthy)) == ()
    assert variant in VIDEO_RULES


def test_frames_that_only_the_training_knows_need_a_larger_split(make):
    plan = {"kind": "plan", "step": 0, "steps": 100}
    looks = {"first": 49, "stride": 50}
    columns = {
        "Eval/Pooled/train_psnr": np.array([20.0, 30.0]),
        "Reference/train_mean_frame": np.array([15.0, 15.0]),
        "Eval/Pooled/val_psnr": np.array([14.0, 13.0]),
        "Reference/val_mean_frame": np.array([15.0, 15.0]),
    }
    rule = next(rule for rule in VIDEO_RULES if rule.name == "WorseThanNothing")
    (found,) = rule(make({"Loss/total": np.ones(100)}, (columns, looks), events=[plan]))
    assert (found.rule, found.severity, found.subject) == ("WorseThanNothing", "error", "Eval/Pooled/val_psnr")
    assert "--data-split" in found.remedy
    assert "7_7_8" in found.remedy
    both = {**columns, "Eval/Pooled/train_psnr": np.array([14.0, 13.0])}
    several = rule(make({"Loss/total": np.ones(100)}, (both, looks), events=[plan]))
    assert len(several) == 2
    assert not any("--data-split" in each.remedy for each in several)


@pytest.mark.parametrize(
    ("mean", "ended", "severity"), [(26.9, 24.9, "note"), (26.9, 23.0, "warning"), (20.0, 19.0, "warning")]
)
def test_a_still_clip_that_is_rendered_almost_as_well_as_its_mean_frame_is_a_note(make, mean, ended, severity):
    reference = {"Reference/train_mean_frame": flat(mean, 1)}
    (found,) = LearnedNothing()(make(reference, ({"Train/PSNR": np.linspace(12, ended, 40)}, EVAL)))
    assert found.severity == severity
    results = {"Eval/Pooled/train_psnr": np.array([20.0, ended])}
    plan = {"kind": "plan", "step": 0, "steps": 51}
    baselines = {"Eval/Pooled/train_psnr": "Reference/train_mean_frame"}
    (worse,) = FramesWorseThanNothing(baselines=baselines)(make(reference, (results, EVAL), events=[plan]))
    assert worse.severity == ("note" if severity == "note" else "error")
