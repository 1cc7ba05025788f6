"""What is at a path: Gaussians of every format, folders, meshes; and how it is framed at first."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fieldwatch import InputError
from fieldwatch.recon.commands.view.scene import first_view, open_scene, upright
from fieldwatch.recon.data import GaussianCloud, write_splat_folder
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import Triangles, write_mesh

FILES = Path(__file__).parents[3] / "fixtures" / "splat_files"


@pytest.mark.parametrize("file", sorted(path.name for path in FILES.glob("scene*")))
def test_every_format_of_gaussians_is_opened(file):
    scene = open_scene(FILES / file)
    assert (scene.title, len(scene.gaussians), scene.mesh) == (file, 240, None)
    assert scene.up == (0.0, -1.0, 0.0)


@pytest.mark.parametrize(
    ("ending", "up"), [("ply", (0.0, 0.0, 1.0)), ("obj", (0.0, 0.0, 1.0)), ("glb", (0.0, 1.0, 0.0))]
)
def test_a_mesh_is_opened_as_one(tmp_path, ending, up):
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    path = write_mesh(tmp_path / f"a.{ending}", Triangles(vertices=places, faces=np.array([[0, 1, 2]])))
    scene = open_scene(path)
    assert (len(scene.mesh.faces), scene.gaussians, scene.up) == (1, None, up)


def test_a_ply_that_is_neither_is_refused_by_the_reader_of_gaussians(tmp_path):
    path = tmp_path / "a.ply"
    shutil.copy(FILES / "scene.ply", path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"a\.ply"):
        open_scene(path)


@pytest.mark.parametrize("up", [(0, 1, 0), (0, -1, 0), (0, 0, 2), (1, -2, 3)])
def test_up_becomes_y_without_a_mirror(up):
    turn = upright(up)
    direction = torch.tensor(up, dtype=torch.float64)
    assert torch.allclose(turn @ (direction / direction.norm()), torch.tensor([0.0, 1, 0], dtype=torch.float64))
    assert torch.allclose(turn @ turn.T, torch.eye(3, dtype=torch.float64))
    assert float(torch.linalg.det(turn)) == pytest.approx(1)


def cameras(distance):
    places = [(distance, 0, 0), (0, distance, 0), (-distance, 0, 0)]
    poses = [look_at(place, (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)) for place in places]
    lens = {"width": 8, "height": 8, "fx": 8.0, "fy": 8.0, "cx": 4.0, "cy": 4.0}
    return tuple(Camera(name=f"{n}", world_from_camera=pose.float(), **lens) for n, pose in enumerate(poses))


def test_cameras_frame_what_they_look_at_and_without_them_most_gaussians_are_shown():
    scene = open_scene(FILES / "scene.ply")
    middle, radius = first_view(replace(scene, cameras=cameras(5.0)))
    assert torch.allclose(middle, torch.zeros(3, dtype=torch.float64), atol=1e-5)
    assert radius == pytest.approx(4.0)
    middle, radius = first_view(scene)
    inside = (scene.gaussians.means.double() - middle).norm(dim=1) <= radius
    assert float(inside.double().mean()) == pytest.approx(0.9, abs=0.01)


def test_one_gaussian_has_a_radius():
    one = {"means": torch.ones(1, 3), "log_scales": torch.zeros(1, 3), "quaternions": torch.ones(1, 4)}
    one |= {"opacity_logits": torch.zeros(1), "constant": torch.zeros(1, 3), "rest": torch.zeros(1, 0, 3)}
    scene = replace(open_scene(FILES / "scene.ply"), gaussians=GaussianCloud(**one))
    assert first_view(scene)[1] == 1.0


def test_the_folder_of_a_training_brings_its_cameras(tmp_path):
    cloud = open_scene(FILES / "scene.ply").gaussians
    write_splat_folder(tmp_path, 7000, cloud, cameras=cameras(5.0))
    scene = open_scene(tmp_path)
    assert [camera.name for camera in scene.cameras] == ["0", "1", "2"]
    assert scene.title.endswith("iteration 7,000")
    assert scene.up == pytest.approx((0, 0, 1), abs=1e-5)
