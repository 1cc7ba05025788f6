"""The command that looks at a step again is offered only if the step can be reached."""

import pytest

from fieldwatch.health import replay_command
from fieldwatch.record import Manifest, new_segment


def made(folder, *, pipeline="", command=("train.py", "--lr", "1 e"), steps=(10, 20)):
    about = {"pipeline": pipeline} if pipeline else {}
    folder.mkdir()
    Manifest(config={}, about=about, segments=(new_segment(0) | {"command": list(command)},)).write(folder)
    for step in steps:
        (folder / "checkpoints" / f"step_{step:010d}").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("step", "offered"), [(9, False), (10, True), (25, True)])
def test_a_checkpoint_at_or_before_the_step_is_needed(tmp_path, step, offered):
    assert bool(replay_command(made(tmp_path / "run"), step)) is offered


def test_a_run_of_a_pipeline_needs_no_script(tmp_path):
    run = made(tmp_path / "a run", pipeline="video")
    assert replay_command(run, 12) == f"fieldwatch replay '{run}' --step 12"


def test_a_run_of_a_loop_names_its_script_and_its_arguments(tmp_path):
    run = made(tmp_path / "run")
    assert replay_command(run, 12) == f"fieldwatch replay train.py {run} --step 12 -- --lr '1 e'"


def test_a_loop_without_a_script_leaves_its_name_open(tmp_path):
    run = made(tmp_path / "run", command=("-c",))
    assert replay_command(run, 12) == f"fieldwatch replay SCRIPT.py {run} --step 12"


def test_no_run_and_no_checkpoint_offer_nothing(tmp_path):
    assert replay_command(tmp_path, 3) == ""
    assert replay_command(made(tmp_path / "run", steps=()), 3) == ""
