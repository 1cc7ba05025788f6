"""Recorded MLflow runs: the file store and the database hold the same."""

import shutil
import sys

import pytest

from fieldwatch.report.imports import BadSource, find_runs
from fieldwatch.report.imports.mlflow_names import parameter

LOSSES = [1 / (1 + number) for number in range(6)]


def chosen(source, name="second"):
    return next(run for run in find_runs(source) if run.name == name)


def test_both_stores_hold_the_same(recorded, database):
    of_files = chosen(recorded / "mlruns").read(False)
    of_database = chosen(database).read(False)
    for run in (of_files, of_database):
        assert (run.tool, run.name, run.config, run.notes) == ("MLflow", "second", {"lr": 0.05}, ())
        assert run.series["train/loss"].steps.tolist() == [0, 10, 20, 30, 40, 50]
        assert run.series["train/loss"].values.tolist() == LOSSES
        assert run.series["val/loss"].values.tolist() == [float("inf"), 0.5]
        assert run.series["train/loss"].seconds[-1] > 0


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.05", 0.05), ("3", 3), ("True", True), ("1e-05", 1e-05), ("007", "007"), ("1_000", "1_000"), ("nan", "nan")],
)
def test_parameters_are_the_numbers_that_were_logged(text, value):
    found = parameter(text)
    assert (found, type(found)) == (value, type(value))


def test_pictures_have_their_name_and_step(recorded):
    pictures = list(chosen(recorded / "mlruns").read(False).pictures())
    assert [(picture.name, picture.step) for picture in pictures] == [("my/picture", 20), ("my/picture", 50)]


def test_reading_a_database_leaves_nothing_next_to_it(database):
    before = database.read_bytes()
    chosen(database).read(False)
    assert database.read_bytes() == before
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def test_a_damaged_database_is_refused(database):
    database.write_bytes(database.read_bytes()[:9000])
    with pytest.raises(BadSource):
        chosen(database).read(False)


def test_a_damaged_line_is_refused_or_left_out(recorded, tmp_path):
    shutil.copytree(recorded / "mlruns", tmp_path / "mlruns")
    (metric,) = (tmp_path / "mlruns").glob("*/second/metrics/train/loss")
    metric.write_text(f"{metric.read_text()}179576\n")
    found = chosen(tmp_path)
    with pytest.raises(BadSource, match="line 7"):
        found.read(False)
    run = found.read(True)
    assert run.series["train/loss"].values.tolist() == LOSSES
    assert any("line 7" in note for note in run.notes)


def test_a_run_that_failed_says_so(recorded, tmp_path):
    shutil.copytree(recorded / "mlruns", tmp_path / "mlruns")
    (meta,) = (tmp_path / "mlruns").glob("*/second/meta.yaml")
    meta.write_text(meta.read_text().replace("status: 3", "status: 4"))
    assert any("failed" in note for note in chosen(tmp_path).read(False).notes)


def test_no_reader_needs_the_libraries(recorded, database):
    libraries = {"wandb", "mlflow", "sqlalchemy"}
    # Other tests of this process may have loaded them.
    before = libraries & sys.modules.keys()
    for source in (recorded / "wandb", recorded / "mlruns", database):
        find_runs(source)[0].read(False)
    assert libraries & sys.modules.keys() == before
