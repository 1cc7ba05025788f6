"""Which run is better, and why: final and best values, alignment, differing configs, and the sentences about them."""

import re

import numpy as np
import pytest

from fieldwatch.recon.pipelines.normals import NORMALS_METRICS
from fieldwatch.recon.pipelines.splats import SPLATS_METRICS
from fieldwatch.recon.pipelines.video import VIDEO_METRICS
from fieldwatch.report.compare import (
    NoSuchMetric,
    RunPhase,
    as_json,
    compare,
    figure_of,
    meaning_of,
    sentences,
    title,
)


def test_the_value_at_the_end_is_a_mean_where_there_are_many(line):
    noisy = np.where(np.arange(200) % 2, 1.0, 3.0)
    figure = figure_of(line(noisy), "lower", np.arange(200.0))
    assert (figure.final, figure.averaged) == (2.0, 10)
    assert (figure.best, figure.best_step) == (1.0, 1)
    few = figure_of(line([3.0, 1.0, 2.0]), "higher", np.arange(3.0))
    assert (few.final, few.averaged, few.best) == (2.0, 1, 3.0)


def test_a_run_that_ends_not_finite_cannot_win(side):
    found = compare(
        [
            side("a", {"Eval/mae": [2.0, 0.1, np.nan]}),
            side("b", {"Eval/mae": [3.0, 2.5]}),
            side("c", {"Eval/mae": [4.0]}),
        ]
    )
    assert found.headline.best_final == "b"
    assert found.headline.best_ever == "a"
    assert found.headline.figures["a"].bad == 1
    assert any("1 of 3 values" in text for text in sentences(found))


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("val/acc", "higher"), ("epoch_val_loss", "lower"), ("batch_acc", "higher"), ("valLoss", "lower"),
        ("test/mIoU", "higher"), ("lr-Adam", "none"), ("foo", "none"), ("grad_norm", "none"), ("PSNR", "higher"),
        ("train/learning_rate", "none"), ("eval/f1_score", "higher"), ("word_error_rate", "lower"),
        ("loss_scale", "none"), ("Loss/total", "lower"),
    ],
)  # fmt: skip
def test_which_way_is_good_is_read_from_the_name_where_nobody_declares_it(name, better):
    assert meaning_of(name).better == better


def test_names_never_say_the_opposite_of_a_declaration():
    opposite = {"higher": "lower", "lower": "higher"}
    declared = [
        m for all_of in (VIDEO_METRICS, SPLATS_METRICS, NORMALS_METRICS) for m in all_of if m.better in opposite
    ]
    wrong = [metric.name for metric in declared if meaning_of(metric.name).better == opposite[metric.better]]
    assert wrong == ["Eval/accuracy_percent"]  # a distance there; its own runs declare it, and a declaration wins
    assert meaning_of("Eval/accuracy_percent", "lower").better == "lower"


def test_held_out_quality_decides_and_the_sentence_says_by_what(side):
    a = {"Loss/total": [1.0], "Test/psnr": [30.0], "Time/step": [5.0]}
    b = {"Loss/total": [0.5], "Test/psnr": [28.0], "Time/step": [4.0]}
    found = compare([side("a", a), side("b", b)])
    assert [metric.name for metric in found.metrics] == ["Test/psnr", "Loss/total"]
    assert title(found).startswith("a is best: Test/psnr 30,")
    assert "b with 28" in title(found)
    assert any("best in 1 of the 2 metrics" in text for text in sentences(found))


def test_runs_are_aligned_by_step_time_and_phase(side, line):
    phases = (RunPhase(name="warm", first=0, last=3), RunPhase(name="main", first=4, last=None))
    falling = line(10.0 - np.arange(10))
    slow = line(12.0 - np.arange(6), pace=2.0)
    one = side("a", {"Eval/mae": falling}, phases=phases)
    other = side("b", {"Eval/mae": slow}, phases=phases)
    points = compare([one, other]).points
    last = points["step"][-1]
    assert (last.place, last.values, last.best) == (5, {"a": 5.0, "b": 7.0}, "a")
    at = points["time"][-1]
    assert (at.place, at.values) == (4.5, {"a": 1.0, "b": 10.0})
    assert [point.values for point in points["phase"]] == [{"a": 7.0, "b": 9.0}, {"a": 1.0, "b": 7.0}]


def test_a_run_that_is_ahead_only_because_it_is_longer_is_told(side):
    found = compare([side("a", {"Eval/mae": 10.0 - np.arange(10)}), side("b", {"Eval/mae": 9.0 - np.arange(5)})])
    assert found.headline.best_final == "a"
    assert any("At step 4" in text for text in sentences(found))


def test_only_what_differs_in_config_and_environment_is_told(side):
    one = side(
        "a", {"x": [1.0]}, config={"lr": 0.1, "net.depth": 3, "seed": 1}, environment={"torch": "2", "host": "h"}
    )
    other = side(
        "b", {"x": [1.0]}, config={"lr": 0.1, "net.depth": 4, "seed": 2}, environment={"torch": "3", "host": "h"}
    )
    found = compare([one, other])
    assert found.config == {"net.depth": {"a": 3, "b": 4}, "seed": {"a": 1, "b": 2}}
    assert found.environment == {"torch": {"a": "2", "b": "3"}}
    assert any("configs differ in net.depth." in text for text in sentences(found))


def test_runs_of_different_pipelines_are_compared_by_what_they_share(side):
    one = side("a", {"Loss/total": [1.0], "Test/psnr": [1.0]}, pipeline="splats")
    found = compare([one, side("b", {"Loss/total": [2.0]}, pipeline="normals")])
    assert [metric.name for metric in found.metrics] == ["Loss/total"]
    assert title(found).startswith("Different pipelines")
    assert found.partly == {"Test/psnr": ("a",)}


def test_empty_runs_and_one_row_are_no_trouble(side):
    found = compare([side("a", {}), side("b", {"Loss/total": [2.0]}), side("c", {"Loss/total": [2.0]})])
    assert any("no scalars" in text for text in sentences(found))
    (pair,) = found.divergences
    assert re.fullmatch(r"b and c .*equal.*: 1 metric at 1 step .*step 0", pair.sentence)
    nothing = compare([side("a", {}), side("b", {})])
    assert nothing.metrics == nothing.divergences == ()
    assert as_json(nothing)["verdict"]["best"] is None


def test_the_same_runs_are_equal_and_nobody_wins(side):
    found = compare([side(name, {"Loss/total": [2.0, 1.0]}) for name in "abc"])
    assert title(found).startswith("The 3 runs are bitwise equal")
    assert found.headline is None


def test_metrics_are_chosen_by_name_and_pattern_and_unknown_ones_refused(side):
    sides = [side(name, {"Loss/total": [2.0], "Time/step": [1.0], "Time/data": [1.0]}) for name in "ab"]
    assert [metric.name for metric in compare(sides, ["Time/*", "Loss/total"]).metrics] == [
        "Time/step",
        "Time/data",
        "Loss/total",
    ]
    with pytest.raises(NoSuchMetric, match="metric 'Losss/total'"):
        compare(sides, ["Losss/total"])


def test_total_losses_of_other_weights_come_with_a_warning(side):
    sides = [
        side(name, {"Loss/total": [value]}, config={"eikonal_weight": value}) for name, value in (("a", 1), ("b", 2))
    ]
    assert any("eikonal_weight differs" in text for text in sentences(compare(sides)))
