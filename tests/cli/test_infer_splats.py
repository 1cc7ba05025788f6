"""fieldwatch infer splats: pictures of photos' views and of other cameras, films, and one message per bad input."""

import json

import av
import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.commands.splats.infer import file_stem

LAST = ("--checkpoint", "last", "--device", "cpu")


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


def frames_of(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_held_out_views_with_depth_and_normals(splats, answer):
    got = answer("infer", "splats", splats, "--views", "test", "--depth", "--normals", *LAST)
    names = {"view_000", "view_003"}
    assert set(got["files"]) == names | {f"{name}_{part}" for name in names for part in ("depth", "normals")}
    pictures = [np.asarray(Image.open(path)) for path in got["files"].values()]
    assert {picture.shape for picture in pictures} == {(128, 128, 3)}
    assert all(picture.std() > 1 for picture in pictures)
    folder = splats / "products" / "infer-30"
    assert {path.name for path in folder.iterdir()} == {f"{name}.png" for name in got["files"]}


def test_photos_by_name_once_each_in_another_size(splats, answer, tmp_path):
    words = ("--views", "view_001.png", "view_001", "view_002", "--size", "60", "40", "--out", tmp_path / "here")
    got = answer("infer", "splats", splats, *words, *LAST)
    assert list(got["files"]) == ["view_001", "view_002"]
    assert {size_of(path) for path in got["files"].values()} == {(60, 40)}


def test_a_wider_picture_shows_more_at_the_sides_and_the_same_in_the_middle(splats, answer, tmp_path):
    paths = [
        answer("infer", "splats", splats, "--views", "view_001", "--size", width, 128, "--out", tmp_path / width, *LAST)
        for width in ("128", "192")
    ]
    square, wide = (np.asarray(Image.open(got["files"]["view_001"]), np.int16) for got in paths)
    assert np.abs(square - wide[:, 32:-32]).max() <= 1


def test_cameras_of_a_file_and_their_film(splats, answer):
    words = ("--camera", splats / "3dgs" / "cameras.json", "--scale", "0.5", "--mp4")
    got = answer("infer", "splats", splats, *words, *LAST)
    film = frames_of(got["files"].pop("film of the views"))
    assert len(film) == len(got["files"]) == 6
    assert {size_of(path) for path in got["files"].values()} == {(64, 64)}


@pytest.mark.parametrize(("path", "more"), [("turntable", ()), ("spiral", ("--normals",))])
def test_a_path_is_a_film(splats, fieldwatch, tmp_path, path, more):
    words = ("--path", path, "--frames", 4, "--png", "--size", 48, 32, "--out", tmp_path / "here")
    code, out, _ = fieldwatch("infer", "splats", splats, *words, *more, *LAST)
    assert code == 0
    assert str(tmp_path / "here" / f"{path}.mp4") in out
    film = frames_of(tmp_path / "here" / f"{path}.mp4")
    assert len(film) == len(list((tmp_path / "here" / path).iterdir())) == 4
    assert (film[0].shape[1] > 48) == bool(more)
    assert np.abs(film[0].astype(int) - film[2]).mean() > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "nothing to render: give --views test"),
        ("--mp4 --path spiral", "--mp4 needs --views or --camera"),
        ("--png --views test", "--png needs --path"),
        ("--path spiral --frames 0", "--frames must be at least 1, as in 96 for four seconds, got 0"),
        ("--path spiral --fps 0", "at most 1000, got 0"),
        ("--views test --size 10 10 --scale 2", "give one of them"),
        ("--views test --size 0 10", "at least 1 pixel, got 0 10"),
        ("--views test --scale -1", "half the width, got -1"),
        ("--views test --scale nan", "half the width, got nan"),
        ("--views test --scale 1e4", "must have at most"),
        ("--views view_0001", "no photo of that name; give test, train, or names such as view_001"),
        ("--camera nowhere.json", "nowhere.json does not exist: pass the cameras.json"),
        ("--views test --checkpoint 7", "there is no checkpoint of step 7"),
    ],
)
def test_bad_input_is_named_and_nothing_is_drawn(splats, refused, words, message):
    before = sorted(splats.rglob("*"))
    assert message in refused("infer", "splats", splats, *words.split())
    assert sorted(splats.rglob("*")) == before


@pytest.mark.parametrize(
    "change", [{"rotation": [[1, 0], [0, 1]]}, {"width": 0}, {"fx": "wide"}, {"position": [float("nan")] * 3}, None]
)
def test_a_damaged_camera_file_is_named(splats, refused, tmp_path, change):
    rows = json.loads((splats / "3dgs" / "cameras.json").read_text())
    path = tmp_path / "cameras.json"
    path.write_text(json.dumps([rows[0] | change] if change else {"a": 1}))
    assert "cameras.json is not" in refused("infer", "splats", splats, "--camera", path)


def test_a_video_run_is_no_run_of_splats(run, refused):
    assert "opens splats runs" in refused("infer", "splats", run, "--views", "test")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("a.png", "a"),
        ("left/a.JPG", "left_a"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("a.001", "a.001"),
        ("///", "_"),
        (".png", "view"),
    ],
)
def test_names_of_cameras_become_names_of_files(name, stem):
    assert file_stem(name) == stem
