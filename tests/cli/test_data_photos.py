"""fieldwatch data photos: cameras of rendered photos, the report, a kill, bad input, and training on it."""

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from fieldwatch.checkpoint import FolderInUseError, FolderLock
from fieldwatch.cli import main
from fieldwatch.cli.training import prepared
from fieldwatch.recon.commands.splats.missing_cameras import convert
from fieldwatch.recon.data import PhotoOptions, read_colmap, write_video
from fieldwatch.recon.geometry import Camera, align_points, look_at
from fieldwatch.recon.mesh import MeshRenderer, Triangles
from fieldwatch.recon.pipelines.splats import SplatsConfig
from fieldwatch.registry import find_pipeline
from fieldwatch.report.page import is_page

pytest.importorskip("pycolmap")

COMMAND = ("data", "photos")
FAST = ("--threads", "1")
VIEWS, SIZE, FOCAL = 10, 200, 220.0


def textured_box():
    """A floor and a box on it, covered with spots of several sizes."""
    generator = np.random.default_rng(0)
    vertices, faces, uvs, tiles = [], [], [], []
    for center, half in (((0.0, 0.0, -0.1), (1.5, 1.5, 0.1)), ((0.0, 0.0, 0.35), (0.5, 0.35, 0.35))):
        for axis in range(3):
            for side in (-1, 1):
                corners = np.full((4, 3), float(side))
                first, second = [(axis + 1) % 3, (axis + 2) % 3][::side]
                corners[:, first] = (-1, 1, 1, -1)
                corners[:, second] = (-1, -1, 1, 1)
                place, tile = len(vertices), len(tiles)
                vertices += list(np.array(center) + corners * half)
                faces += [(place, place + 1, place + 2), (place, place + 2, place + 3)]
                square = np.array([(0, tile + 0.02), (1, tile + 0.02), (1, tile + 0.98), (0, tile + 0.98)])
                uvs += [square[[0, 1, 2]], square[[0, 2, 3]]]
                coarse, fine = (generator.uniform(-60, 60, (n, n, 3)).repeat(128 // n, 0) for n in (8, 32))
                spots = 127.5 + coarse.repeat(16, 1) + fine.repeat(4, 1)
                tiles.append(spots.clip(0, 255).astype(np.uint8))
    return Triangles(
        vertices=np.array(vertices),
        faces=np.array(faces, np.int64),
        uvs=np.array(uvs) / [1, len(tiles)],
        texture=np.concatenate(tiles[::-1]),
    )


def cameras():
    """Cameras on an arc above the box."""
    lens = {"width": SIZE, "height": SIZE, "fx": FOCAL, "fy": FOCAL, "cx": SIZE / 2, "cy": SIZE / 2}
    angles = [0.16 * number for number in range(VIEWS)]
    poses = [look_at((2 * np.cos(a), 2 * np.sin(a), 1.3 + 0.3 * np.sin(3 * a)), (0.0, 0.0, 0.2)) for a in angles]
    return [Camera(name=f"view_{i}.png", **lens, world_from_camera=pose) for i, pose in enumerate(poses)]


@pytest.fixture(scope="module")
def album(tmp_path_factory):
    """Rendered photos, and one of something else; nobody may change them."""
    folder = tmp_path_factory.mktemp("album")
    renderer = MeshRenderer(textured_box())
    for camera in cameras():
        Image.fromarray(renderer.render(camera)).save(folder / camera.name)
    spots = np.random.default_rng(9).integers(0, 256, (25, 25, 3), np.uint8)
    Image.fromarray(np.kron(spots, np.ones((8, 8, 1), np.uint8))).save(folder / "wall.png")
    return folder


def run_command(*words):
    """Run a command line, and read its JSON."""
    with redirect_stdout(io.StringIO()) as said:
        assert main([*map(str, words), "--json"]) == 0
    return json.loads(said.getvalue())


@pytest.fixture(scope="module")
def found(album, tmp_path_factory):
    """The scene of the album, and what the command said; nobody may change it."""
    scene = tmp_path_factory.mktemp("found") / "scene"
    return scene, run_command(*COMMAND, album, "-o", scene, *FAST)


def test_cameras_are_those_that_took_the_photos(found):
    scene, told = found
    assert (told["photos"], told["registered"], told["exit_code"]) == (VIEWS + 1, VIEWS, 0)
    assert told["reprojection_error"] < 1
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    assert photos.names == tuple(camera.name for camera in cameras())
    assert len(photos.points) > 100
    truth = torch.stack([camera.world_from_camera for camera in cameras()]).double()
    poses = torch.stack([camera.world_from_camera for camera in photos.cameras]).double()
    aligned = align_points(poses[:, :3, 3], truth[:, :3, 3]).apply_to_pose(poses)
    assert float((aligned[:, :3, 3] - truth[:, :3, 3]).norm(dim=-1).max()) < 0.05
    turn = aligned[:, :3, :3].transpose(1, 2) @ truth[:, :3, :3]
    assert float(turn.diagonal(dim1=1, dim2=2).sum(-1).min()) > 1 + 2 * np.cos(np.radians(1.5))
    assert [camera.fx for camera in photos.cameras] == pytest.approx([FOCAL] * VIEWS, rel=0.1)


def test_photos_without_a_camera_are_named_with_the_reason(found):
    _, told = found
    assert [each["source"] for each in told["missing"]] == ["wall.png"]
    assert told["missing"][0]["reason"]


def test_a_page_and_a_contact_sheet_show_them(found):
    scene, told = found
    assert {name: os.path.relpath(path, scene) for name, path in told["files"].items()} == {
        "scene": ".", "photos": "images", "report": "report.html", "contact_sheet": "contact_sheet.png",
    }  # fmt: skip
    page = scene / "report.html"
    assert is_page(page)
    account = json.loads(page.read_text().split('id="account">')[1].split("</script>")[0])
    panels = {panel["kind"]: panel for panel in account["panels"]}
    assert len(panels["points"]["cameras"]) == VIEWS
    assert len(panels["points"]["points"]) == len(panels["points"]["colors"]) > 300
    with Image.open(scene / "contact_sheet.png") as sheet:
        assert sheet.width > 4 * 160


def test_a_second_time_nothing_is_done_again(album, found, answer):
    scene, told = found
    before = {path: path.stat().st_mtime_ns for path in scene.rglob("*") if path.parent.name in ("images", "0", "work")}
    assert answer(*COMMAND, album, "-o", scene, *FAST) == told
    assert {path: path.stat().st_mtime_ns for path in before} == before


def wait_for(condition, process=None):
    """Wait until a condition holds, as long as a process runs."""
    deadline = time.monotonic() + 200
    while not condition():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_command_is_continued(album, tmp_path):
    scene = tmp_path / "scene"
    line = [sys.executable, "-m", "fieldwatch", *COMMAND, str(album), "-o", str(scene), *FAST]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: "matching" in read_stages(scene, "begun"), process)
        process.kill()
    # The worker has the lock until it has noticed that its parent is gone.
    wait_for(lambda: not is_locked(scene))
    assert "mapping" not in read_stages(scene, "stages")
    written = {path.name: path.stat().st_mtime_ns for path in (scene / "images").iterdir()}
    assert run_command(*COMMAND, album, "-o", scene, *FAST)["registered"] == VIEWS
    assert {path.name: path.stat().st_mtime_ns for path in (scene / "images").iterdir()} == written


def test_a_worker_that_is_killed_is_a_message(album, tmp_path, fieldwatch):
    def workers():
        # Other tests may have left a server that forks Python.
        return [each for each in psutil.Process().children() if any("capture" in word for word in each.cmdline())]

    def kill():
        wait_for(workers)
        workers()[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    code, out, said = fieldwatch(*COMMAND, album, "-o", tmp_path / "scene", *FAST)
    killer.join()
    assert (code, out) == (3, "")
    assert "SIGKILL" in said
    assert "--threads 1" in said
    assert "Traceback" not in said


def is_locked(folder):
    try:
        with FolderLock(folder):
            return False
    except FolderInUseError:
        return True


def read_stages(scene, name):
    try:
        return json.loads((scene / "capture.json").read_text())[name]
    except FileNotFoundError:
        return {}


def test_a_folder_in_use_is_left_alone(album, tmp_path, refused):
    with FolderLock(tmp_path / "scene"):
        assert str(os.getpid()) in refused(*COMMAND, album, "-o", tmp_path / "scene", *FAST)


def test_a_missing_library_is_named_with_the_command_that_installs_it(album, tmp_path, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert "pip install 'fieldwatch[photos]'" in refused(*COMMAND, album, "-o", tmp_path / "scene")


def test_input_that_cannot_be_used_leaves_nothing_behind(tmp_path, refused):
    film = write_video(tmp_path / "film.mp4", [torch.zeros(3, 48, 64, dtype=torch.uint8)] * 5)
    (tmp_path / "kept").mkdir()
    for out in (tmp_path / "new", tmp_path / "kept"):
        assert "black" in refused(*COMMAND, film, "-o", out, *FAST)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["film.mp4", "kept"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--frames 2", "--frames"),
        ("--features 5", "--features"),
        ("--start 3 --end 2", "--end"),
        ("--seed -1", "--seed"),
    ],
)
def test_numbers_out_of_bounds_are_refused(album, tmp_path, refused, flags, named):
    assert named in refused(*COMMAND, album, "-o", tmp_path / "scene", *flags.split())
    assert not (tmp_path / "scene").exists()


def test_photos_that_show_different_things_are_refused(tmp_path, refused):
    generator = np.random.default_rng(0)
    for number in range(3):
        spots = generator.integers(0, 256, (25, 25, 3), np.uint8)
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(np.kron(spots, np.ones((8, 8, 1), np.uint8))).save(tmp_path / f"in/{number}.png")
    assert "overlap" in refused(*COMMAND, tmp_path / "in", "-o", tmp_path / "scene", *FAST)


def test_a_training_finds_the_cameras_itself_and_keeps_them_in_its_folder(album, found, tmp_path):
    run = tmp_path / "run"
    config = SplatsConfig(data=album, longer_side=48, threads=1, device="cpu")
    # Complete cameras of these photos are not searched for again.
    shutil.copytree(found[0], run / "scene")
    before = (run / "scene/sparse/0/images.bin").read_bytes()
    job = prepared(find_pipeline("splats"), config, run, "auto", None)
    assert job.headline.startswith(f"{VIEWS} photos 48x48")
    assert (run / "scene/sparse/0/images.bin").read_bytes() == before


def test_only_input_without_cameras_is_converted(album, found, tmp_path):
    (tmp_path / "nerf").mkdir()
    shutil.copyfile(album / "wall.png", tmp_path / "nerf/wall.png")
    (tmp_path / "nerf/transforms.json").touch()
    (tmp_path / "film.mp4").touch()
    (tmp_path / "empty").mkdir()
    converted = {
        path.name: convert(SplatsConfig(data=path), tmp_path / "run") is not None
        for path in (album, found[0], *tmp_path.iterdir())
    }
    assert converted == {album.name: True, "scene": False, "nerf": False, "film.mp4": True, "empty": False}
    assert convert(SplatsConfig(), tmp_path / "run") is None
    assert convert(SplatsConfig(data=album, images=album), tmp_path / "run") is None
    config, _ = convert(SplatsConfig(data=album), tmp_path / "run")
    assert config.data == tmp_path / "run/scene"
    assert not (tmp_path / "run").exists()


def test_photos_with_damaged_cameras_keep_their_error(found, tmp_path):
    scene = shutil.copytree(found[0], tmp_path / "scene")
    (scene / "sparse/0/cameras.bin").unlink()
    assert convert(SplatsConfig(data=scene), tmp_path / "run") is None
