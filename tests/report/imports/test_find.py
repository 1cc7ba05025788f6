"""Runs of other tools are found in files and folders, and one of several is chosen by its name."""

import pytest

from fieldwatch.report.imports import BadSource, choose_run, find_runs


@pytest.fixture
def logs(tmp_path):
    """Two tables, each in a folder of its own, and a table without steps."""
    for name in ("version_0", "version_1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("step,loss\n0,1\n")
    (tmp_path / "people.csv").write_text("name,age\na,1\n")
    return tmp_path


def test_every_run_below_a_folder_is_found(logs):
    assert [run.name for run in find_runs(logs)] == ["version_0/metrics.csv", "version_1/metrics.csv"]


def test_several_runs_are_listed_and_one_is_chosen(logs):
    found = find_runs(logs)
    with pytest.raises(BadSource) as refused:
        choose_run(found, logs, None)
    assert all(run.name in str(refused.value) for run in found)
    assert choose_run(found, logs, found[1].name) is found[1]
    with pytest.raises(BadSource, match="gone"):
        choose_run(found, logs, "gone")


def test_a_table_without_steps_is_no_run(logs):
    with pytest.raises(BadSource):
        find_runs(logs / "people.csv")


def test_runs_of_one_name_are_told_apart_by_identity(recorded):
    found = find_runs(recorded / "mlruns")
    assert sorted(run.name for run in found) == ["first", "second"]
    twice = [found[0], found[0]]
    with pytest.raises(BadSource, match=found[0].identity):
        choose_run(twice, recorded, found[0].name)
