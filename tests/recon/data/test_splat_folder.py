"""Run folders of 3D Gaussian splatting."""

import json
import shutil

import pytest
import torch

from fieldwatch.recon.data import GaussianCloud, open_splat_folder, write_splat_folder
from fieldwatch.recon.data.gaussians import PlyError, SplatFolderError
from fieldwatch.recon.data.solids import solid_cameras


def cloud(value=0.0):
    shapes = {"means": 3, "log_scales": 3, "quaternions": 4, "constant": 3}
    parts = {name: torch.full((5, width), float(value)) for name, width in shapes.items()}
    return GaussianCloud(**parts, opacity_logits=torch.zeros(5), rest=torch.zeros(5, 15, 3))


@pytest.fixture
def folder(tmp_path):
    settings = {"sh_degree": 3, "source_path": "D:\\photos", "white_background": False, "resolution": -1}
    for iteration in (30000, 7000):
        path = tmp_path / "run"
        write_splat_folder(path, iteration, cloud(iteration), cameras=solid_cameras(6, 32), settings=settings)
    return path


def test_what_is_written_is_found_again(folder):
    found = open_splat_folder(folder)
    assert found.iterations == (7000, 30000)
    assert found.settings == {"sh_degree": 3, "source_path": "D:\\photos", "white_background": False, "resolution": -1}
    assert float(found.gaussians(7000).means[0, 0]) == 7000
    assert float(found.gaussians().means[0, 0]) == 30000
    for one, other in zip(found.cameras, solid_cameras(6, 32), strict=True):
        assert f"{one.name}.png" == other.name
        assert torch.allclose(one.world_from_camera, other.world_from_camera)
        assert torch.allclose(one.K, other.K)


def test_the_layout_is_that_of_the_original(folder):
    assert (folder / "point_cloud" / "iteration_7000" / "point_cloud.ply").is_file()
    row = json.loads((folder / "cameras.json").read_text())[0]
    assert {"id", "img_name", "width", "height", "position", "rotation", "fx", "fy"} <= set(row)
    assert (row["img_name"], row["id"]) == ("view_000", 0)


def test_files_of_a_real_run_are_read(folder, real_data):
    shutil.copyfile(real_data / "splat_files" / "snowmiku_cfg_args", folder / "cfg_args")
    shutil.copyfile(real_data / "splat_files" / "snowmiku_cameras.json", folder / "cameras.json")
    found = open_splat_folder(folder)
    assert found.settings["source_path"] == "D:\\noname\\Projects\\GitHub\\snowmiku2023plush-splat"
    assert (found.settings["eval"], found.settings["resolution"], found.settings["sh_degree"]) == (False, -1, 3)
    assert (len(found.cameras), found.cameras[0].width, found.cameras[0].cx) == (97, 3958, 1979.0)
    assert [camera.name for camera in found.cameras] == sorted(camera.name for camera in found.cameras)


def test_of_two_cameras_of_one_name_the_last_counts(folder):
    rows = json.loads((folder / "cameras.json").read_text())
    rows.append({**rows[0], "width": 99})
    (folder / "cameras.json").write_text(json.dumps(rows))
    cameras = open_splat_folder(folder).cameras
    assert (len(cameras), cameras[0].width) == (6, 99)


def test_an_iteration_that_is_not_there_lists_those_that_are(folder):
    with pytest.raises(SplatFolderError, match=r"has no iteration 15000 .available: 7000, 30000.: use -i 7000"):
        open_splat_folder(folder).gaussians(15000)


def test_a_folder_without_splats_says_what_is_there(tmp_path):
    with pytest.raises(SplatFolderError, match=r"/nowhere is not .*folder"):
        open_splat_folder(tmp_path / "nowhere")
    (tmp_path / "point_cloud" / "iteration_7000").mkdir(parents=True)  # empty, as after an interrupted save
    with pytest.raises(SplatFolderError, match=r"found: point_cloud.*-s"):
        open_splat_folder(tmp_path)


def test_a_pointer_in_the_folder_says_so_when_it_is_read(folder, real_data):
    path = open_splat_folder(folder).ply(7000)
    shutil.copyfile(real_data / "splat_files" / "lfs_pointer_point_cloud.ply", path)
    with pytest.raises(PlyError, match="Git LFS pointer"):
        open_splat_folder(folder).gaussians(7000)


def test_a_folder_needs_neither_cameras_nor_settings(tmp_path):
    write_splat_folder(tmp_path, 1, cloud())
    found = open_splat_folder(tmp_path)
    assert (found.cameras, dict(found.settings)) == ((), {})


@pytest.mark.parametrize(
    "text",
    [
        "Namespace(a=__import__('os').system('touch RAN'))",
        "__import__('os').system('touch RAN')",
        "Namespace(a=open('RAN', 'w'))",
        "Namespace(**{'a': 1})",
        "Namespace(1, 2)",
        "Namespace(a=",
        "",
        "[" * 5000,
        "Namespace(a=\0)",
    ],
)
def test_settings_are_read_and_never_run(folder, text, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "cfg_args").write_text(text)
    with pytest.raises(SplatFolderError, match="cfg_args: expected Namespace"):
        open_splat_folder(folder)
    assert not (folder / "RAN").exists()


def test_settings_may_be_empty(folder):
    (folder / "cfg_args").write_text("Namespace()")
    assert dict(open_splat_folder(folder).settings) == {}


@pytest.mark.parametrize("text", ["{", "[1]", '[{"img_name": "a"}]', '{"a": 1}'])
def test_cameras_that_cannot_be_read_are_refused(folder, text):
    (folder / "cameras.json").write_text(text)
    with pytest.raises(SplatFolderError, match=r"/cameras\.json .*not a valid"):
        open_splat_folder(folder)
