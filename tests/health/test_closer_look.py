"""The command that looks at a step again."""

from fieldwatch.health import replay_command
from fieldwatch.record import Manifest, new_segment


def made(folder, *, pipeline="", command=("train.py", "--lr", "1 e"), steps=(10, 20)):
    about = {"pipeline": pipeline} if pipeline else {}
    folder.mkdir()
    Manifest(config={}, about=about, segments=(new_segment(0) | {"command": list(command)},)).write(folder)
    for step in steps:
        (folder / "checkpoints" / f"step_{step:010d}").mkdir(parents=True)
    return folder


def test_a_run_of_a_pipeline_needs_no_script(tmp_path):
    run = made(tmp_path / "a run", pipeline="video")
    assert replay_command(run, 12) == f"fieldwatch replay '{run}' --step 12"


def test_a_run_of_a_loop_names_its_script_and_its_arguments(tmp_path):
    run = made(tmp_path / "run")
    assert replay_command(run, 12) == f"fieldwatch replay train.py {run} --step 12 -- --lr '1 e'"


def test_a_loop_without_a_script_leaves_its_name_open(tmp_path):
    run = made(tmp_path / "run", command=("-c",))
    assert replay_command(run, 12) == f"fieldwatch replay SCRIPT.py {run} --step 12"


def test_a_step_before_the_first_checkpoint_can_be_replayed_as_well(tmp_path):
    run = made(tmp_path / "run", pipeline="video", steps=())
    assert replay_command(run, 3) == f"fieldwatch replay {run} --step 3"


def test_a_folder_without_a_run_offers_nothing(tmp_path):
    assert replay_command(tmp_path, 3) == ""
