"""Refinement end to end: it learns, resumes bit by bit after a crash, and rejects non-finite values."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from fieldwatch import Checkpoints, ConfigMismatch, read_history
from fieldwatch.recon.mesh import read_mesh, write_mesh
from fieldwatch.recon.pipelines.splats import prepare_refinement, refine_mesh
from fieldwatch.recon.pipelines.splats.refined import algorithm
from fieldwatch.recon.pipelines.splats.refined.displacement import REFINED_METRICS
from fieldwatch.recon.pipelines.splats.scene import Scene
from fieldwatch.record import TOOLKIT, read_events, read_manifest


def state(folder, which="last"):
    return Checkpoints(folder / "checkpoints").read(which)["gaussians"]


def test_a_refinement_learns_and_leaves_mesh_gaussians_and_a_record(config, refinement, tmp_path):
    outcome = refine_mesh(config, refinement, tmp_path / "run")
    history = read_history(outcome.folder)
    loss = history["Loss/total"].values
    assert loss[-4:].mean() < 0.8 * loss[:4].mean()
    assert history["Test/psnr"].steps.tolist() == [7, 15]
    assert history["Test/psnr"].values[-1] > history["Test/psnr"].values[0]
    assert history["Refine/moved_mean"].values[-1] > 0
    assert 0 <= history["Refine/turned_over"].values[-1] < 0.02
    for name in history.names():
        (TOOLKIT + REFINED_METRICS).require(name)
    assert {"mesh", "point_cloud", "refined", "renders", "geometry"} <= set(outcome.products)
    refined = read_mesh(outcome.products["mesh"])
    assert np.allclose(refined.vertices, state(outcome.folder)["vertices"].numpy(), atol=1e-6)
    assert refined.colors is not None
    about = read_manifest(outcome.folder).about
    assert (about["pipeline"], about["gaussians"]) == ("refined", len(refinement.gaussians))


def test_after_a_crash_it_goes_on_to_the_very_same_mesh_and_journal(config, tmp_path, monkeypatch, repeatable_metrics):
    refine_mesh(config, prepare_refinement(config), tmp_path / "whole")
    original = algorithm.normal_consistency
    calls = []

    def crashing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 14:
            raise OSError("the machine was switched off")
        return original(*args, **kwargs)

    monkeypatch.setattr(algorithm, "normal_consistency", crashing)
    with pytest.raises(OSError, match="switched off"):
        refine_mesh(config, prepare_refinement(config), tmp_path / "crashed")
    monkeypatch.undo()
    before = Checkpoints(tmp_path / "crashed" / "checkpoints").steps()
    assert before
    assert max(before) < 14
    refine_mesh(config, prepare_refinement(config), tmp_path / "crashed", resume="must")

    one = state(tmp_path / "whole")
    other = state(tmp_path / "crashed")
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    expected = repeatable_metrics(tmp_path / "whole")
    resumed = repeatable_metrics(tmp_path / "crashed")
    assert expected["Loss/total"][0] == list(range(16))
    assert resumed.keys() == expected.keys()
    assert [name for name in expected if resumed[name] != expected[name]] == []


def test_updates_of_a_photo_that_is_not_finite_are_refused(config, tmp_path, monkeypatch):
    bad = prepare_refinement(config).scene.photos.names[1]
    original = Scene.photo_view

    def photo_view(self, index):
        made = original(self, index)
        if made.name == bad:
            image = made.image.clone()
            image[3, 4, 1] = np.nan
            made = dataclasses.replace(made, image=image)
        return made

    monkeypatch.setattr(Scene, "photo_view", photo_view)
    folder = tmp_path / "run"
    chosen = dataclasses.replace(config, iterations=12, test_iterations=())
    outcome = refine_mesh(chosen, prepare_refinement(chosen), folder)
    refusals = [event for event in read_events(folder) if event["kind"] == "refusal"]
    assert {name for event in refusals for name in event["samples"]} == {bad}
    assert len({event["step"] for event in refusals}) == 3
    assert "warning" in {finding.severity for finding in outcome.findings}
    # Twelve steps may end worse than the mean color.
    assert {finding.rule for finding in outcome.findings if finding.severity == "error"} <= {"WorseThanNothing"}
    assert all(bool(part.isfinite().all()) for part in state(folder).values())


def test_another_mesh_or_other_photos_in_the_same_folder_are_refused(config, refinement, solid_mesh, tmp_path):
    folder = tmp_path / "run"
    mesh = write_mesh(tmp_path / "mesh.ply", solid_mesh)
    chosen = dataclasses.replace(config, mesh=mesh, iterations=1)
    refine_mesh(chosen, prepare_refinement(chosen), folder)
    write_mesh(mesh, dataclasses.replace(solid_mesh, vertices=solid_mesh.vertices * 1.01))
    with pytest.raises(ConfigMismatch, match=r"run was refined.*another version .*mesh:"):
        refine_mesh(chosen, prepare_refinement(chosen), folder)
    write_mesh(mesh, solid_mesh)
    stored = json.loads((folder / "run.json").read_text())
    stored["about"]["digest"] = "0"
    del stored["sha256"]
    (folder / "run.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigMismatch, match=r"run was refined.*another version .*photos:"):
        refine_mesh(chosen, prepare_refinement(chosen), folder)
