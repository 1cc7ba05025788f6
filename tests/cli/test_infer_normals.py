"""fieldwatch infer normals: a new map against a surface, its files and exit codes, one message per bad input."""

import numpy as np
import orjson
import pytest
from PIL import Image

from fieldwatch.recon.data import SolidUnion, read_normal_file, ring_cameras, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.normal_maps import PlacedShape, read_normal_maps
from fieldwatch.recon.geometry import Camera, look_at

LENS = (90.0, 90.0, 33.0, 30.0)
QUICK = ("--directions", "50", "--device", "cpu", "--checkpoint", "9")


def camera(size=64) -> Camera:
    fx, fy, cx, cy = LENS
    pose = look_at((1.7, 2.0, 1.6), (0.05, 0.0, 0.0))
    return Camera(name="new", width=size, height=size, fx=fx, fy=fy, cx=cx, cy=cy, world_from_camera=pose)


def written(scene, folder):
    maps = write_normal_maps(synthetic_normal_maps(scene, cameras=[camera()], depth="none"), folder)
    return maps / "normal_camera_space_GT" / "000.png", maps / "mask" / "000.png"


@pytest.fixture(scope="module")
def new_map(tmp_path_factory):
    """Map and mask of the built-in object from a new side, with a hole in both."""
    image, mask = written(None, tmp_path_factory.mktemp("new"))
    silhouette = np.asarray(Image.open(mask)).copy()
    silhouette[28:34, 30:37] = 0
    Image.fromarray(silhouette).save(mask)
    return image, mask


def test_a_new_view_is_placed_and_completed(trained_normals, new_map, answer, tmp_path):
    image, mask = new_map
    got = answer(
        "infer",
        "normals",
        trained_normals,
        "--image",
        image,
        "--mask",
        mask,
        "--lens",
        *LENS,
        *QUICK,
        "--out",
        tmp_path,
    )
    pose = np.array(got["world_from_camera"])
    known = camera().world_from_camera.numpy()
    angle = np.degrees(np.arccos((np.trace(pose[:3, :3].T @ known[:3, :3]) - 1) / 2))
    assert angle < 3
    assert np.linalg.norm(pose[:3, 3] - known[:3, 3]) < 0.25
    assert got["fit"]["fits"]
    assert not got["fit"]["ambiguous"]
    table = orjson.loads((tmp_path / "pose.json").read_bytes())
    assert table["world_from_camera"] == got["world_from_camera"]
    assert table["fit"] == got["fit"]
    normals = read_normal_file(tmp_path / "completed" / "normal_camera_space_GT" / "000.png")
    assert bool((normals[28:34, 30:37].norm(dim=-1) > 0.99).all())
    assert got["fit"]["completed_pixels"] >= 42
    assert read_normal_maps(tmp_path / "completed").views[0].depth is not None
    assert np.isfinite(np.load(tmp_path / "depth.npy")).any()
    for name in ("depth", "normals", "overlay"):
        Image.open(tmp_path / f"{name}.png").load()


def test_another_object_ends_with_a_finding(trained_normals, fieldwatch, tmp_path):
    bar = SolidUnion().shapes[2]
    image, mask = written(SolidUnion((PlacedShape(bar.shape, np.zeros(3), np.eye(3)),)), tmp_path / "other")
    words = ("--mask", mask, "--lens", *LENS, "--most-error", "10", *QUICK)
    code, out, _ = fieldwatch("infer", "normals", trained_normals, "--image", image, *words, "--out", tmp_path / "out")
    assert code == 1
    assert "mean angular error" in out
    assert "best other pose" in out or "score" in out
    assert orjson.loads((tmp_path / "out" / "pose.json").read_bytes())["fit"]["fits"] is False


@pytest.fixture
def empty_mask(tmp_path):
    """A mask without a pixel."""
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(tmp_path / "empty.png")
    return tmp_path / "empty.png"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--image {image}", "give its focal lengths and principal point in pixels (--lens FX FY CX CY)"),
        ("--image {image}x.png --like 000", "does not exist"),
        ("--image {image} --like 007", "the run has no view of that name; its 4 views have names such as 00"),
        ("--image {image} --like 000 --lens 1 1 1 1", "give one"),
        ("--image {image} --lens 0 90 32 32", "focal lengths above 0"),
        ("--image {image} --like 000 --directions 0", "directions must be at least 4, got 0"),
        ("--image {image} --like 000 --mask {empty}", "has an empty mask"),
        ("--image {image} --like 000 --checkpoint 5", "5"),
    ],
)
def test_bad_input_is_one_message(trained_normals, new_map, empty_mask, refused, words, message):  # noqa: PLR0917  fixtures
    line = words.format(image=new_map[0], empty=empty_mask).split()
    assert message in refused("infer", "normals", trained_normals, *line)


def test_a_lens_like_that_of_a_view_is_scaled_to_the_map(trained_normals, new_map, fieldwatch, tmp_path):
    """The built-in ring's lens at 32 pixels, for a map of 64: twice the focal length."""
    code, out, _ = fieldwatch(
        "infer",
        "normals",
        trained_normals,
        "--image",
        new_map[0],
        "--like",
        "001",
        *QUICK,
        "--directions",
        "6",
        "--json",
        "--out",
        tmp_path,
    )
    assert code in (0, 1)
    table = orjson.loads((tmp_path / "pose.json").read_bytes())
    assert table["fx"] == pytest.approx(ring_cameras(4, 64)[0].fx)
    assert (table["width"], table["height"]) == (64, 64)
    assert orjson.loads(out)["view"] == "000"
