"""Which TensorBoard is started for which runs; the tab in it is told in tests/stories."""

from pathlib import Path

import pytest

from fieldwatch.cli.output import BadInput
from fieldwatch.cli.tensorboard import command


def listed(*runs):
    line = command([Path(run) for run in runs])
    assert line[-2] == "--logdir_spec"
    return line[-1].split(",")


def test_runs_of_one_name_are_told_apart_by_the_folders_above(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert listed("x/bear", "y/bear", "z/fox") == ["x/bear:x/bear", "y/bear:y/bear", "fox:z/fox"]
    assert listed("x/bear", "x/bear/../bear") == ["bear (1):x/bear", "bear (2):x/bear/../bear"]


def test_a_run_that_is_named_by_a_dot_has_its_folders_name(tmp_path, monkeypatch):
    (tmp_path / "bear" / "tensorboard").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "bear")
    assert listed(".", "/fox") == ["bear:tensorboard", "fox:/fox"]


def test_what_parts_tensorboards_list_does_not_get_into_it():
    assert listed("/a:b", "/c") == ["a_b:/a:b", "c:/c"]
    with pytest.raises(BadInput, match=r"'/a,b'.*give it alone"):
        command([Path("/a,b"), Path("/c")])
    assert command([Path("/a,b")])[-2:] == ["--logdir", "/a,b"]
