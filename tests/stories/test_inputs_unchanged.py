"""Whatever a data set calls its files: after every command its folder holds the same bytes, times and names."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fieldwatch.cli import main
from fieldwatch.recon.data import solid_photos, synthetic_clip, synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.colmap.binary import write_cameras, write_images, write_points
from fieldwatch.recon.data.colmap.read import read_colmap_model
from fieldwatch.recon.geometry import matrix_to_quaternion
from fieldwatch.record import read_manifest

SPLATS = (
    "--held-out 2 --coarse-iterations 15000 --schedule-scale 0.0008 --device cpu --growth-cap 1500 "
    "--test-iterations 10000 --turntable 0 --threads 1 --prune-below 0.01"
).split()
NORMALS = (
    "--steps 4 --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 --finest-resolution 12 "
    "--table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --mesh-resolution 12 --mesh-at 0 --evaluate-at 0 "
    "--poses-at 0 --turntable 0"
).split()
VIDEO = (
    "--epochs 1 --batch 2 --data-split 3_3_4 --rows 2 --columns 2 --device cpu --teacher descriptor "
    "--pixel-loss-warmup-epochs 0 --attribute-every 0 --checkpoint-epochs 1 --grid-widths 8 8 8 --grid-blocks 0 0 0 "
    "--between-weight 0"
).split()


def state(folder):
    """What is in a folder: kind, time and content of everything below it, and its own time."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        told = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if not content and path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (oct(told.st_mode), told.st_mtime_ns, content)
    return found


def run(*words):
    assert main([str(word) for word in words]) in (0, 1), words


def interrupt(folder):
    """Leave a finished run as one that was killed before its end."""
    replace(read_manifest(folder), state="running").write(folder)


def look_at(folder, out, *, twin):
    """What any pipeline offers on a finished run."""
    run("eval", folder, "--checkpoint", "last", "--device", "cpu")
    run("eval", folder, "--checkpoint", "last", "--device", "cpu", "--out", out / "eval")
    run("export", folder, "--to", "csv")
    run("compare", folder, twin, "-o", out / "compare.html")
    run("report", folder, "-o", out / "report.html")
    run("health", folder)
    interrupt(folder)
    run("resume", folder)


@pytest.fixture(scope="module")
def photos():
    return solid_photos(views=6, size=32, held_out=2, points=300)


def as_transforms(photos, home):
    """A scene whose frames are named by absolute paths, by `..`, through links, and by names that collide."""
    inside = home / "scene"
    beside = home / "photos of mine"
    (inside / "a").mkdir(parents=True)
    beside.mkdir()
    # fmt: off
    places = [
        (str(beside / "view 0.png"), beside / "view 0.png"), ("../photos of mine/view1.png", beside / "view1.png"),
        ("a/b.png", inside / "a" / "b.png"), ("a_b.png", inside / "a_b.png"), ("link.png", beside / "linked.png"),
        ("a/../A_B.png", inside / "A_B.png"),
    ]
    # fmt: on
    frames = []
    for photo, (name, place) in zip(photos, places, strict=True):
        Image.fromarray(photo.image.numpy()).save(place)
        pose = photo.camera.world_from_camera.numpy() @ np.diag([1.0, -1.0, -1.0, 1.0])
        frames.append({"file_path": name, "transform_matrix": pose.tolist()})
    (inside / "link.png").symlink_to(beside / "linked.png")
    camera = photos.cameras[0]
    lens = {"fl_x": camera.fx, "fl_y": camera.fy, "cx": camera.cx, "cy": camera.cy, "w": 32, "h": 32}
    tested = {"test_filenames": [name for name, _ in places[:4]], "train_filenames": [name for name, _ in places[4:]]}
    (inside / "transforms.json").write_text(json.dumps({**lens, **tested, "frames": frames}))
    return inside


def as_colmap(photos, home):
    """A COLMAP model whose names go up and down."""
    inside = write_colmap(home / "scene", photos)
    model = read_colmap_model(inside / "sparse" / "0")
    upwards = "../../../../home/scene/images/outside.png"
    names = [upwards, "a/b.png", "a_b.png", "A_B.png", "deep/er/view.png", "view.png"]
    for old, new in zip(sorted(path.name for path in (inside / "images").iterdir()), names, strict=True):
        place = inside / "images" / (Path(new).name if ".." in new else new)
        place.parent.mkdir(parents=True, exist_ok=True)
        (inside / "images" / old).rename(place)
    sparse = inside / "sparse" / "0"
    records = []
    for image, name in zip(sorted(model.images, key=lambda one: one.name), names, strict=True):
        motion = image.world_from_camera.double().inverse()
        pose = [*matrix_to_quaternion(motion[:3, :3]).tolist(), *motion[:3, 3].tolist()]
        records.append((image.image_id, name, image.camera_id, pose))
    write_cameras(sparse / "cameras.bin", dict(model.lenses))
    write_images(sparse / "images.bin", records)
    write_points(sparse / "points3D.bin", photos.points, photos.colors)
    return inside


