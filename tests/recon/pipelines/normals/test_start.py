"""Start of a run: prepared maps, and a run folder that belongs to them."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch import ConfigMismatch, Terms
from fieldwatch.recon.data import NormalSet, SolidUnion, integrate_normals, write_normal_maps
from fieldwatch.recon.data.normal_maps import NormalMapError
from fieldwatch.recon.mesh import Triangles, write_mesh
from fieldwatch.recon.pipelines.normals.config import PoseOptions, RayOptions
from fieldwatch.recon.pipelines.normals.start import about, built_in_truth, prepare_scene, start_run

DEPTH_TERM = ("fit@0 normal=1 depth=1 mask=1",)


@pytest.fixture
def folder(tiny_maps, tmp_path):
    """The tiny maps without depth, as a folder."""
    views = tuple(replace(view, depth=None) for view in tiny_maps.views)
    return write_normal_maps(NormalSet(views=views), tmp_path / "bear", kind="npy")


def test_the_built_in_scene_needs_no_file(settings):
    scene = prepare_scene(settings(views=4, size=20))
    assert (len(scene.maps), scene.train, scene.test) == (4, (0, 1, 2, 3), ())
    assert scene.maps.sizes == ((20, 20),) * 4
    assert all(view.depth is None for view in scene.maps.views)
    assert scene.starting_poses.dtype == torch.float64
    assert torch.equal(scene.starting_poses[1], scene.maps.cameras[1].world_from_camera.double())
    assert scene.schedule.total == 20


def test_the_built_in_truth_is_the_surface_of_the_object():
    truth = built_in_truth()
    assert len(truth.vertices) > 10_000
    off = SolidUnion().distance(torch.from_numpy(truth.vertices)).abs()
    assert float(off.mean()) < 3e-5 * 2 * float(np.linalg.norm(truth.vertices, axis=1).max())


def test_a_folder_is_read_as_it_was_written(settings, folder, tiny_maps):
    scene = prepare_scene(settings(data=folder))
    assert scene.maps.names == tiny_maps.names
    for found, wanted in zip(scene.maps.views, tiny_maps.views, strict=True):
        assert torch.allclose(found.normals, wanted.normals, atol=1e-6)
        assert torch.equal(found.mask, wanted.mask)
        assert torch.allclose(found.camera.world_from_camera, wanted.camera.world_from_camera, atol=1e-6)
    assert scene.truth is None
    assert about(settings(data=folder), scene)["scene"] == "bear"


def test_the_true_mesh_is_brought_into_the_frame_of_the_sphere(settings, tiny_maps, tmp_path):
    corners = np.array([[0.0, 0, 0], [0.5, 0, 0], [0, 0.5, 0]])
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, :3] *= 100
    matrix[:3, 3] = torch.tensor([7.0, -3.0, 20.0])
    world = corners * 100 + matrix[:3, 3].numpy()
    mesh = tmp_path / "truth.ply"
    write_mesh(mesh, Triangles(vertices=world, faces=np.array([[0, 1, 2]])))
    maps = NormalSet(views=tiny_maps.views, world_from_unit=matrix, mesh=mesh)
    scene = prepare_scene(settings(data=write_normal_maps(maps, tmp_path / "maps")))
    assert np.allclose(scene.truth.vertices, corners, atol=1e-5)
    assert np.allclose(scene.maps.world_from_unit.numpy(), matrix.numpy())


@pytest.mark.parametrize(("held_out", "test"), [(0, ()), (2, (0, 2)), (3, (0, 3)), (4, (0,))])
def test_every_so_many_th_view_is_held_out(settings, held_out, test):
    scene = prepare_scene(settings(views=4, held_out=held_out))
    assert scene.test == test
    assert sorted(scene.train + scene.test) == [0, 1, 2, 3]
    said = about(settings(views=4, held_out=held_out), scene)
    assert said["test"] == [scene.maps.names[i] for i in test]
    assert len(scene.pixels) == 4 - len(test)


def test_excluded_views_are_left_out_of_everything(settings, folder):
    scene = prepare_scene(settings(data=folder, exclude=(1,)))
    assert [int(name) for name in scene.maps.names] == [0, 2, 3]
    assert len(scene.starting_poses) == len(scene.pixels) == 3


def test_larger_maps_are_scaled_down_and_smaller_ones_are_not(settings, folder):
    small = prepare_scene(settings(data=folder, longer_side=12))
    assert small.maps.sizes == ((12, 12),) * 4
    assert prepare_scene(settings(data=folder, longer_side=100)).maps.sizes == ((24, 24),) * 4
    mask = small.maps.views[0].mask
    assert 0.15 < float(mask.float().mean()) < 0.7


def test_depth_is_integrated_where_a_term_wants_it_and_views_lack_it(settings):
    assert all(view.depth is None for view in prepare_scene(settings(size=16)).maps.views)
    scene = prepare_scene(settings(size=16, stages=DEPTH_TERM))
    assert scene.pixels.has_depth
    assert any("3 of 3 views" in note for note in scene.notes)
    assert all(bool((view.depth[view.valid] > 0).all()) for view in scene.maps.views)
    first = scene.maps.views[0]
    assert torch.equal(first.depth, integrate_normals(first.normals.double(), first.valid, first.camera).float())


def test_depth_that_is_there_is_kept(settings, tiny_maps, tmp_path):
    folder = write_normal_maps(tiny_maps, tmp_path / "maps")
    scene = prepare_scene(settings(data=folder, stages=DEPTH_TERM))
    assert torch.equal(scene.maps.views[2].depth, tiny_maps.views[2].depth)
    assert not any("integrated" in note for note in scene.notes)
    left_out = prepare_scene(settings(data=folder, depth=None))
    assert not left_out.pixels.has_depth


def test_poses_start_as_asked(settings, folder):
    exact = prepare_scene(settings(data=folder)).starting_poses
    noisy = prepare_scene(settings(data=folder, poses=PoseOptions(pose_start="noisy"), seed=1)).starting_poses
    again = prepare_scene(settings(data=folder, poses=PoseOptions(pose_start="noisy"), seed=1)).starting_poses
    ring = prepare_scene(
        settings(data=folder, poses=PoseOptions(pose_start="ring", ring_radius=3.0, centered=False))
    ).starting_poses
    assert torch.equal(noisy, again)
    assert 1e-3 < float((noisy - exact).abs().max()) < 1
    assert ring[:, :3, 3].norm(dim=-1).tolist() == pytest.approx([3] * 4)


def test_the_digest_follows_the_files(settings, folder):
    before = prepare_scene(settings(data=folder)).digest
    assert prepare_scene(settings(data=folder, seed=5)).digest == before
    path = folder / "normal_camera_space_GT" / "001.npy"
    normals = np.load(path)
    normals[12, 12] = [0, 0.6, 0.8]
    np.save(path, normals)
    assert prepare_scene(settings(data=folder)).digest != before


def test_a_run_is_not_continued_on_other_maps(settings, tiny_maps, tmp_path):
    config = settings(steps=2, views=4, checkpoint_interval=0)
    scene = prepare_scene(config)
    out = tmp_path / "run"
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with start_run(config, scene, out, sinks=()) as run:
        for step in run.steps(2):
            error = weight.square().sum()
            error.backward()
            step.observe(Terms(mask=(1.0, error.detach())))
            step.update(optimizer)
    said = json.loads((out / "run.json").read_text())["about"]
    assert (said["pipeline"], said["digest"], said["sizes"]) == ("normals", scene.digest, ["24x24"])
    other = replace(
        scene, maps=NormalSet(views=tiny_maps.views[:3]), train=(0, 1, 2), starting_poses=scene.starting_poses[:3]
    )
    with pytest.raises(ConfigMismatch, match=r"other maps.*--out"):
        start_run(config, other, out, sinks=())


def test_a_shorter_schedule_is_told(settings):
    notes = prepare_scene(settings(steps=10)).notes
    assert any(re.search(r"schedule .*20 iterations .*rescaled to 10 steps", note) for note in notes)
    assert not any("schedule" in note for note in prepare_scene(settings()).notes)


@pytest.mark.parametrize(
    ("patch", "rays", "message"),
    [
        (1, RayOptions(rays=8, views_per_graph=1), r"3 processes .* graph of 2 rays.*1.5-fold.*--nproc-per-node 2"),
        (1, RayOptions(rays=512, sample_budget=900, views_per_step=3, views_per_graph=2), ""),
        (1, RayOptions(rays=11, views_per_step=4, views_per_graph=3), "graph of 2 rays"),
        (3, RayOptions(rays=100, views_per_graph=1), "graph of 2 patches of 3 x 3 rays"),
        (3, RayOptions(rays=100, views_per_graph=2), ""),
        (1, RayOptions(rays_per_view=99, warm_up_rays=2, views_per_graph=1), "graph of 2 rays.*--warm-up-rays"),
        (1, RayOptions(rays_per_view=99, warm_up_rays=2, warm_up_rays_until=0, views_per_graph=1), ""),
    ],
)
def test_rays_that_the_processes_cannot_share_are_refused(settings, monkeypatch, patch, rays, message):
    for name, value in {"MASTER_ADDR": "127.0.0.1", "RANK": "1", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    config = settings(views=4, rays=rays)
    config = replace(config, rendering=replace(config.rendering, patch=patch))
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        prepare_scene(config)


def test_what_is_no_set_of_maps_is_told(settings, folder, tmp_path):
    with pytest.raises((NormalMapError, OSError), match="/nowhere does not exist"):
        prepare_scene(settings(data=tmp_path / "nowhere"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(NormalMapError, match=r"\(found: nothing\).*sparse/0/"):
        prepare_scene(settings(data=empty))
    with pytest.raises(NormalMapError, match="normal_camera_space_GT"):
        prepare_scene(settings(data=folder, normals="normals_of_nobody"))
    with pytest.raises(ValueError, match=r"exclude|excluded|leave"):
        prepare_scene(settings(data=folder, exclude=(0, 1, 2, 3)))


def test_held_out_views_must_leave_some(settings, folder):
    with pytest.raises(ValueError, match=r"--held-out 2 .* of 1 "):
        prepare_scene(settings(data=folder, exclude=(0, 1, 2), held_out=2))
