"""Rules for results that show too little of what a training could have learned: a planted record each, and a twin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fieldwatch.health import HealthRule
from fieldwatch.health.outcomes import direction_of, is_training
from fieldwatch.health.rules import (
    batches,
    chance,
    course,
    evaluations,
    losses,
    progress,
    quality,
    rates,
    results,
    simple,
    targets,
)
from fieldwatch.health.squares import explained_variance, squares_term
from fieldwatch.record import History

STEPS = 640
FALLING = 2.3 * np.exp(-np.arange(STEPS) / 60) + 0.1
FIVE_KINDS = {"kind": "chance_level", "step": 0, "term": "kind", "outcomes": 5, "chance": 1.6, "operation": "ce"}
EXPLAINED = {
    # Of errors of 0.1, which the outputs do not share, and outputs of variance 0.9.
    "error_square": FALLING[::16],
    "error_variance": FALLING[::16],
    "error_covariance": np.zeros(40),
    "output_variance": np.full(40, 0.9),
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record of a loss, of metrics that are recorded more rarely, and of events."""

    loss: np.ndarray = field(default_factory=lambda: FALLING)
    planned: int = STEPS
    rare: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measured: Mapping[str, np.ndarray] = field(default_factory=dict)
    each: Mapping[str, np.ndarray] = field(default_factory=dict)
    events: Sequence[Mapping[str, object]] = ()

    def history(self, make) -> History:
        plan = {"kind": "plan", "step": 0, "steps": self.planned}
        rare = {**self.rare, **{f"Forward/{name}": values for name, values in self.measured.items()}}
        count = len(self.loss)
        spaced = [({name: np.array(values)}, {"stride": count // len(values)}) for name, values in rare.items()]
        return make(({"Loss/total": self.loss, **self.each}, {}), *spaced, events=[plan, *self.events])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with a faulty and a healthy record, and the severity, subject and words of its finding."""

    rule: HealthRule
    fault: Record
    healthy: Record
    severity: str = "warning"
    subject: str = ""
    words: Sequence[str]


def ended(steps, loss):
    return Record(loss=loss[:steps], events=[{"kind": "ended", "step": steps - 1, "steps": steps}])


def overlaps(last):
    """Results of three classes; the last one is that of the third class."""
    rising = [0.3, 0.7, 0.9, 0.92]
    return Record(rare={"IoU/sky": rising, "IoU/road": rising, "IoU/car": [0, 0.01, last, last]})


def named(values):
    return {f"net_{name}": np.full(40, value) for name, value in values.items()}


def classified(nearest, count=300.0):
    known = {"class_sum": 1e-8, "hits": 0.6, "implied_loss": 1.0, "target_entropy": 2.0, "target_share": 0.2}
    simple_models = {"simple_count": count, "linear_hits": 0.4, "nearest_hits": nearest}
    return Record(measured=named({**known, **simple_models}))


def squares(linear, **rare):
    measured = {f"net_{name}": values for name, values in EXPLAINED.items()}
    simple_models = {"simple_count": 300.0, "linear_explained": linear, "nearest_explained": 0.2}
    return Record(
        measured={**measured, **named(simple_models)}, rare={k.replace("__", "/"): v for k, v in rare.items()}
    )


def drifting(last):
    """Training inputs whose deviation goes from 0.34 to another one, and evaluations at 0.36."""
    return Record(
        measured={
            "net_input_std": np.geomspace(0.34, last, 40),
            "net_input_mean": np.zeros(40),
            "net_evaluation_input_std": np.full(4, 0.36),
            "net_evaluation_input_mean": np.zeros(4),
        },
        rare={"val/accuracy": [0.2, 0.3, 0.3, 0.4]},
    )


def of_two(deviation):
    """A module with constant inputs of a deviation, beside one with new batches."""
    measured = {"maker_input_mark": np.ones(40), "maker_input_mean": np.zeros(40)}
    measured |= {"maker_input_std": np.full(40, deviation), "judge_input_mark": np.arange(40.0)}
    return Record(measured=measured)


def pairs(unseen, seen):
    return Record(rare={"PSNR/left_out": unseen, "PSNR/seen": seen})


CASES = [
    Case(
        rule=course.EndedEarly(),
        fault=ended(20, np.full(STEPS, 2.3)),
        healthy=ended(120, FALLING),
        words=("20 of 640 planned steps", "patience"),
    ),
    Case(
        rule=course.PartNotLearned(),
        fault=overlaps(0.02),
        healthy=overlaps(0.3),
        subject="IoU/car",
        words=("IoU/car ended at 0.02", "not learned", "ignore_index"),
    ),
    Case(
        rule=simple.LosesToSimpleModel(),
        fault=classified(0.8),
        healthy=classified(0.65),
        subject="net",
        words=("nearest neighbors", "80%", "60%", "learning rate"),
    ),
]
VARIANTS = [
    Case(
        rule=simple.LosesToSimpleModel(),
        fault=classified(0.8),
        healthy=classified(0.8, count=20),
        subject="net",
        words=("worse than a simple model", "learning rate"),
    ),
    Case(
        rule=simple.LosesToSimpleModel(),
        # The module itself explains 90 % of the training targets.
        fault=squares(0.95, Later__skill=[0.1, 0.3, 0.4, 0.4]),
        healthy=squares(0.95, Later__skill=[0.1, 0.7, 0.8, 0.8]),
        subject="Later/skill",
        words=("a linear model", "95%", "held-out", "filling of gaps"),
    ),
    Case(
        rule=chance.TrainingGap(),
        # The held-out error falls as well, but much of it stays.
        fault=squares(0.2, val__unexplained=[0.9, 0.5, 0.45, 0.45]),
        healthy=squares(0.2, val__unexplained=[0.9, 0.5, 0.3, 0.2]),
        subject="val/unexplained",
        words=("explains", "held-out data gain far less", "regularize"),
    ),
    Case(
        rule=evaluations.EvaluationInput(),
        fault=drifting(0.12),
        healthy=drifting(0.25),
        subject="net",
        words=("changed along the way", "0.36", "in place"),
    ),
    Case(
        rule=batches.SameBatch(),
        fault=of_two(1.02),
        healthy=Record(measured={"maker_input_mark": np.arange(40.0), "judge_input_mark": np.arange(40.0)}),
        subject="maker",
        words=("same noise", "other noise"),
    ),
    Case(
        rule=progress.NoProgress(),
        # An error in another unit, after a loss that was nearly learned at the first evaluation.
        fault=Record(rare={"Eval/mean_error": [7.0, 7.1, 7.1, 7.1]}),
        healthy=Record(rare={"Eval/mean_error": [7.0, 6.0, 5.0, 4.0]}),
        subject="Eval/mean_error",
        words=("has not improved on the 7", "same data format"),
    ),
    Case(
        rule=results.HeldOutGap(),
        fault=pairs([11.4, 11.0, 10.2, 10.0], [13.0, 14.0, 16.0, 17.2]),
        healthy=pairs([24.0, 26.0, 27.0, 27.0], [25.0, 28.0, 30.0, 31.2]),
        subject="PSNR/left_out",
        words=("PSNR/seen at 17.2", "preprocessing"),
    ),
    Case(
        rule=results.HeldOutGap(),
        # Measured on single batches, at each step.
        fault=Record(rare={"valid/accuracy": [0.2] * 4}, each={"batch/accuracy": np.linspace(0.2, 0.9, STEPS)}),
        healthy=Record(rare={"valid/accuracy": [0.8] * 4}, each={"batch/accuracy": np.linspace(0.2, 0.9, STEPS)}),
        subject="valid/accuracy",
        words=("batch/accuracy at 0.88", "order"),
    ),
    Case(
        rule=progress.ProgressLost(),
        # Most was learned before the first evaluation, and the end is far worse than that.
        fault=Record(rare={"Test/psnr": [17.6, 20.6, 21.4, 18.6, 15.7]}),
        healthy=Record(rare={"Test/psnr": [17.6, 20.6, 21.4, 21.0, 20.7]}),
        subject="Test/psnr",
        words=("ended at 15.7", "a rate that rises"),
    ),
    Case(
        rule=results.WorseThanNothing(),
        fault=Record(
            rare={"valid/accuracy": [0.19, 0.2, 0.2, 0.2]},
            each={"Loss/component_kind": FALLING},
            events=[FIVE_KINDS],
        ),
        healthy=Record(
            rare={"valid/accuracy": [0.19, 0.3, 0.4, 0.5]},
            each={"Loss/component_kind": FALLING},
            events=[FIVE_KINDS],
        ),
        severity="error",
        subject="valid/accuracy",
        words=("baseline of 0.2", "equal chances", "belong together"),
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES + VARIANTS, ids=lambda case: case.rule.name)


@BY_NAME
def test_names_the_planted_fault(case, make):
    (finding,) = case.rule(case.fault.history(make))
    assert (finding.rule, finding.severity, finding.subject) == (case.rule.name, case.severity, case.subject)
    *says, advises = case.words
    assert [words for words in says if words not in finding.message] == [], finding.message
    assert advises in finding.remedy


@BY_NAME
def test_is_silent_on_the_healthy_twin(case, make):
    assert case.rule(case.healthy.history(make)) == ()
    assert case.rule(History()) == ()


def test_noise_that_is_no_noise_is_a_note(make):
    """Coordinates of all pixels, for example, are the same batch at every step."""
    (found,) = batches.SameBatch()(of_two(0.58).history(make))
    assert found.severity == "note"


def test_a_loss_that_jumps_to_harder_data_and_falls_again_is_no_jump(make):
    steps = np.arange(800)
    learned = np.where(steps < 400, np.exp(-steps / 80) + 0.05, 0.4 * np.exp(-np.maximum(steps - 400, 0) / 40) + 0.06)
    assert losses.LossJump()(make({"Loss/total": learned})) == ()
    destroyed = np.where(steps < 400, np.exp(-steps / 80) + 0.05, 0.4)
    (found,) = losses.LossJump()(make({"Loss/total": destroyed}))
    assert found.step == 415
    # A jump behind one that was learned counts.
    (later,) = losses.LossJump()(make({"Loss/total": np.where(steps < 650, learned, 0.5)}))
    assert later.step == 665


def test_a_jump_is_told_once_it_is_known_whether_the_loss_falls_again(make):
    history = make({"Loss/total": np.where(np.arange(600) < 300, 0.1, 0.6)})
    history.discard(340)
    assert losses.LossJump()(history) == ()


@pytest.mark.parametrize(
    ("unseen", "severity"), [([18.4, 19.2, 20.1, 20.1], "note"), ([18.4, 18.2, 18.2, 18.1], "warning")]
)
def test_a_gap_is_a_note_while_held_out_data_gain(unseen, severity, make):
    rare = {"Eval/Gap/psnr_gap": [1.6, 4.3, 5.3, 5.3], "Eval/val_psnr": unseen}
    (found,) = quality.Overfitting(metrics=("Eval/Gap/psnr_gap",))(Record(rare=rare).history(make))
    assert found.severity == severity


def test_a_huber_loss_is_one_of_squares_once_its_errors_are_small(make):
    error = FALLING[::16] * (1 + 0.3 * np.sin(np.arange(40)))
    # Errors above 1 count less than their squares.
    loss = np.repeat(0.5 * error * np.where(error > 0.5, 0.7, 1.0), STEPS // 40)
    measured = EXPLAINED | {"error_square": error, "error_variance": error}
    record = Record(loss=loss, measured={f"net_{k}": v for k, v in measured.items()}, rare={"Later/skill": [0.1] * 4})
    history = record.history(make)
    assert explained_variance(history, "net") == pytest.approx(0.95, abs=0.03)
    (found,) = chance.TrainingGap()(history)
    assert found.subject == "Later/skill"


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("PSNR/left_out", "higher"),
        ("R2/wheat", "higher"),
        ("Eval/meters_off", "lower"),
        ("val/within_1.5_px", "higher"),
        ("val/within_two_pixels", "higher"),
        ("val/correct_off_by_px", "lower"),
        ("Eval/PSNR_Stats/val_min", None),
    ],
)
def test_the_group_of_a_metric_says_what_its_name_does_not(name, better):
    assert direction_of(name, History()) == better
    assert not is_training(name)


def test_every_rule_of_these_modules_is_planted():
    from fieldwatch.health.rules import rules_in  # noqa: PLC0415  beside its only use

    assert {type(case.rule) for case in CASES} == {*rules_in(course), *rules_in(simple)}


@pytest.mark.parametrize(("modules", "known"), [(("net",), True), (("net", "judge"), False)])
def test_of_several_terms_that_of_the_squares_of_the_only_module_counts(modules, known, make):
    """A regularizer beside it has nothing to do with the module's output; players of a game judge each other."""
    smooth = np.linspace(0.02, 0.01, STEPS)
    each = {"Loss/component_fit": FALLING, "Loss/component_smooth": smooth}
    measured = {f"net_{name}": values for name, values in EXPLAINED.items()}
    measured |= {f"{module}_input_mark": np.ones(40) for module in modules}
    history = Record(loss=FALLING + 5 * smooth, each=each, measured=measured).history(make)
    found = squares_term(history, "net")
    assert (found is not None) == known
    if found is not None:
        assert found[1] == pytest.approx(1.0)
        assert found[0].values == pytest.approx(FALLING)


@pytest.mark.parametrize(
    ("unseen", "seen", "count"),
    [
        ([19.0, 20.0, 20.5, 21.0], 26.0, 0),
        ([19.0, 20.0, 20.5, 21.0], 27.5, 1),
        ([19.0, 22.0, 21.5, 21.0], 26.0, 1),
    ],
    ids=["still gains", "far behind", "has lost"],
)
def test_photos_that_still_gain_may_be_further_behind(unseen, seen, count, make):
    rare = {"Test/psnr": unseen, "Test/train_psnr": [20.0, 23.0, 25.0, seen]}
    assert len(results.HeldOutGap()(Record(rare=rare).history(make))) == count


RISEN = 0.1 * np.minimum(np.arange(1, STEPS + 1) / 500, 1.0) ** 4
DESTROYED = np.where(np.arange(STEPS) < 400, FALLING, 3.0)
JUMPS = np.where(np.arange(STEPS) < 500, 0.001, 1.0)


@pytest.mark.parametrize(
    ("rate", "loss", "count"),
    [(RISEN, FALLING, 1), (RISEN, DESTROYED, 0), (JUMPS, FALLING, 0)],
    ids=["late", "destroys", "jumps"],
)
def test_a_rate_that_destroys_what_was_learned_or_jumps_is_no_late_warm_up(rate, loss, count, make):
    history = Record(loss=loss, each={"LearningRate/0": rate}).history(make)
    assert len(rates.RateStartsLate()(history)) == count


def test_an_output_without_a_gradient_is_left_to_the_rule_of_gradients_if_nothing_has_one(make):
    unused = {"net_unused_share": np.ones(40)}
    alone = Record(measured=unused).history(make)
    nothing = Record(measured=unused, each={"Gradients/total_norm": np.zeros(STEPS)}).history(make)
    assert len(targets.OutputUnused()(alone)) == 1
    assert targets.OutputUnused()(nothing) == ()