@pytest.mark.parametrize("layout", [as_transforms, as_colmap])
def test_the_photos_of_splats(photos, tmp_path, layout):
    home = tmp_path / "home"
    runs = tmp_path / "runs"
    data = layout(photos, home)
    before = state(home)
    folder = runs / "first"
    run("train", "splats", "-s", data, "--out", folder, *SPLATS)
    renders = sorted(path.name for path in (folder / "products" / "renders").iterdir())
    assert len(renders) == len({name.casefold() for name in renders}) >= 3
    shutil.copytree(folder, runs / "twin")
    look_at(folder, tmp_path / "out", twin=runs / "twin")
    run("infer", "splats", folder, "--views", "test", "--depth", "--checkpoint", "last", "--device", "cpu")
    run("infer", "splats", folder, "--camera", folder / "3dgs" / "cameras.json", "--checkpoint", "last")
    for to in ("ply", "3dgs", "pt"):
        run("export", folder, "--to", to, "--checkpoint", "last", "--device", "cpu")
    assert state(home) == before
    assert {path.name for path in tmp_path.iterdir()} == {"home", "runs", "out"}


def test_the_maps_of_normals(tmp_path):
    home = tmp_path / "home"
    runs = tmp_path / "runs"
    data = write_normal_maps(synthetic_normal_maps(views=3, size=24), home / "maps")
    (home / "link").symlink_to(data)
    before = state(home)
    folder = runs / "first"
    run("train", "normals", "--data", home / "link", "--out", folder, *NORMALS)
    shutil.copytree(folder, runs / "twin")
    look_at(folder, tmp_path / "out", twin=runs / "twin")
    run("export", folder, "--to", "poses", "--checkpoint", "last", "--device", "cpu")
    run("export", folder, "--to", "maps", "--checkpoint", "last", "--device", "cpu")
    normal = next((data / "normal_camera_space_GT").iterdir())
    run(
        "infer", "normals", folder, "--checkpoint", "last", "--image", normal, "--mask", data / "mask" / normal.name,
        "--like", normal.stem, "--directions", 20,
    )  # fmt: skip
    assert state(home) == before


def test_the_frames_of_a_video(tmp_path):
    home = tmp_path / "home"
    runs = tmp_path / "runs"
    (home / "frames").mkdir(parents=True)
    for number, frame in enumerate(synthetic_clip(8, 32, 64)):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(home / "frames" / f"=frame {number:03d}.png")
    (home / "link").symlink_to("frames")
    before = state(home)
    folder = runs / "first"
    run("train", "video", "--data", home / "link", "--out", folder, "--cache", tmp_path / "out" / "cache", *VIDEO)
    shutil.copytree(folder, runs / "twin")
    look_at(folder, tmp_path / "out", twin=runs / "twin")
    run("export", folder, "--to", "bitstream", "--checkpoint", "last", "--device", "cpu")
    run("infer", "video", folder, "--frames", 0, "--mp4", "--checkpoint", "last", "--device", "cpu")
    assert state(home) == before


def test_a_mesh_and_the_gaussians_that_it_came_from(photos, tmp_path):
    home = tmp_path / "home"
    run("train", "splats", "-s", as_transforms(photos, home / "data"), "--out", home / "run", *SPLATS)
    stage0 = Path(shutil.copytree(home / "run" / "3dgs", home / "3dgs"))
    before = state(home / "data"), state(stage0)
    run("train", "splats", "-c", stage0, "--out", tmp_path / "again", *SPLATS)
    main(["mesh", "extract", str(tmp_path / "again"), "--resolution", "32", "--points", "2000", "--no-pictures"])
    assert (state(home / "data"), state(stage0)) == before


@pytest.mark.parametrize("place", ["scene", "scene/run", "link/run"])
def test_a_run_folder_in_its_own_input_is_refused_before_anything_is_written(photos, tmp_path, place, capsys):
    data = as_transforms(photos, tmp_path)
    (tmp_path / "link").symlink_to(data)
    before = state(tmp_path)
    assert main(["train", "splats", "-s", str(data), "--out", str(tmp_path / place), *SPLATS]) == 2
    assert "--out" in capsys.readouterr().err
    assert state(tmp_path) == before
