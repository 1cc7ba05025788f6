"""The outcome of a finished run."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from fieldwatch import Finding, History, Outputs, Run
from fieldwatch.run import Outcome


@dataclass(frozen=True)
class Scores:
    """An evaluation."""

    metrics: dict[str, float]


@pytest.fixture
def ended(tmp_path):
    """A run of one step with a finding of this severity."""

    def make(severity):
        def rule(history: History) -> Finding:
            return Finding(rule="R", step=0, severity=severity, message="m", remedy="r")

        with Run(tmp_path, outputs=Outputs(sinks=(), rules=[rule])) as run:
            for step in run.steps(1):
                step.record({"a": 1.0})
        return run

    return make


@pytest.mark.parametrize(("severity", "exit_code"), [("note", 0), ("warning", 0), ("error", 1)])
def test_an_outcome_contains_findings_exit_code_and_products(ended, tmp_path, severity, exit_code):
    products = {"mesh": Path("mesh.ply")}
    outcome = Outcome.of(ended(severity), Scores({"Eval/mae": 1.5}), products)
    assert (outcome.folder, outcome.exit_code, outcome.products) == (tmp_path, exit_code, products)
    assert [finding.severity for finding in outcome.findings] == [severity]
    assert outcome.metrics == {"Eval/mae": 1.5}


def test_a_reopened_finished_run_has_no_evaluation(ended):
    outcome = Outcome.of(ended("note"), None)
    assert (outcome.evaluation, outcome.metrics, outcome.products) == (None, {}, {})
