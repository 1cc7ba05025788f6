"""Preparation of a refinement: the initial state, and input that is rejected before anything is written."""

from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from fieldwatch.checkpoint import CheckpointError
from fieldwatch.recon.mesh import MeshError, Triangles, write_mesh
from fieldwatch.recon.pipelines.splats import RefineOptions, open_run, prepare_refinement
from fieldwatch.recon.pipelines.splats.refined.preparation import (
    initial_colors,
    nearest_colors,
    needed_bytes,
    visible_faces,
)
from fieldwatch.record import NotARun

HEADER = "ply\nformat ascii 1.0\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n"


def test_gaussians_lie_on_the_mesh_and_are_drawn_as_the_run_draws(config, refinement, solid_mesh):
    gaussians = refinement.gaussians
    assert len(gaussians) == len(solid_mesh.faces)
    assert np.allclose(gaussians.vertices.detach().numpy(), solid_mesh.vertices, atol=1e-6)
    assert refinement.model.antialiased
    assert gaussians.thickness == pytest.approx(1e-6 * refinement.scene.extent)
    plan = refinement.scene.plan
    assert (plan.first, plan.total, plan.tests) == (0, 16, {8, 16})
    assert set(plan.windows) == {"rendering", "normal_consistency"}
    without = prepare_refinement(replace(config, normal_consistency_weight=0.0))
    assert set(without.scene.plan.windows) == {"rendering"}


def test_colors_of_the_nearest_gaussians_are_theirs_at_their_places(coarse_run):
    model = open_run(coarse_run).model
    constant, rest = nearest_colors(model, model.gaussians.means.detach())  # none is opaque yet, so all are used
    assert torch.allclose(constant, model.gaussians.constant.detach(), atol=1e-4)
    assert torch.allclose(rest, model.gaussians.rest.detach(), atol=1e-4)
    with torch.no_grad():
        model.gaussians.opacity_logits[:40] = 3.0
    near, _ = nearest_colors(model, model.gaussians.means.detach()[40:41])  # its own color is not used any more
    assert (near - model.gaussians.constant.detach()[40:41]).abs().max() > 1e-3


def test_colors_of_the_vertices_are_blended_by_place(config, coarse_run):
    black_to_white = np.array([[0, 0, 0], [120, 0, 0], [0, 240, 0]], np.uint8)
    mesh = Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2]]), colors=black_to_white)
    model = open_run(coarse_run).model
    chosen = replace(config, first_colors="vertices")
    constant, rest = initial_colors(chosen, model, mesh, torch.zeros(1, 3))
    assert torch.allclose(0.5 + 0.28209479 * constant[0], torch.tensor([40, 80, 0]) / 255, atol=1e-5)
    assert not rest.any()
    with pytest.raises(ValueError, match="use --first-colors gaussians"):
        initial_colors(chosen, model, replace(mesh, colors=None), torch.zeros(1, 3))
    gray, _ = initial_colors(replace(config, first_colors="gray"), model, mesh, torch.zeros(1, 3))
    assert not gray.any()


def test_faces_behind_and_beside_the_cameras_are_not_seen(refinement):
    views = refinement.scene.training_views
    visible = visible_faces(refinement.mesh, views)
    assert visible.mean() > 0.95
    pose = views[0].camera_from_world.double()
    back = torch.linalg.inv(pose)
    for z, expected in ((1.0, True), (-1.0, False)):
        ahead = (back @ torch.tensor([0.0, 0.0, z, 1.0], dtype=torch.float64))[:3].numpy()
        speck = Triangles(vertices=ahead + 1e-4 * np.eye(3), faces=np.array([[0, 1, 2]]))
        assert visible_faces(speck, views[:1]).tolist() == [expected]


def test_memory_grows_with_what_is_bound_to_the_mesh(config):
    one = needed_bytes(1000, 500, config)
    assert needed_bytes(2000, 1000, config) == pytest.approx(2 * one)
    assert needed_bytes(1000, 500, replace(config, gaussians_per_triangle=6)) > 5 * one
    assert needed_bytes(1000, 500, replace(config, degree=3)) > 1.5 * one


def test_a_mesh_too_large_for_the_memory_is_refused_with_one_that_fits(config, monkeypatch):
    class Little:
        available = 1 << 16

    monkeypatch.setattr(psutil, "virtual_memory", Little)
    with pytest.raises(ValueError, match=r"cpu has 0\.0 free.*[\d,]+ triangles"):
        prepare_refinement(config)


def test_a_mesh_that_no_photo_shows_is_refused_with_both_places(config, solid_mesh, tmp_path):
    away = write_mesh(tmp_path / "away.ply", replace(solid_mesh, vertices=solid_mesh.vertices + 1000))
    with pytest.raises(ValueError, match=r"none of the 4 training photos: .* box from .* and the cameras"):
        prepare_refinement(replace(config, mesh=away))


def test_a_mesh_that_is_partly_out_of_sight_is_noted(config, solid_mesh, tmp_path):
    both = Triangles(
        vertices=np.concatenate([solid_mesh.vertices, solid_mesh.vertices + 1000]),
        faces=np.concatenate([solid_mesh.faces, solid_mesh.faces + len(solid_mesh.vertices)]),
    )
    prepared = prepare_refinement(replace(config, mesh=write_mesh(tmp_path / "both.ply", both)))
    assert any("no training photo" in note for note in prepared.scene.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER.format(1) + "end_header\n0 0 0\n", "face"),
        (
            HEADER.format(3) + "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
            "0 0 0\n1 0 nan\n0 1 0\n3 0 1 2\n",
            "finite",
        ),
    ],
)
def test_a_mesh_without_faces_or_with_nan_is_refused(config, tmp_path, content, message):
    path = tmp_path / "bad.ply"
    path.write_text(content)
    with pytest.raises(MeshError, match=message):
        prepare_refinement(replace(config, mesh=path))


def test_what_is_no_splats_run_and_has_no_such_checkpoint_is_refused(config, tmp_path):
    with pytest.raises(NotARun):
        prepare_refinement(replace(config, run=tmp_path))
    with pytest.raises(CheckpointError, match="checkpoint of step 7"):
        prepare_refinement(replace(config, checkpoint="7"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "--iterations must be at least 1, got 0"),
        ({"opacity": 1.0}, "--opacity .*greater than 0 and less than 1"),
        ({"thickness": 0.0}, "--thickness must be a finite number above 0, got 0.0"),
        ({"normal_consistency_weight": -0.1}, "--normal-consistency-weight must be a finite weight, 0 or more"),
        ({"degree": 4}, "--degree must be 0, 1, 2 or 3, got 4"),
        ({"checkpoint": "newest"}, "--checkpoint must be last, best .*newest"),
    ],
)
def test_settings_out_of_their_bounds_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RefineOptions(**changes)
