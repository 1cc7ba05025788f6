"""Whatever is wrong with the input of `fieldwatch train splats`: one clear message, exit code 2, nothing written."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.cli import main
from fieldwatch.recon.data import GaussianCloud, PhotoOptions, read_colmap, write_splat_folder
from fieldwatch.recon.data.solids import solid_cameras

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:81c6\nsize 115570275\n"


@pytest.fixture
def scene(photos, tmp_path):
    """A scene of one's own, to be spoiled."""
    return shutil.copytree(photos, tmp_path / "scene")


@pytest.fixture
def trained(tmp_path):
    """The folder of a 3DGS training, to be spoiled."""
    shapes = {"means": (3,), "log_scales": (3,), "quaternions": (4,), "opacity_logits": (), "constant": (3,)}
    parts = {name: torch.full((5, *shape), 0.1) for name, shape in shapes.items()}
    cloud = GaussianCloud(**parts, rest=torch.zeros(5, 15, 3))
    folder = tmp_path / "trained"
    for iteration in (7000, 30000):
        write_splat_folder(folder, iteration, cloud, cameras=solid_cameras(8, 24), settings={"source_path": "nowhere"})
    return folder


@pytest.fixture
def refused(tmp_path, small, capsys):
    """Run the command; return its message, once it is sure that nothing was trained or written."""

    def run(*words):
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        try:
            code = main(["train", "splats", "--out", str(tmp_path / "run"), *small, *map(str, words)])
        except SystemExit as stopped:  # a value that its flag refuses
            code = stopped.code
        printed = capsys.readouterr()
        assert code == 2, printed.err
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert "Traceback" not in printed.err
        assert len(printed.err) > 40
        return " ".join(printed.err.split())

    return run


def without_a_model(scene):
    # The folders remain: without them, the photos would be a capture whose cameras are found first.
    for path in (scene / "sparse").rglob("*"):
        if path.is_file():
            path.unlink()


def photos_missing(scene):
    (scene / "images" / "view_002.png").unlink()
    (scene / "images" / "view_005.png").unlink()


def photo_of_text(scene):
    (scene / "images" / "view_003.png").write_text("no picture at all")


def photo_of_another_shape(scene):
    Image.fromarray(np.zeros((24, 40, 3), np.uint8)).save(scene / "images" / "view_003.png")


