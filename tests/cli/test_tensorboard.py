"""The command that `fieldwatch tensorboard` starts. tests/stories tests the tab in TensorBoard."""

import sys
from pathlib import Path

import pytest

from fieldwatch.cli import main
from fieldwatch.cli.output import BadInput
from fieldwatch.cli.tensorboard import command, split_flags


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


def test_flags_of_tensorboard_are_passed_on_with_what_follows_them(tmp_path, capsys):
    assert main(["tensorboard", str(tmp_path), "--port", "6010", "--reload_interval", "5", "--print"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"--logdir {tmp_path} --reload_interval 5\n")
    assert "--port 6010" in printed


@pytest.mark.parametrize(
    ("words", "own", "passed_on"),
    [
        (["runs/a", "--bind-all"], ["runs/a", "--bind-all"], []),
        (["runs/a", "--samples_per_plugin=images=9"], ["runs/a"], ["--samples_per_plugin=images=9"]),
        (["--port=1", "runs/a", "--print", "--dark", "x"], ["--port=1", "runs/a", "--print"], ["--dark", "x"]),
        (["--help-all"], ["--help-all"], []),
    ],
)
def test_a_line_is_split_at_the_first_flag_that_is_not_ours(words, own, passed_on):
    assert split_flags(words) == (own, passed_on)


def test_without_its_package_the_command_says_what_installs_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["tensorboard", str(tmp_path)]) == 2
    assert "pip install 'fieldwatch[tensorboard]'" in capsys.readouterr().err
