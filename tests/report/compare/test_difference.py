"""First step at which two runs differ bitwise: the metric, and the size of the difference."""

import numpy as np
import pytest

from fieldwatch.report.compare import first_difference

LOSS = np.linspace(1, 0.5, 40)


def changed(values, step, factor):
    return np.where(np.arange(len(values)) == step, values * factor, values)


def test_equal_runs_are_equal_to_the_bit(side, line):
    nan = changed(LOSS, 7, np.nan)
    one, other = (side(name, {"Loss/total": line(nan), "Eval/mae": [3.0, 2.0]}) for name in "ab")
    found = first_difference(one, other, positions=False)
    assert found.identical
    assert (found.equal_rows, found.equal_to, found.same, found.longer) == (40, 39, 2, "")
    assert "2 metrics at 40 steps" in found.sentence


def test_the_last_bit_is_enough_and_the_size_is_told(side):
    other = LOSS.copy()
    other[12] = np.nextafter(other[12], 1)
    found = first_difference(side("a", {"x": LOSS, "y": LOSS}), side("b", {"x": LOSS, "y": other}), positions=False)
    assert [(each.metric, each.step) for each in found.first] == [("y", 12)]
    assert found.equal_rows == 12
    assert 0 < found.first[0].relative < 1e-15
    assert "for 12 steps," in found.sentence
    assert "at step 12 in y" in found.sentence


def test_of_several_metrics_the_earliest_is_first_and_the_others_are_counted(side):
    b = {"x": changed(LOSS, 20, 1.1), "y": changed(LOSS, 5, 2.0), "z": LOSS}
    found = first_difference(side("a", dict.fromkeys("xyz", LOSS)), side("b", b), positions=False)
    assert [each.metric for each in found.first] == ["y"]
    assert found.first[0].relative == pytest.approx(0.5)
    assert (found.also, found.same) == (1, 1)


def test_a_longer_run_does_not_differ_but_goes_on(side):
    found = first_difference(side("a", {"x": LOSS}), side("b", {"x": LOSS[:25]}), positions=False)
    assert found.identical
    assert (found.equal_rows, found.longer) == (25, "a")


def test_a_row_that_is_missing_is_a_difference(side, line):
    holes = line(np.delete(LOSS, 9), np.delete(np.arange(40), 9))
    found = first_difference(side("a", {"x": LOSS}), side("b", {"x": holes}), positions=False)
    assert (found.first[0].step, found.first[0].missing) == (9, "b")
    assert "has a row" in found.sentence


def test_clocks_and_machines_are_left_out_and_named(side):
    names = ("Time/step", "Machine/CPU/process_percent", "Memory/peak_MB", "perf/steps_per_sec", "train/loss")
    found = first_difference(
        side("a", dict.fromkeys(names, LOSS)), side("b", dict.fromkeys(names, 2 * LOSS)), positions=False
    )
    assert found.compared == ("train/loss",)
    assert found.left_out == names[:-1]


def test_beside_event_files_values_are_compared_as_these_keep_them(side, line):
    values = LOSS + 1e-9
    rounded = line(values.astype(np.float32).astype(np.float64))
    one = side("a", {"x": line(values)})
    other = side("b", {"x": rounded}, kind="tensorboard")
    assert first_difference(one, other, positions=True).identical
    assert "as float32" in first_difference(one, other, positions=True).sentence


def test_runs_without_anything_in_common_are_told_so(side, line):
    found = first_difference(side("a", {"x": LOSS}), side("b", {"y": LOSS}), positions=False)
    assert not found.identical
    assert "share no metric" in found.sentence
    late = side("b", {"x": line(LOSS, np.arange(100, 140))})
    assert "no step" in first_difference(side("a", {"x": LOSS}), late, positions=False).sentence


def test_runs_that_differ_at_once_say_so(side):
    found = first_difference(side("a", {"x": LOSS}), side("b", {"x": LOSS + 1}), positions=False)
    assert found.equal_rows == 0
    assert "their first step" in found.sentence
