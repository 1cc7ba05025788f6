"""The examples run, and adopting the toolkit changes no number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script, *arguments):
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src")}
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("pair", ["adopt_torch", "adopt_neus"])
def test_before_and_after_print_the_same_numbers(pair, tmp_path):
    before = run(f"{pair}/before.py")
    assert "loss" in before
    assert run(f"{pair}/after.py", tmp_path / "run") == before
    assert (tmp_path / "run" / "journal.jsonl").stat().st_size > 10_000
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_an_own_rule_reports_its_finding_at_the_right_step(tmp_path):
    assert "StuckAt [Field/sharpness] at step 100" in run("own_rule.py", tmp_path / "run")


def test_an_own_sink_sees_every_row(tmp_path):
    assert "best Loss/total 0.0 at step 120" in run("own_sink.py", tmp_path / "run")
