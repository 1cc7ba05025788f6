"""Tables of metrics: sparse cells, steps or epochs, hyperparameters, and damaged lines."""

import math

import pytest

from fieldwatch.report.imports import BadSource, find_runs, refuse_bad_steps


@pytest.fixture
def read(tmp_path):
    """Write a table and read it."""

    def read(text, *, partial=False):
        path = tmp_path / "metrics.csv"
        path.write_text(text)
        (found,) = find_runs(path)
        run = found.read(partial)
        refuse_bad_steps(run)
        return run

    return read


def test_an_empty_cell_is_no_value(read):
    run = read("epoch,step,train_loss,val_loss,phase\n0,0,1.5,,a\n0,10,nan,,a\n0,10,,0.25,b\n")
    loss = run.series["train_loss"]
    assert loss.steps.tolist() == [0, 10]
    assert loss.values[0] == 1.5
    assert math.isnan(loss.values[1])
    assert run.series["val_loss"].steps.tolist() == [10]
    assert run.axis == "step"
    assert "phase" not in run.series
    assert any("phase" in note for note in run.notes)


def test_a_table_by_epoch_keeps_its_axis(read):
    run = read("epoch;loss;time\n1;0.5;3\n2;0.25;5\n")
    assert run.axis == "epoch"
    assert run.series["loss"].positions.tolist() == [1, 2]
    assert run.series["loss"].seconds.tolist() == [0, 2]
    assert "time" not in run.series


def test_hyperparameters_of_lightning_are_the_config(read, tmp_path):
    (tmp_path / "hparams.yaml").write_text("lr: 0.01\nwidth: 32\nname: 'a'\nbias: true\n")
    assert read("step,loss\n0,1\n").config == {"lr": 0.01, "width": 32, "name": "a", "bias": True}
    (tmp_path / "hparams.yaml").write_text("model:\n  width: 32\n")
    run = read("step,loss\n0,1\n")
    assert run.config == {}
    assert any("hparams.yaml" in note for note in run.notes)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("step,loss\n0,1\n1\n", "line 3"),
        ("step,loss\n0,1\n1,a\n", "line 3"),
        ("step,loss\n0,1\n0.5,1\n", "line 3"),
        ("step,loss\n,1\n", "line 2"),
        ("step,loss\n-1,1\n", "-1"),
        ("step,loss\n", "no step"),
        ("step,loss\n0,\n", "no step"),
    ],
)
def test_a_damaged_table_is_refused_with_the_place(read, text, where):
    with pytest.raises(BadSource, match=where):
        read(text)


def test_a_table_is_read_in_part_if_wanted(read):
    run = read("step,loss\n0,1\n1,0.5\n2", partial=True)
    assert run.series["loss"].steps.tolist() == [0, 1]
    assert any("line 4" in note for note in run.notes)
