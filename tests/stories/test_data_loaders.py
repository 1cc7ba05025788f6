"""A killed training resumes its data loader to the same bits; a loader that cannot is named before the first step."""

import os
from pathlib import Path

import pytest

from fieldwatch import read_history
from small_products import small_products

ROOT = Path(__file__).parents[2]


@pytest.fixture
def loaders(benchmark, python, monkeypatch):
    """The trials; their trainings are processes that have imported torch."""
    module = benchmark("torture.loaders")
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'benchmarks'}"}

    def start(folder, workers, *, seed, options=()):
        return python(module.__file__, folder, workers, module.STEPS, seed, *options, environment=environment)

    monkeypatch.setattr(module, "start", start)
    return module


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_in_the_middle_of_an_epoch_it_goes_on_to_the_same_bits(loaders, tmp_path, workers):
    row = loaders.exact_row(tmp_path, workers, persistent=False)
    assert row.verdict == "holds", (row.found, row.why)


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_is_named_before_the_first_step_with_the_remedy(loaders, tmp_path, workers):
    row = loaders.told_row(tmp_path, workers)
    assert row.verdict == "holds", row.found


def test_the_trials_notice_a_loader_that_does_not_repeat(loaders, tmp_path):
    """Without the loader's state the same comparison has to differ: it is no matter of course."""
    for place, options in (("whole", []), ("cut", ["--kill-at", "13"]), ("cut", [])):
        loaders.start(tmp_path / place, 0, seed=1, options=[*options, "--plain"])
    same, weights = loaders.equal(tmp_path / "whole", tmp_path / "cut")
    assert same < loaders.STEPS
    assert not weights


def test_our_pipelines_forget_nothing(benchmark, tmp_path):
    cases = benchmark("torture.resume_cases")
    made = [
        cases.video_case(tmp_path / "data", amp=False, streams=False),
        cases.splats_case(tmp_path / "data", streams=False),
        cases.normals_case(tmp_path / "data"),
    ]
    for number, case in enumerate(made):
        with small_products():
            case.train(tmp_path / str(number))
        assert read_history(tmp_path / str(number)).events("not_kept") == (), case.name
