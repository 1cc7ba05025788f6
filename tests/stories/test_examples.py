"""The examples run, and adopting the toolkit changes no number."""

import re
from pathlib import Path

import pytest

from fieldwatch.record import read_history
from fieldwatch.record.memory import read_memory_log

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(python):
    def call(script, *arguments):
        done = python(EXAMPLES / script, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.mark.parametrize("pair", ["adopt_torch", "adopt_neus"])
def test_before_and_after_print_the_same_numbers(run, pair, tmp_path):
    before = run(f"{pair}/before.py")
    assert "loss" in before
    assert run(f"{pair}/after.py", tmp_path / "run") == before
    assert (tmp_path / "run" / "journal.jsonl").stat().st_size > 10_000
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_a_custom_rule_reports_its_finding_at_the_right_step(run, tmp_path):
    assert "StuckAt [Field/sharpness] at step 100" in run("custom_rule.py", tmp_path / "run")


def test_a_custom_sink_sees_every_row(run, tmp_path):
    assert "best Loss/total 0.0 at step 120" in run("custom_sink.py", tmp_path / "run")


def test_a_profiled_loop_names_what_grows(run, tmp_path):
    assert "renders hold 3.12 MiB" in run("profile_any_loop.py", tmp_path / "out")
    first, *_, last = read_memory_log(tmp_path / "out")
    grown = last["owners"]["data"]["renders"] - first["owners"]["data"]["renders"]
    assert grown == 190 * 4096 * 4  # one render for each of the iterations between the two accounts
    assert last["owners"]["parameters"] == first["owners"]["parameters"]


def test_splats_from_parts_grow_and_are_recorded(run, tmp_path):
    out = run("splats_from_parts.py", tmp_path / "run", 300)
    gaussians, decibel = re.match(r"(\d+) Gaussians, ([\d.]+) dB on 3 held-out views", out).groups()
    assert int(gaussians) > 2000
    assert float(decibel) > 18
    history = read_history(tmp_path / "run")
    grown = history.events("growth")
    size = history["Model/size"].values
    assert size[0] + sum(event["added"] - event["removed"] for event in grown) == int(gaussians)
    last = read_memory_log(tmp_path / "run")[-1]
    parameters = {name: last["owners"]["parameters"][name] for name in ("means", "rest")}
    assert parameters["rest"] == 15 * parameters["means"]  # 45 floats beside 3, after every replacement
    assert "densify" in {name.removeprefix("Time/") for name in history.names()}
