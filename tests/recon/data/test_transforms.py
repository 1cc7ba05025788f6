"""Scenes with a transforms.json: Blender, instant-ngp, Nerfstudio."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import PhotoOptions, read_transforms, write_point_ply
from fieldwatch.recon.data.photos import PhotoError
from fieldwatch.recon.data.solids import solid_cameras
from fieldwatch.recon.data.transforms import TransformsError

CAMERAS = solid_cameras(6, 24)
ALL = PhotoOptions(held_out=0)


def frames(folder, names, extension=".png", mode="RGBA"):
    """Write frames in OpenGL axes with photos whose value is their index."""
    made = []
    for number, (name, camera) in enumerate(zip(names, CAMERAS, strict=False)):
        path = folder / f"{name}{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (24, 24), (10 * number,) * len(mode)).save(path)
        matrix = camera.world_from_camera.clone()
        matrix[:3, 1:3] *= -1  # up and backward instead of down and forward
        made.append({"file_path": name, "transform_matrix": matrix.tolist()})
    return made


def write(path, rows, **fields):
    path.write_text(json.dumps({**fields, "frames": rows}))
    return path


@pytest.fixture
def blender(tmp_path):
    for part, count in (("train", 4), ("test", 2), ("val", 1)):
        rows = frames(tmp_path, [f"./{part}/r_{i}" for i in range(count)])
        write(tmp_path / f"transforms_{part}.json", rows, camera_angle_x=0.8)
    return tmp_path


@pytest.fixture
def ngp(tmp_path):
    rows = frames(tmp_path, [f"images/{i:03d}.jpg" for i in range(6)], "", "RGB")
    fields = {"fl_x": 30.0, "fl_y": 31.0, "cx": 11.0, "cy": 12.5, "w": 24, "h": 24}
    return write(tmp_path / "transforms.json", rows, **fields), fields, rows


def test_a_blender_scene_keeps_its_split_and_finds_its_photos(blender):
    photos = read_transforms(blender)
    assert photos.names == ("test/r_0.png", "test/r_1.png", *(f"train/r_{i}.png" for i in range(4)))
    assert (photos.test, photos.train) == ((0, 1), (2, 3, 4, 5))
    assert photos.cameras[0].fx == pytest.approx(12 / math.tan(0.4))
    assert photos.cameras[0].cx == 12
    assert photos[5].alpha is not None
    assert len(photos.points) == 0
    assert any("no points" in note for note in photos.notes)


def test_axes_are_turned_to_opencvs(blender):
    photos = read_transforms(blender)
    for own, truth in zip(photos.cameras[2:], CAMERAS, strict=False):
        assert torch.allclose(own.world_from_camera, truth.world_from_camera, atol=1e-12)


def test_a_file_may_be_given_instead_of_its_folder(blender):
    assert read_transforms(blender / "transforms_train.json").names == read_transforms(blender).names
    assert len(read_transforms(blender / "transforms_test.json", ALL)) == 2


def test_an_ngp_scene_has_its_own_intrinsics(ngp):
    photos = read_transforms(ngp[0], PhotoOptions(held_out=3, longer_side=12))
    assert (photos.test, len(photos)) == ((0, 3), 6)
    own = photos.cameras[0]
    assert (own.width, own.fx, own.fy, own.cx, own.cy) == (12, 15, 15.5, 5.5, 6.25)
    assert photos[1].image.shape == (12, 12, 3)


def test_a_frame_may_have_intrinsics_of_its_own(ngp):
    path, fields, rows = ngp
    rows[2].update(fl_x=60.0, k1=0.1)
    photos = read_transforms(write(path, rows, **fields), ALL)
    assert [camera.fx for camera in photos.cameras] == [30, 30, 60, 30, 30, 30]
    assert any("a OPENCV lens" in note for note in photos.notes)


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({"k1": 0.1, "p2": 0.01}, "OPENCV"),
        ({"k1": 0.1, "k3": 0.01}, "FULL_OPENCV"),
        ({"k1": 0.1, "is_fisheye": True}, "OPENCV_FISHEYE"),
        ({"k4": 0.01, "camera_model": "OPENCV_FISHEYE"}, "OPENCV_FISHEYE"),
        ({"k1": 0.1, "camera_model": "SIMPLE_RADIAL"}, "SIMPLE_RADIAL"),
    ],
)
def test_distortion_is_taken_out(ngp, fields, model):
    path, lens, rows = ngp
    photos = read_transforms(write(path, rows, **lens, **fields), ALL)
    assert any(note.startswith("6 photos") and model in note for note in photos.notes)


def test_lists_of_a_nerfstudio_scene_are_kept(ngp):
    path, lens, rows = ngp
    lists = {"test_filenames": ["images/001.jpg"], "val_filenames": ["images/001.jpg", "images/005.jpg"]}
    photos = read_transforms(write(path, rows, **lens, **lists))
    assert [photos.names[i] for i in photos.test] == ["images/001.jpg"]
    assert len(photos) == 5


def test_points_and_masks_that_it_names_are_read(ngp):
    path, lens, rows = ngp
    write_point_ply(path.parent / "sparse.ply", torch.rand(9, 3), torch.zeros(9, 3, dtype=torch.uint8))
    Image.fromarray(np.zeros((24, 24), np.uint8)).save(path.parent / "m.png")
    rows[0]["mask_path"] = "m.png"
    photos = read_transforms(write(path, rows, **lens, ply_file_path="sparse.ply"), ALL)
    assert len(photos.points) == 9
    assert int(photos[0].mask.max()) == 0
    assert photos[1].mask is None


def test_a_scale_and_rounding_in_the_matrix_are_taken_out(ngp):
    path, lens, rows = ngp
    matrix = np.round(np.array(rows[0]["transform_matrix"]), 4)
    matrix[:3, :3] *= 2.5
    rows[0]["transform_matrix"] = matrix[:3].tolist()
    turn = read_transforms(write(path, rows, **lens), ALL).cameras[0].world_from_camera[:3, :3]
    assert torch.allclose(turn @ turn.T, torch.eye(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(turn, CAMERAS[0].world_from_camera[:3, :3], atol=1e-3)


def changed(rows, **values):
    return [{**rows[0], **values}, *rows[1:]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"transform_matrix": None}, r"frame images/000.jpg: transform_matrix is missing"),
        ({"transform_matrix": [[1, 0], [0, 1]]}, r"transform_matrix .*shape \(2, 2\)"),
        ({"transform_matrix": [[math.nan] * 4] * 4}, "and finite, got"),
        ({"transform_matrix": np.diag([1, 1, -1, 1]).tolist()}, "is not a rotation"),
        ({"transform_matrix": np.diag([1, 2, 1, 1]).tolist()}, "is not a rotation"),
        ({"transform_matrix": np.zeros((4, 4)).tolist()}, "is not a rotation"),
        ({"fl_x": "wide"}, "intrinsics are not numeric"),
        ({"fl_x": 0, "fl_y": 0}, "has no focal length"),
        ({"fl_x": -5.0}, "greater than 0"),
        ({"camera_model": "EQUIRECTANGULAR"}, "unsupported camera_model 'EQUIRECTANGULAR'"),
    ],
)
def test_a_frame_that_cannot_be_used_is_named(ngp, values, message):
    path, lens, rows = ngp
    with pytest.raises(TransformsError, match=message):
        read_transforms(write(path, changed(rows, **values), **lens))


def test_photos_that_are_missing_are_counted_and_named(ngp):
    (ngp[0].parent / "images" / "004.jpg").unlink()
    with pytest.raises(PhotoError, match=r"1 of 6 photos of .*transforms.json are not in .*: images/004.jpg"):
        read_transforms(ngp[0])


def test_a_mask_that_is_missing_is_named(ngp):
    path, lens, rows = ngp
    with pytest.raises(PhotoError, match=r"mask .*gone.png of photo .* does not exist"):
        read_transforms(write(path, changed(rows, mask_path="gone.png"), **lens))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected a list 'frames'"),
        ('{"frames": [1]}', "expected a list 'frames'"),
        ('{"frames": []}', "has no frames"),
    ],
)
def test_what_is_no_scene_is_refused(tmp_path, text, message):
    (tmp_path / "transforms.json").write_text(text)
    with pytest.raises(TransformsError, match=message):
        read_transforms(tmp_path)


def test_a_folder_without_the_file_says_what_is_there(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(TransformsError, match=r"neither transforms.json nor .* found: notes.txt"):
        read_transforms(tmp_path)
    with pytest.raises(TransformsError, match="no such folder"):
        read_transforms(tmp_path / "nowhere")