def model_cut_short(scene):
    whole = (scene / "sparse" / "0" / "images.bin").read_bytes()
    (scene / "sparse" / "0" / "images.bin").write_bytes(whole[: len(whole) // 2])


def no_photos(scene):
    (scene / "sparse" / "0" / "images.bin").write_bytes(bytes(8))


def photo_cut_short(scene):
    """The photo is held out: nothing would look at it before the first evaluation."""
    path = scene / "images" / "view_000.png"
    path.write_bytes(path.read_bytes()[:-200])


def photo_damaged(scene):
    path = scene / "images" / "view_000.png"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def jpeg_cut_short(scene):
    path = scene / "images" / "view_000.png"
    Image.open(path).convert("RGB").save(path.with_suffix(".jpg"), quality=95)
    path.unlink()
    whole = path.with_suffix(".jpg").read_bytes()
    path.with_suffix(".jpg").write_bytes(whole[: len(whole) * 2 // 3])


def masks_black(scene):
    for path in (scene / "images").iterdir():
        with Image.open(path) as photo:
            mask = Image.new("L", photo.size, 0)
        (scene / "masks").mkdir(exist_ok=True)
        mask.save(scene / "masks" / path.name)


def mask_damaged(scene):
    masks_black(scene)
    (scene / "masks" / "view_004.png").write_bytes(b"")


def photos_of_a_phone(scene):
    for path in (scene / "images").iterdir():
        path.with_suffix(".HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
        path.unlink()


def emptied(scene):
    shutil.rmtree(scene)
    scene.mkdir()


SPOILED_SCENES = {
    "no sparse model": (without_a_model, r"sparse"),
    "photos missing": (photos_missing, r"2 of 8 photos .*view_002"),
    "unreadable photo": (photo_of_text, r"view_003\.png"),
    "another shape": (photo_of_another_shape, r"view_003\.png"),
    "images.bin cut short": (model_cut_short, r"images\.bin"),
    "zero registered photos": (no_photos, r"images\.bin|no photos|0 photos"),
    "empty folder": (emptied, r"scene"),
    "held-out photo cut short": (photo_cut_short, r"view_000\.png is cut short or damaged.*--skip-unreadable"),
    "held-out photo damaged": (photo_damaged, r"view_000\.png is cut short or damaged.*--skip-unreadable"),
    "held-out JPEG cut short": (jpeg_cut_short, r"view_000\.jpg is cut short or damaged"),
    "all masks black": (masks_black, r"masks of all 6 training photos are black"),
    "mask damaged": (mask_damaged, r"view_004\.png"),
    "HEIC photos": (photos_of_a_phone, r"HEIC format.*JPEG.*heif-convert"),
}


@pytest.mark.parametrize("name", SPOILED_SCENES)
def test_a_scene_that_cannot_be_read(name, scene, refused):
    spoil, message = SPOILED_SCENES[name]
    spoil(scene)
    assert re.search(message, refused("--data", scene))


def test_two_photos_that_leave_one_to_train_on(scene, refused):
    keep_photos(scene, ("view_000.png", "view_001.png"))
    assert re.search("1 photo remains.*--held-out 0", refused("--data", scene))


def keep_photos(scene, names):
    """Write a model of some of the photos, as transforms.json."""
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    axes = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))
    shutil.rmtree(scene / "sparse")
    chosen = [camera for camera in photos.cameras if camera.name in names]
    lens = chosen[0]
    frames = [
        {"file_path": f"images/{c.name}", "transform_matrix": (c.world_from_camera.double() @ axes).tolist()}
        for c in chosen
    ]
    fields = {"fl_x": lens.fx, "fl_y": lens.fy, "cx": lens.cx, "cy": lens.cy, "w": lens.width, "h": lens.height}
    (scene / "transforms.json").write_text(json.dumps({**fields, "frames": frames}))


def ply_of(folder):
    return folder / "point_cloud" / "iteration_7000" / "point_cloud.ply"


def pointer(folder):
    ply_of(folder).write_text(POINTER)


def without_colors(folder):
    text = ply_of(folder).read_bytes()
    for channel in range(3):
        text = text.replace(f"property float f_dc_{channel}\n".encode(), f"property float extra_{channel}\n".encode())
    ply_of(folder).write_bytes(text)


def not_finite(folder):
    text = bytearray(ply_of(folder).read_bytes())
    text[-4:] = np.float32(math.nan).tobytes()
    ply_of(folder).write_bytes(text)


def without_splats(folder):
    shutil.rmtree(folder / "point_cloud")


SPOILED_SPLATS = {
    "LFS pointer": (pointer, r"Git LFS pointer.*115570275 bytes.*git lfs pull"),
    "no f_dc": (without_colors, r"f_dc"),
    "not finite": (not_finite, r"not finite|NaN|nan"),
    "no 3DGS folder": (without_splats, r"no trained splats in"),
}


@pytest.mark.parametrize("name", SPOILED_SPLATS)
def test_a_trained_model_that_cannot_be_read(name, trained, photos, refused):
    spoil, message = SPOILED_SPLATS[name]
    spoil(trained)
    assert re.search(message, refused("--data", photos, "-c", trained, "-i", 7000))


def test_the_pointer_that_a_real_repository_has(trained, photos, refused, real_data):
    shutil.copyfile(real_data / "splat_files" / "lfs_pointer_point_cloud.ply", ply_of(trained))
    assert re.search(SPOILED_SPLATS["LFS pointer"][1], refused("--data", photos, "-c", trained, "-i", 7000))


def test_a_scene_that_is_no_trained_model(photos, refused):
    assert "no trained splats" in refused("-c", photos)


def test_an_iteration_that_is_not_there_lists_those_that_are(trained, photos, refused):
    assert "available: 7000, 30000" in refused("--data", photos, "-c", trained, "-i", 15000)


def test_a_model_whose_scene_is_elsewhere_asks_for_it(trained, refused):
    assert re.search("nowhere,.* -s", refused("-c", trained, "-i", 7000))


@pytest.mark.parametrize("end", [20_000, 30_000])
def test_a_schedule_that_would_train_nothing(end, trained, photos, refused):
    message = refused("--data", photos, "-c", trained, "-i", 30_000, "--coarse-iterations", end)
    assert re.search("above 30000.*--schedule-origin relative", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--longer-side", 0), r"--longer-side must be at least 1, got 0"),
        (("--held-out", -1), r"--held-out must be 0 or more, got -1"),
        (("--surface-level", 0.3), r"--surface-level belongs to the mesh stages"),
        (("--resume-checkpoint", "15000.pt"), r"fieldwatch resume"),
        (("--schedule-scale", 0), r"--schedule-scale must be a finite number above 0, got 0"),
        (("--growth-from", 9000), r"--growth-from 9000"),
    ],
)
def test_settings_that_mean_nothing(words, message, photos, refused):
    assert re.search(message, refused("--data", photos, *words))


def test_what_all_this_is_measured_against_can_be_read(photos, trained, small, capsys, tmp_path):
    """The scene and the model that are spoiled above train when they are whole."""
    words = ["--data", str(photos), "-c", str(trained), "-i", "7000", "--coarse-iterations", "2"]
    assert main(["train", "splats", "--out", str(tmp_path / "run"), *small, *words]) in (0, 1), capsys.readouterr().err
