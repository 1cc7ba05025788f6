"""``fieldwatch health``: the most likely cause first, and what it explains below it."""

import json

import numpy as np
import pytest
from torch import nn

from fieldwatch import Outputs, Run
from fieldwatch.cli import main
from fieldwatch.cli.annotations import annotation


def record_jump(folder):
    """Record 600 steps of a run whose learning rate jumps at step 300 and whose loss then stays high."""
    noise = np.random.default_rng(0).standard_normal(600)
    with Run(folder, outputs=Outputs(sinks=())) as run:
        run.track(model=nn.Linear(1, 1))
        for step in run.steps(600):
            broken = step.index >= 300
            loss = (5.0 if broken else 0.3) * (1 + 0.05 * noise[step.index])
            step.record({"Loss/total": loss, "LearningRate/0": 0.1 if broken else 1e-3})


@pytest.fixture
def jumped(tmp_path):
    record_jump(tmp_path / "run")
    return tmp_path / "run"


def test_the_cause_comes_first_and_names_what_it_explains(jumped, capsys):
    assert main(["health", str(jumped)]) == 1
    printed = capsys.readouterr().out
    # A busy machine adds a note about slow steps.
    lines = [line for line in printed.splitlines() if line.startswith(("warning", "error"))]
    assert len(lines) == 1
    assert "RateJump (0) at step 316" in lines[0]
    assert "certain" in lines[0]
    assert "LossJump [Loss/total]" in printed


def test_json_carries_the_verdict_and_who_explains_whom(jumped, capsys):
    assert main(["health", str(jumped), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    verdict = answer["verdict"]
    assert (verdict["rule"], verdict["step"], verdict["because_of"]) == ("RateJump", 316, "")
    assert verdict["confidence"] >= 0.9
    cause, *others = answer["findings"]
    assert cause["rule"] == "RateJump"
    serious = [one for one in others if one["severity"] != "note"]
    assert {one["because_of"] for one in serious} == {"RateJump [0] at step 316"}
    assert len(verdict["consequences"]) == len(serious) >= 1


def test_a_healthy_run_has_no_verdict(tmp_path, capsys):
    with Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(model=nn.Linear(1, 1))
        for step in run.steps(50):
            step.record({"Loss/total": 1 / (1 + step.index)})
    assert main(["health", str(tmp_path / "run"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["findings"]) == (None, [])


def test_a_run_that_failed_without_a_finding_is_not_called_healthy(tmp_path, capsys):
    with pytest.raises(ValueError, match="planted"), Run(tmp_path / "run", outputs=Outputs(sinks=())) as run:
        run.track(model=nn.Linear(1, 1))
        next(run.steps(50))
        raise ValueError("planted")
    capsys.readouterr()
    assert main(["health", str(tmp_path / "run")]) == 3
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert printed.count("planted") == 1
    assert "died of exception" in printed
    assert "healthy" not in printed


def test_annotations_of_a_workflow_carry_every_finding(jumped, capsys):
    assert main(["health", str(jumped), "--format", "github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if line.startswith("::")]
    assert found[0].startswith(("::warning title=RateJump (0) at step 316", "::error title=RateJump (0) at step 316"))
    assert "%0A" in found[0]  # the remedy is on a line of its own
    assert len(lines) == len(found) + 1


def test_the_format_json_is_that_of_the_flag(jumped, capsys):
    main(["health", str(jumped), "--json"])
    by_flag = json.loads(capsys.readouterr().out)
    main(["health", str(jumped), "--format", "json"])
    assert json.loads(capsys.readouterr().out) == by_flag


def test_no_text_ends_an_annotation_or_begins_another():
    text = annotation("error", "a: b, c%\n::error::x", "50% of it\r\n::warning::y")
    assert text == "::error title=a%3A b%2C c%25%0A%3A%3Aerror%3A%3Ax::50%25 of it%0D%0A::warning::y"
