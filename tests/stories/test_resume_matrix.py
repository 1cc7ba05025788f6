"""A resumed run is the same run: splats stopped at every kind of place, and what happens without parts of its state."""

import importlib
import os
import signal
import time

import pytest

from fieldwatch import Interrupted
from fieldwatch.record import read_events, read_manifest


@pytest.fixture
def torture(benchmark):
    """Import a module of the torture."""
    return lambda name: benchmark(f"torture.{name}")


@pytest.mark.usefixtures("unchecked")
def test_a_run_stopped_everywhere_is_the_same_run_and_needs_every_part_of_its_state(torture, tmp_path):
    rows = torture("resume").run_resume_matrix(tmp_path, quick=True)
    assert [row for row in rows if row.verdict != "holds"] == []
    assert sum("stopped" in row.what for row in rows) == 9
    assert sum("without" in row.what and "resumed" in row.what for row in rows) == 4


def test_a_control_that_changes_nothing_is_found_out(torture, tmp_path):
    """Negative control of the controls: a part that nothing needs does not hold."""
    resume = torture("resume")
    losses = [1.0, float("nan")]
    one = resume.Trace(losses=losses, state={"a": {"b": [1, 2]}}, numbers={})
    assert resume._unlike(one, one, 0) == []
    assert resume.differences(one.state, {"a": {"b": [1, 3]}}) == ["a/b"]
    assert resume.differences({"a": 1, "b": 2}, {"a": 1}) == ["b"]
    fresh = {"a": {"b": 0, "c": 5}}
    assert resume._replaced({"a": {"b": 1, "c": 2}}, fresh, ("x/a/b",), "x") == {"a": {"b": 0, "c": 2}}
    assert resume._replaced({"a": {"d": 7}}, fresh, ("x/a/d",), "x") == {"a": {"d": 0}}


@pytest.mark.usefixtures("unchecked")
def test_an_interrupted_evaluation_is_done_again_and_interrupted_products_are_made(torture, tmp_path, monkeypatch):
    case = torture("resume_cases").splats_case(tmp_path / "data", streams=True)
    module = importlib.import_module("fieldwatch.recon.pipelines.splats.algorithm")
    evaluator = importlib.import_module("fieldwatch.recon.pipelines.splats.evaluator")
    monkeypatch.setattr("fieldwatch.checkpoint.StopRequest.overdue", property(lambda stop: stop.received))
    folder = tmp_path / "run"
    write = module.write_products

    def evaluate(*_, between, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        between()
        pytest.fail("the evaluation was to be given up")

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(evaluator, "evaluate", evaluate)
        case.train(folder)

    def products(*arguments, between, **options):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        return write(*arguments, between=between, **options)

    with monkeypatch.context() as patched, pytest.raises(Interrupted) as caught:
        patched.setattr(module, "write_products", products)
        case.train(folder)
    assert caught.value.code == 138
    assert read_manifest(folder).state == "interrupted"
    outcome = case.train(folder)
    assert (folder / "products" / "point_cloud.ply").exists()
    assert outcome.products
    gone = [event for event in read_events(folder) if event["kind"] == "interrupted"]
    assert [(event["abandoned"], event["resumes_from"]) for event in gone][-1] == ("the products", 120)
    assert read_manifest(folder).state == "finished"
