"""Values that are not finite, put into a run in ten ways; and a pipeline that goes back, bit for bit as told to."""

import math

import pytest
import torch

from fieldwatch import Checkpoints, Rollback, Terms, read_history
from fieldwatch.cli import main
from fieldwatch.recon.pipelines.splats import algorithm, start
from fieldwatch.record import read_events

SCHEDULE = (
    "-r none --coarse-iterations 3500 --schedule-scale 0.02 --growth-pull 1e-5 --growth-cap 300 --keep-last 30"
).split()
"""70 steps: growth at 20, 40 and 60, checkpoints every 20."""
BAD = range(45, 55)


@pytest.fixture
def injections(benchmark):
    """The torture, whose short form this is."""
    return benchmark("torture.injections")


def test_ten_kinds_of_bad_values_in_the_middle_of_a_run_never_spread_and_are_named(injections, tmp_path):
    (row,) = injections.run_injections(tmp_path, ("mid",))
    assert row["holds"], row["why"]
    assert row["found"] == "10 of 10"


def test_the_torture_sees_a_run_without_the_guard_fail(injections, tmp_path, monkeypatch):
    """Negative control: with the guard switched off, the same judge objects."""
    monkeypatch.setattr("fieldwatch.run.step_update.guarded_step", lambda optimizer, _: optimizer.step())
    kind = next(kind for kind in injections.KINDS if kind.name == "one gradient NaN")
    seen = injections.inject(tmp_path / "run", kind, (60,))
    assert seen.spread
    assert injections.judge(kind, (60,), seen)


def test_gaussians_of_a_run_that_went_back_are_those_of_one_that_was_told_to_skip(
    photos, tmp_path, small, monkeypatch, capsys
):
    original = algorithm.loss_terms

    def spoilt(config, scene, one, *further):
        terms = original(config, scene, one, *further)
        if one.step not in BAD:
            return terms
        return Terms(**{name: (weight, value * math.nan) for name, (weight, value) in terms.items()})

    monkeypatch.setattr(algorithm, "loss_terms", spoilt)

    def trained(name):
        code = main(["train", "splats", "--data", str(photos), "--out", str(tmp_path / name), *small, *SCHEDULE])
        assert code in (0, 1), capsys.readouterr().err
        return Checkpoints(tmp_path / name / "checkpoints").read("last")["gaussians"]

    back = trained("back")
    (event,) = [event for event in read_events(tmp_path / "back") if event["kind"] == "rolled_back"]
    assert (event["to"], event["skipped"]) == (40, [43, 56])
    assert "term rendering" in event["cause"]
    monkeypatch.setattr(start, "ROLLBACK", Rollback(skip=((43, 56),)))
    skipped = trained("told")
    assert back.keys() == skipped.keys()
    assert all(torch.equal(back[name], skipped[name]) for name in back)
    one, other = (read_history(tmp_path / name)["Loss/total"].values for name in ("back", "told"))
    assert one.tolist()[:40] + one.tolist()[60:] == other.tolist()[:40] + other.tolist()[60:]
