"""A normals run reopens unchanged."""

from dataclasses import replace

import pytest
import torch

from fieldwatch import Declared, Outputs, Run
from fieldwatch.checkpoint import CheckpointError
from fieldwatch.recon.data import synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.pipelines.normals.config import FieldOptions, NormalsConfig, PoseOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.start import prepare_scene, start_run
from fieldwatch.recon.pipelines.normals.stored import open_run, stored_config
from fieldwatch.record import NotARun
from fieldwatch.record.config import preset_of_run

PRESET = NormalsConfig(
    views=3,
    size=24,
    steps=6,
    stages=("all@0 normal=1 mask=1",),
    sdf=FieldOptions(levels=3, base_resolution=4, finest_resolution=12, table_bits=10, hidden=16),
    rendering=RenderOptions(grid_resolution=16),
    device="cpu",
)
CONFIG = replace(PRESET, poses=PoseOptions(learn_rotation=True, pose_start="noisy"), seed=3)


def left_behind(folder, config=CONFIG, *, saved=(5.0,)):
    """Write a run folder with a checkpoint per entry, each with another field."""
    scene = prepare_scene(config)
    model = first_model(config, scene)
    with start_run(config, scene, folder, preset=PRESET, sinks=()) as run:
        run.track(model=model)
        run.resume()
        for step in run.steps(len(saved)):
            with torch.no_grad():
                model.sdf.last.bias.fill_(step.index)
                model.poses.rotations.fill_(0.01)
            model.sdf.activate(1.5)
            run.save_after_step({"mae": saved[step.index]})
    return model


def test_the_model_comes_back_with_its_levels_grid_and_poses(tmp_path):
    model = left_behind(tmp_path)
    found = open_run(tmp_path)
    assert (found.step, found.folder, found.config) == (1, tmp_path, CONFIG)
    assert len(found.scene.maps) == 3
    stored = found.model.state_dict()
    wanted = model.state_dict()
    assert stored.keys() == wanted.keys()
    assert all(torch.equal(stored[name], wanted[name]) for name in wanted)
    points = torch.linspace(-0.9, 0.9, 30).reshape(10, 3)
    assert torch.equal(found.model.sdf(points), model.sdf(points))
    assert torch.equal(found.model.poses(), model.poses())


def test_the_best_checkpoint_has_the_smallest_angular_error(tmp_path):
    left_behind(tmp_path, saved=(20.0, 5.0, 10.0))
    assert open_run(tmp_path, "best").step == 2
    assert open_run(tmp_path, "last", device="cpu").step == 3
    assert open_run(tmp_path, 2).model.sdf.last.bias.item() == 1
    with pytest.raises(CheckpointError, match="17"):
        open_run(tmp_path, 17)


def test_config_and_preset_come_back(tmp_path):
    data = write_normal_maps(synthetic_normal_maps(views=3, size=24), tmp_path / "maps")
    config = replace(CONFIG, data=data, exclude=(1,), steps=8)
    left_behind(tmp_path / "run", config)
    assert stored_config(tmp_path / "run") == config
    assert preset_of_run(tmp_path / "run", "normals", NormalsConfig) == PRESET


def with_about(folder, config, **about):
    with Run(folder, config=config, declared=Declared(about=about), outputs=Outputs(sinks=())) as run:
        assert list(run.steps(0)) == []


@pytest.mark.parametrize("open_", [stored_config, open_run])
def test_runs_of_others_are_refused_by_name(tmp_path, open_):
    with_about(tmp_path / "own", {"a": 1})
    with_about(tmp_path / "splats", {"a": 1}, pipeline="splats")
    with_about(tmp_path / "newer", {"views": 6, "of_the_future": 1}, pipeline="normals")
    for name, said in (
        ("own", "a run of a loop of your own"),
        ("splats", "a run of splats"),
        ("newer", "of_the_future"),
        ("nowhere", "holds no run"),
    ):
        with pytest.raises(NotARun, match=said):
            open_(tmp_path / name)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    scene = prepare_scene(CONFIG)
    with start_run(CONFIG, scene, tmp_path, sinks=()) as run:
        run.track(model={"means": torch.zeros(3, 3)})
        run.resume()
        for _ in run.steps(1):
            pass
    with pytest.raises(CheckpointError, match=r"does not match .*run\.json"):
        open_run(tmp_path)
