"""Reopening a run from its folder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fieldwatch import Declared, Outputs, Run
from fieldwatch.checkpoint import CheckpointError
from fieldwatch.recon.pipelines.splats.config import DensificationOptions, RateOptions, SplatsConfig, SurfaceOptions
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.mip_filter import MipFilter
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.pipelines.splats.start import prepare_scene, start_run
from fieldwatch.recon.pipelines.splats.stored import open_run, stored_config
from fieldwatch.record import NotARun
from fieldwatch.record.config import preset_of_run

PRESET = SplatsConfig(views=6, held_out=3, growth_options=DensificationOptions(growth="mcmc"))
CONFIG = replace(
    PRESET,
    test_iterations=(),
    checkpoint_milestones=(100, 200),
    schedule_scale=0.5,
    growth_options=DensificationOptions(growth="none", growth_cap=500),
    surface=SurfaceOptions(literal=True, beta="learnable"),
    rates=RateOptions(lr_iterations=None),
)


def left_behind(folder, config=CONFIG, *, whole=True, saved=(0,)):
    """Write a run folder with a checkpoint per entry, each with a different first Gaussian."""
    scene = prepare_scene(config)
    gaussians = Gaussians.from_points(scene.photos.points[:50], scene.photos.colors[:50], degree=1)
    model = SplatModel(gaussians, scene.background)
    if whole:
        model.mip = MipFilter(scene.training_views, gaussians.means)
        model.exposures = Exposures([scene.photos.names[i] for i in scene.photos.train])
        model.exposures.raw.data += 0.1
        model.log_beta = nn.Parameter(torch.tensor(-2.5))
    with start_run(config, scene, folder, preset=PRESET, sinks=()) as run:
        run.track(**model.checkpoint_items())
        run.resume()
        for step in run.steps(len(saved)):
            gaussians.means.data[0] = step.index
            run.save_after_step({"psnr": saved[step.index]})
    return model


@pytest.mark.parametrize("whole", [True, False])
def test_the_model_comes_back_with_all_that_belongs_to_it(tmp_path, whole):
    model = left_behind(tmp_path, whole=whole)
    found = open_run(tmp_path)
    assert found.step == 1
    assert found.folder == tmp_path
    assert found.config == CONFIG
    with torch.no_grad():
        rendered, expected = (one.render(found.scene.views[0]).features for one in (found.model, model))
    assert torch.equal(rendered, expected)
    if whole:
        assert torch.equal(found.model.mip.widths, model.mip.widths)
        assert torch.equal(found.model.exposures.raw, model.exposures.raw)
        assert torch.equal(found.model.log_beta, model.log_beta)
    else:
        assert found.model.mip is found.model.exposures is found.model.log_beta is None


def test_which_checkpoint_can_be_chosen(tmp_path):
    left_behind(tmp_path, saved=(20.0, 10.0, 5.0))
    assert open_run(tmp_path, "best").step == 1
    assert open_run(tmp_path, "last", device="cpu").step == 3
    found = open_run(tmp_path, 2)
    assert found.step == 2
    assert float(found.model.gaussians.means.detach()[0, 0]) == 1
    with pytest.raises(CheckpointError, match="17"):
        open_run(tmp_path, 17)


def test_config_and_preset_come_back(tmp_path):
    config = replace(CONFIG, memory_gb=1.5, data=None)
    left_behind(tmp_path, config)
    assert stored_config(tmp_path) == config
    assert preset_of_run(tmp_path, "splats", SplatsConfig) == PRESET


def with_about(folder, config, **about):
    with Run(folder, config=config, declared=Declared(about=about), outputs=Outputs(sinks=())) as run:
        assert list(run.steps(0)) == []


@pytest.mark.parametrize("open_", [stored_config, open_run])
def test_runs_of_others_are_refused_by_name(tmp_path, open_):
    with_about(tmp_path / "own", {"a": 1})
    with_about(tmp_path / "video", {"a": 1}, pipeline="video")
    with_about(tmp_path / "newer", {"views": 6, "of_the_future": 1}, pipeline="splats")
    with_about(tmp_path / "odd", {"regularization": "magic"}, pipeline="splats")
    for name, said in (
        ("own", "a run of a loop of your own"),
        ("video", "a run of video"),
        ("newer", "of_the_future"),
        ("odd", "regularization = 'magic'"),
        ("nowhere", "holds no run"),
    ):
        with pytest.raises(NotARun, match=said):
            open_(tmp_path / name)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    scene = prepare_scene(CONFIG)
    with start_run(CONFIG, scene, tmp_path, sinks=()) as run:
        run.track(gaussians={"means": torch.zeros(3, 3)})
        run.resume()
        for _ in run.steps(1):
            pass
    with pytest.raises(CheckpointError, match=r"the Gaussians.*run\.json"):
        open_run(tmp_path)


def test_paths_come_back_as_paths(tmp_path):
    config = replace(CONFIG, data=tmp_path / "scene", images=Path("photos"))
    with_about(tmp_path / "run", config, pipeline="splats")
    assert stored_config(tmp_path / "run") == config
