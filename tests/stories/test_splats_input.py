"""Input that is not as it should be, and trains all the same once the user has said so: what is left out is named."""

import json
import math
import shutil

import pytest
import torch

from fieldwatch.cli import main
from fieldwatch.recon.data import GaussianCloud, PhotoOptions, read_colmap, write_splat_folder
from fieldwatch.recon.data.solids import solid_cameras
from fieldwatch.record import read_manifest

STEPS = ("--coarse-iterations", "40", "--schedule-scale", "0.1", "--test-iterations", "20")
OPENGL = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))


@pytest.fixture
def scene(photos, tmp_path):
    """A scene of one's own, to be spoiled."""
    return shutil.copytree(photos, tmp_path / "scene")


@pytest.fixture
def train(tmp_path, small, capsys):
    """Train a few steps; return the exit code and all that was printed, on one line."""

    def run(*words):
        line = ["train", "splats", "--out", str(tmp_path / "run"), *small, *STEPS, *map(str, words)]
        code = main(line)
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return run


def spoil(scene):
    """One photo is missing, another one is cut short."""
    (scene / "images" / "view_003.png").unlink()
    path = scene / "images" / "view_005.png"
    path.write_bytes(path.read_bytes()[:-300])


def about(folder):
    return read_manifest(folder / "run").about


def as_transforms(scene, moved=None, keep=8):
    """Write transforms.json in place of the COLMAP model; one camera may be moved far away."""
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    shutil.rmtree(scene / "sparse")
    frames = []
    for camera in photos.cameras[:keep]:
        pose = camera.world_from_camera.double() @ OPENGL
        if camera.name == moved:
            pose = pose.clone()
            pose[:3, 3] += 1e6
        frames.append({"file_path": f"images/{camera.name}", "transform_matrix": pose.tolist()})
    lens = photos.cameras[0]
    size = {"fl_x": lens.fx, "fl_y": lens.fy, "cx": lens.cx, "cy": lens.cy, "w": lens.width, "h": lens.height}
    (scene / "transforms.json").write_text(json.dumps({**size, "frames": frames}))


def test_unreadable_photos_are_left_out_counted_and_named(scene, tmp_path, train):
    spoil(scene)
    code, printed = train("--data", scene, "--skip-unreadable")
    assert code in (0, 1), printed
    for name in ("view_003.png", "view_005.png"):
        assert name in printed
        assert any(name in note for note in about(tmp_path)["notes"])
        assert name not in about(tmp_path)["train"] + about(tmp_path)["test"]
        assert name in (tmp_path / "run" / "log.txt").read_text()
    assert "2 of 8 photos" in printed
    assert about(tmp_path)["left_out"] == ["view_003.png", "view_005.png"]


def test_a_resume_leaves_out_the_same_photos_though_they_are_back(photos, scene, tmp_path, train):
    spoil(scene)
    assert train("--data", scene, "--skip-unreadable")[0] in (0, 1)
    for name in ("view_003.png", "view_005.png"):
        shutil.copyfile(photos / "images" / name, scene / "images" / name)
    code, printed = train("--data", scene, "--skip-unreadable")
    assert code in (0, 1), printed
    assert about(tmp_path)["left_out"] == ["view_003.png", "view_005.png"]
    assert len(about(tmp_path)["train"]) + len(about(tmp_path)["test"]) == 6


def test_nothing_left_is_refused(scene, train):
    shutil.rmtree(scene / "images")
    (scene / "images").mkdir()
    code, printed = train("--data", scene, "--skip-unreadable")
    assert code == 2
    assert "none of the 8 photos" in printed


def test_two_photos_train(scene, train):
    as_transforms(scene, keep=2)
    code, printed = train("--data", scene, "--held-out", 0)
    assert code in (0, 1), printed


def test_a_camera_far_away_is_named_and_does_not_set_the_scale(scene, tmp_path, train):
    as_transforms(scene, moved="view_004.png")
    code, printed = train("--data", scene)
    assert code in (0, 1), printed
    assert "images/view_004.png are over 20 times" in printed
    assert any("view_004.png" in note for note in about(tmp_path)["notes"])


def test_a_model_without_points_starts_from_random_ones(scene, train):
    (scene / "sparse" / "0" / "points3D.bin").write_bytes(bytes(8))
    code, printed = train("--data", scene)
    assert code in (0, 1), printed
    assert "no points" in printed
    assert "from random points" in printed


def cloud_of(photos, **changed):
    points = read_colmap(photos).points
    parts = {
        "means": points,
        "log_scales": torch.full((len(points), 3), -3.0),
        "quaternions": torch.tensor([[1.0, 0, 0, 0]]).repeat(len(points), 1),
        "opacity_logits": torch.zeros(len(points)),
        "constant": torch.zeros(len(points), 3),
        "rest": torch.zeros(len(points), 15, 3),
    }
    return GaussianCloud(**{**parts, **changed})


def test_a_folder_with_iteration_30000_alone_is_gone_on_from(photos, tmp_path, small, capsys):
    write_splat_folder(tmp_path / "trained", 30_000, cloud_of(photos), cameras=solid_cameras(8, 24), settings={})
    line = ["train", "splats", "--out", str(tmp_path / "run"), *small, "--schedule-scale", "0.005"]
    code = main([*line, "--data", str(photos), "-c", str(tmp_path / "trained")])
    printed = capsys.readouterr()
    assert code in (0, 1), printed.err
    assert any("iteration 30000 is treated as" in note for note in about(tmp_path)["notes"])


def test_opacities_of_eight_bits_are_brought_inside_and_no_diverged_training(photos, tmp_path, small, capsys):
    count = len(read_colmap(photos).points)
    logits = torch.zeros(count)
    logits[0] = math.inf
    logits[1] = -math.inf
    cloud = cloud_of(photos, opacity_logits=logits)
    write_splat_folder(tmp_path / "trained", 7000, cloud, cameras=solid_cameras(8, 24), settings={})
    line = ["train", "splats", "--out", str(tmp_path / "run"), *small, "--schedule-scale", "0.01"]
    code = main([*line, "--data", str(photos), "-c", str(tmp_path / "trained"), "--coarse-iterations", "7500"])
    printed = capsys.readouterr()
    assert code in (0, 1), printed.err
    assert any("2 of" in note and "8-bit" in note for note in about(tmp_path)["notes"])
