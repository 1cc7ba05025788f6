"""``fieldwatch doctor``: the machine, and every kind of data that it recognizes, healthy and broken."""

import json
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.cli.doctor_checks import checked, unused_gpu
from fieldwatch.cli.doctor_folders import inspect_folders, shared_memory
from fieldwatch.cli.doctor_machine import libraries_here, memory_limit, processor
from fieldwatch.recon.commands import kernels
from fieldwatch.recon.data import (
    GaussianCloud,
    PhotoOptions,
    SolidUnion,
    read_colmap,
    solid_photos,
    synthetic_normal_maps,
    write_gaussian_ply,
    write_normal_maps,
    write_splat_folder,
)
from fieldwatch.recon.data.colmap import read_colmap_model, write_colmap
from fieldwatch.recon.mesh import implicit_surface, write_mesh

NORMALS = "normal_camera_space_GT"


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    return write_normal_maps(synthetic_normal_maps(views=5, size=40), tmp_path_factory.mktemp("maps") / "set")


@pytest.fixture
def broken(maps, tmp_path):
    """A copy of the set, to be broken."""
    return shutil.copytree(maps, tmp_path / "set")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    photos = solid_photos(views=6, size=24, held_out=3, points=200, samples=1)
    return write_colmap(tmp_path_factory.mktemp("photos") / "scene", photos)


def cloud(count=300, opacity=2.0):
    return GaussianCloud(
        means=torch.randn(count, 3), log_scales=torch.full((count, 3), -3.0),
        quaternions=torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1), opacity_logits=torch.full((count,), opacity),
        constant=torch.zeros(count, 3), rest=torch.zeros(count, 0, 3),
    )  # fmt: skip


@pytest.fixture
def examined(fieldwatch):
    """Look at data: exit code and JSON."""

    def call(path, *words):
        code, out, message = fieldwatch("doctor", "--data", path, "--json", *words)
        assert message == ""
        answer = json.loads(out)
        return code, answer, [finding["name"] for finding in answer["findings"]]

    return call


def test_the_machine_is_described(fieldwatch):
    code, out, _ = fieldwatch("doctor")
    words = ("processor", "memory", "disk", "torch", "kernels", "colmap", "open files", "clock", "runs")
    assert all(word in out for word in words)
    again, printed, _ = fieldwatch("doctor", "--json")
    found = json.loads(printed)
    above_notes = [finding for finding in found["findings"] if finding["severity"] != "note"]
    assert code == again == (1 if above_notes else 0)
    assert found["software"]["torch"] == torch.__version__
    assert found["machine"]["cores"]["usable"] == len(os.sched_getaffinity(0))
    assert found["machine"]["disk"]["free_bytes"] > 0
    assert found["machine"]["runs"]["reason"] is None
    assert set(found["libraries"]) == {library.package for library in libraries_here()}
    assert found["libraries"]["av"] is not None


def test_the_way_to_measure_lpips_is_told_in_a_line(fieldwatch, monkeypatch, tmp_path):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(tmp_path))
    _, out, _ = fieldwatch("doctor", "--json")
    assert json.loads(out)["software"]["lpips"] is False
    (check,) = [check for check in json.loads(out)["checks"] if check["label"] == "LPIPS"]
    assert "https://download.pytorch.org/models/vgg16-397923af.pth" in check["text"]
    assert str(tmp_path) in check["text"]
    for name in ("vgg16-397923af.pth", "vgg.pth"):
        (tmp_path / name).touch()
    assert json.loads(fieldwatch("doctor", "--json")[1])["software"]["lpips"] is True


HEALTHY_MACHINE = {
    "gpus": [], "driver": None, "disk": {"free_bytes": 1 << 40, "folder": "/x"}, "memory_free_bytes": 1 << 40,
    "memory_limit_bytes": None, "shared_memory_bytes": 1 << 33, "open_files": 1024,
    "runs": {"folder": "/x/runs", "reason": None}, "clock": "2026-11-22T10:00:00+00:00", "clock_skew_seconds": 0.0,
}  # fmt: skip
HEALTHY_SOFTWARE = {
    "torch_sees_gpu": False, "torch_build": "CPU only", "tensorboard_tab": True,
}  # fmt: skip


def test_a_healthy_machine_has_no_findings():
    assert checked(HEALTHY_MACHINE, HEALTHY_SOFTWARE) == ()


@pytest.mark.parametrize(
    ("machine", "software", "name", "words"),
    [
        ({"gpus": [1]}, {}, "gpu", "CUDA build of torch"),
        ({"gpus": [1], "driver": "470.82"}, {"torch_build": "CUDA 12.8"}, "gpu", "needs driver 525 or newer"),
        ({"gpus": [1], "driver": "470.82"}, {}, "gpu", "470.82 is older than 525"),
        ({"gpus": [1], "driver": "580.1"}, {"torch_build": "CUDA 12.8"}, "gpu", "CUDA_VISIBLE_DEVICES"),
        ({}, {"tensorboard_tab": False}, "tab", "install the package again"),
        ({"disk": {"free_bytes": 1 << 30, "folder": "/x"}}, {}, "disk", "1.0 GiB free in /x"),
        ({"memory_free_bytes": 1 << 30}, {}, "memory", "1.0 GiB of memory free"),
        ({"memory_limit_bytes": 1 << 31}, {}, "memory", "2.0 GiB of memory free"),
        ({"shared_memory_bytes": 1 << 26}, {}, "shared memory", "--shm-size"),
        ({"open_files": 64}, {}, "open files", "ulimit -n"),
        ({"runs": {"folder": "/x/runs", "reason": "cannot be written (read-only)"}}, {}, "runs", "read-only"),
        ({"clock": "1970-01-01T00:00:09+00:00"}, {}, "clock", "1970"),
        ({"clock_skew_seconds": -40.0}, {}, "clock", "-40 s"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(machine, software, name, words):
    (finding,) = checked(HEALTHY_MACHINE | machine, HEALTHY_SOFTWARE | software)
    assert finding.name == name
    assert words in f"{finding.message} -> {finding.remedy}"


def test_the_most_severe_come_first():
    found = checked(HEALTHY_MACHINE | {"gpus": [1], "open_files": 9}, HEALTHY_SOFTWARE | {"tensorboard_tab": False})
    assert [finding.severity for finding in found] == ["error", "warning", "note"]


def test_places_are_tried_and_left_as_they_were(tmp_path):
    found = inspect_folders(tmp_path)
    assert found["runs"]["reason"] is None
    assert abs(found["clock_skew_seconds"]) < 5
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").touch()  # a file is in the way
    assert "cannot be written" in inspect_folders(tmp_path)["runs"]["reason"]
    assert shared_memory(tmp_path / "none") is None


def test_names_and_limits_come_from_the_systems_files(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: A Chip 3000\n")
    assert processor(tmp_path / "cpuinfo") == "A Chip 3000"
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "some").write_text("4096\n")
    limits = [memory_limit(tmp_path / name) for name in ("max", "some", "none")]
    assert limits == [None, 4096, None]


def test_options_about_data_need_data(refused):
    assert "--picture x.png" in refused("doctor", "--picture", "x.png")


def test_healthy_normal_maps(fieldwatch, examined, maps, tmp_path):
    code, found, names = examined(maps, "--picture", tmp_path / "new" / "sheet.png")
    assert (code, names) == (0, [])
    assert found["facts"]["views"] == found["facts"]["views with depth"] == 5
    assert found["facts"]["sizes (width x height)"] == {"40x40": 5}
    with Image.open(tmp_path / "new" / "sheet.png") as sheet:
        assert sheet.size == (5 * 40, 40 + 14)
    code, out, _ = fieldwatch("doctor", "--data", maps)
    assert code == 0
    assert "healthy" in out
    assert "fieldwatch train normals --data" in out


def test_wrong_axes_are_a_finding_with_a_remedy_that_helps(fieldwatch, examined, broken):
    for path in (broken / NORMALS).iterdir():
        path.unlink()
    for view in synthetic_normal_maps(views=5, size=40).views:
        np.save(broken / NORMALS / f"{view.name}.npy", view.normals.numpy())  # OpenCV's axes
    code, out, _ = fieldwatch("doctor", "--data", broken, "--axes", "opengl")
    assert code == 1
    assert "error  axes" in out
    assert "--axes opencv" in " ".join(out.split())
    # The command at the end reads the files rightly, not as it was asked to here.
    (command,) = [line for line in out.splitlines() if "fieldwatch train normals" in line]
    assert "--axes opencv" in command
    assert "opengl" not in command
    assert examined(broken)[0] == 0


def test_a_black_map_is_a_finding_and_a_set_without_masks_is_none(examined, broken):
    shutil.rmtree(broken / "mask")
    assert examined(broken)[0] == 0
    Image.new("RGB", (40, 40)).save(broken / NORMALS / "001.png")
    assert examined(broken)[0] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: (f / "mask" / "002.png").unlink(), "masks lacks 2"),
        (lambda f: (f / NORMALS / "003.png").rename(f / NORMALS / "013.png"), "normal_camera_space_GT/ lacks 3"),
        (lambda f: (f / "cameras_sphere.npz").write_bytes(b"nothing"), "cannot be read as npz"),
        (lambda f: (f / "cameras_sphere.npz").write_bytes(b""), "cannot be read as npz"),
        (lambda f: (f / "cameras_sphere.npz").unlink(), "cameras_sphere.npz"),
        (lambda f: skew(f / "cameras_sphere.npz"), "orthonormal R"),
        (lambda f: cut(f / NORMALS / "001.png"), "cannot be read"),
        (lambda f: Image.new("L", (40, 36)).save(f / "mask" / "001.png"), "40x40 and"),
        (lambda f: ((f / "mask/001.png").unlink(), (f / "mask/001.png").mkdir()), "001.png cannot be read"),
    ],
    ids=range(9),
)
def test_a_set_that_the_reader_refuses_is_one_message(refused, broken, change, words):
    change(broken)
    message = refused("doctor", "--data", broken)
    assert words in message
    assert len(message) < 600


def cut(path):
    path.write_bytes(path.read_bytes()[:120])


def skew(path):
    with np.load(path) as file:
        matrices = dict(file)
    world = matrices["world_mat_2"]
    turn = np.eye(4)
    turn[0, 1] = 0.2
    matrices["world_mat_2"] = world @ turn
    np.savez(path, **matrices)


def test_black_masks_are_findings(examined, broken):
    for path in (broken / "mask").iterdir():
        Image.new("L", (40, 40)).save(path)
    code, _, names = examined(broken)
    # That nothing is left of the visual hull follows from it, and is not said.
    assert (code, names) == (1, ["empty_mask"])


def test_a_view_can_be_left_out_and_holes_filled(examined, refused, broken):
    (broken / "mask" / "002.png").unlink()
    assert examined(broken, "--exclude", "2")[1]["facts"]["views"] == 4
    assert "--exclude ('2',)" in refused("doctor", "--data", broken, "--kind", "frames", "--exclude", "2")


def test_a_true_mesh_elsewhere_is_a_finding(examined, broken):
    mesh = implicit_surface(
        lambda p: SolidUnion().distance(torch.from_numpy(p)).numpy(), np.full(3, -1.0), np.full(3, 1.0), resolution=24
    )
    write_mesh(broken / "mesh_Gt.ply", mesh)
    assert examined(broken)[2] == []
    write_mesh(broken / "mesh_Gt.ply", replace(mesh, vertices=100 * mesh.vertices))
    code, found, names = examined(broken)
    assert (code, names) == (1, ["mesh"])
    assert "reaches 8" in found["findings"][0]["message"] or "reaches 7" in found["findings"][0]["message"]
    cut(broken / "mesh_Gt.ply")
    assert "unreadable" in examined(broken)[1]["findings"][0]["message"]


def test_a_contact_sheet_needs_a_place_and_normal_maps(refused, maps, scene, tmp_path):
    assert "ends in .png" in refused("doctor", "--data", maps, "--picture", tmp_path / "x.jpg")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("doctor", "--data", maps, "--picture", tmp_path / "file" / "x.png")
    assert "normal maps" in refused("doctor", "--data", scene, "--picture", tmp_path / "x.png")


def test_own_captures_are_recognized(examined, scene, refused, tmp_path):
    folder = shutil.copytree(scene, tmp_path / "set")
    for name in ("normals", "masks"):
        (folder / name).mkdir()
    assert "normals/ lacks" in refused("doctor", "--data", folder)
    for path in (folder / "images").iterdir():
        normals = np.zeros((24, 24, 3), np.float32)
        normals[..., 2] = 1
        np.save(folder / "normals" / f"{path.stem}.npy", normals)
        mask = np.zeros((24, 24), np.uint8)
        mask[8:16, 8:16] = 255
        Image.fromarray(mask).save(folder / "masks" / path.name)
    code, found, names = examined(folder)
    assert (code, names) == (1, ["silhouettes"])
    assert "captures" in found["kind"]
    assert examined(folder, "--kind", "photos")[1]["kind"] == "photos with cameras (COLMAP)"


def test_healthy_photos(examined, scene):
    code, found, names = examined(scene)
    assert (code, names) == (0, [])
    assert (found["facts"]["photos"], found["facts"]["held out"], found["facts"]["points"]) == (6, 1, 200)


def exported(scene, folder):
    """The scene as Polycam exports it."""
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    for part in ("cameras", "images"):
        (folder / "keyframes" / part).mkdir(parents=True)
    for camera in photos.cameras:
        matrix = camera.world_from_camera.clone()
        matrix[:3, 1:3] *= -1
        values = {f"t_{i}{j}": float(matrix[i, j]) for i in range(3) for j in range(4)}
        values |= {name: getattr(camera, name) for name in ("width", "height", "fx", "fy", "cx", "cy")}
        name = Path(camera.name).stem
        (folder / "keyframes" / "cameras" / f"{name}.json").write_text(json.dumps(values))
        shutil.copy(scene / "images" / camera.name, folder / "keyframes" / "images")
    return folder


def test_cameras_of_another_program(examined, scene, tmp_path):
    code, found, names = examined(exported(scene, tmp_path / "scan"))
    assert (code, names, found["facts"]["photos"]) == (0, [], 6)
    assert any("Polycam" in note for note in found["notes"])


def test_a_scene_without_points_and_with_a_camera_far_away(examined, scene, tmp_path):
    folder = shutil.copytree(scene, tmp_path / "scene")
    model = folder / "sparse" / "0"
    (model / "points3D.bin").write_bytes(struct.pack("<Q", 0))
    assert examined(folder)[2] == ["points"]
    photos = read_colmap(scene, PhotoOptions(held_out=0))
    pose = photos.cameras[2].world_from_camera.clone()
    pose[:3, 3] += 1e6
    cameras = (*photos.cameras[:2], replace(photos.cameras[2], world_from_camera=pose), *photos.cameras[3:])
    write_colmap(tmp_path / "far", photos.having(cameras=cameras))
    code, found, names = examined(tmp_path / "far")
    assert (code, names[0]) == (1, "far")
    assert photos.names[2] in found["findings"][0]["message"]


@pytest.mark.parametrize("command", [("doctor",), ("train", "splats"), ("reconstruct", "-o", "out")])
def test_a_project_of_another_program_is_named(refused, tmp_path, command):
    (tmp_path / "scan.psx").write_text("")
    message = (
        refused(*command, "--data", tmp_path / "scan.psx")
        if command[0] != "reconstruct"
        else refused("reconstruct", tmp_path / "scan.psx", "-o", tmp_path / "out")
    )
    assert "Metashape" in message
    assert "Export Cameras" in message


def test_points_beside_the_photos_unused_ones_and_odd_exposure_are_findings(examined, scene, tmp_path):
    folder = shutil.copytree(scene, tmp_path / "scene")
    first, second, *_ = sorted((folder / "images").iterdir())
    shutil.copy(first, first.with_name("extra.png"))
    Image.new("RGB", (24, 24)).save(first)
    with Image.open(second) as image:
        bright = image.point(lambda value: min(4 * value + 60, 255))
    bright.save(second)
    points = folder / "sparse" / "0" / "points3D.bin"
    data = bytearray(points.read_bytes())
    size = (len(data) - 8) // 200
    for row in range(100):  # far away
        struct.pack_into("<3d", data, 8 + row * size + 8, 0.0, 0.0, -900.0)
    points.write_bytes(data)
    code, found, names = examined(folder)
    assert code == 1
    assert set(names) == {"points", "unregistered", "exposure", "black"}
    assert names[0] in {"points", "black"}  # the most severe first
    assert any(second.name in f["message"] for f in found["findings"] if f["name"] == "exposure")


def test_points_behind_their_cameras_are_an_error(examined, scene, tmp_path):
    folder = shutil.copytree(scene, tmp_path / "scene")
    model = read_colmap_model(folder / "sparse" / "0")
    sparse = folder / "sparse" / "0"
    pieces = [struct.pack("<Q", len(model.points.positions))]
    for row, place in enumerate(model.points.positions.tolist()):
        mirrored = [-90 * value for value in place] if row < 20 else place
        track = b"".join(struct.pack("<II", image.image_id, row) for image in model.images[: 3 + row % 2])
        pieces.append(struct.pack("<Q3d3BdQ", row + 1, *mirrored, 9, 9, 9, 5.0, len(track) // 8) + track)
    (sparse / "points3D.bin").write_bytes(b"".join(pieces))
    code, found, names = examined(folder)
    assert code == 1
    assert names[0] == "behind"
    assert set(names) == {"behind", "weak", "reprojection"}
    assert found["facts"]["observations"] == 3 * 100 + 4 * 100


def test_a_damaged_model_is_one_message(refused, scene, tmp_path):
    folder = shutil.copytree(scene, tmp_path / "scene")
    cut(folder / "sparse" / "0" / "images.bin")
    assert "cut short" in refused("doctor", "--data", folder)


def test_transforms_are_recognized(examined, refused, tmp_path):
    angles = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)]
    frames = []
    for number, (cos, sin) in enumerate(angles):
        Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(tmp_path / f"{number}.png")
        pose = [[cos, 0, sin, 4 * sin], [0, 1, 0, 0], [-sin, 0, cos, 4 * cos], [0, 0, 0, 1]]
        frames.append({"file_path": f"{number}.png", "transform_matrix": pose})
    whole = {"camera_angle_x": 0.6, "frames": frames}
    (tmp_path / "transforms.json").write_text(json.dumps(whole))
    code, found, names = examined(tmp_path)
    assert (code, names) == (0, [])
    assert found["facts"]["photos"] == 4
    assert examined(tmp_path / "transforms.json")[0] == 0
    same = [frame | {"transform_matrix": frames[0]["transform_matrix"]} for frame in frames]
    (tmp_path / "transforms.json").write_text(json.dumps(whole | {"frames": same}))
    assert examined(tmp_path)[2] == ["cameras"]
    (tmp_path / "transforms.json").write_text("{")
    assert "as JSON" in refused("doctor", "--data", tmp_path)


def test_frames_and_their_faults(examined, refused, frames, tmp_path):
    code, found, names = examined(frames)
    assert (code, names, found["facts"]["frames"]) == (0, [], 8)
    folder = shutil.copytree(frames, tmp_path / "clip")
    first, *others = sorted(folder.iterdir())
    shutil.copy(first, others[0])
    Image.new("RGB", (64, 32)).save(others[3])
    for path in others[5:]:
        path.unlink()
    code, _, names = examined(folder)
    assert (code, names) == (1, ["repeated", "flat", "frames"])
    cut(first)
    assert "cut short" in refused("doctor", "--data", folder)
    (tmp_path / "film.mp4").write_bytes(b"no film")
    assert "film.mp4" in refused("doctor", "--data", tmp_path / "film.mp4")


def test_gaussians_and_their_folders(examined, tmp_path):
    write_gaussian_ply(tmp_path / "a.ply", cloud())
    code, found, names = examined(tmp_path / "a.ply")
    assert (code, names, found["facts"]["Gaussians"]) == (0, [], 300)
    huge = cloud(opacity=-9.0)
    huge.log_scales[:3] = 5.0
    write_splat_folder(tmp_path / "run", 7, huge, settings={"source_path": "/gone"})
    code, found, names = examined(tmp_path / "run")
    assert (code, names) == (1, ["cameras", "source", "transparent", "huge"])
    assert found["facts"]["iterations"] == [7]


@pytest.mark.parametrize("name", ["scene.compressed.ply", "scene_v3.spz", "scene.sog", "scene.splat", "scene_1.ksplat"])
def test_gaussians_of_other_formats(examined, name):
    path = Path(__file__).parents[1] / "fixtures" / "splat_files" / name
    code, found, names = examined(path)
    assert (code, names, found["facts"]["Gaussians"]) == (0, [], 240)
    assert f"fieldwatch convert splats {path}" in found["command"]


def test_a_folder_of_sog_and_what_its_reader_corrected(examined, tmp_path):
    files = Path(__file__).parents[1] / "fixtures" / "splat_files"
    shutil.unpack_archive(files / "scene.sog", tmp_path / "sog", "zip")
    for path in (tmp_path / "sog", tmp_path / "sog" / "meta.json"):
        assert examined(path)[1]["facts"]["Gaussians"] == 240
    assert any("12 of 240" in note for note in examined(files / "scene_v3.spz")[1]["notes"])


def test_a_folder_that_may_not_be_read_is_told_so(refused, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    own = os.geteuid()
    os.seteuid(own or 65534)  # root may read anything
    try:
        message = refused("doctor", "--data", closed)
    finally:
        os.seteuid(own)
    assert "(permission denied)" in message


def test_what_is_not_known_is_told_what_is(refused, maps, scene, tmp_path):
    assert "does not exist" in refused("doctor", "--data", tmp_path / "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    message = refused("doctor", "--data", empty)
    assert "is empty" in message
    assert all(word in message for word in ("cameras_sphere.npz", "sparse/0", "transforms.json", "video", ".ply"))
    (tmp_path / "note.md").write_text("x")
    shutil.copytree(maps, tmp_path / "set")
    assert f"did you mean {tmp_path / 'set'}?" in refused("doctor", "--data", tmp_path)
    assert "one file" in refused("doctor", "--data", maps / "cameras_sphere.npz")
    assert "is a mesh" in refused("doctor", "--data", write_mesh_file(tmp_path / "a.obj"))
    (empty / "run.json").write_text("{}")
    assert "fieldwatch health" in refused("doctor", "--data", empty)


def write_mesh_file(path):
    path.write_text("v 0 0 0\n")
    return path


def test_missing_kernels_are_a_warning_with_the_reason(monkeypatch):
    monkeypatch.setattr(kernels, "native_available", lambda: (False, "no C compiler"))
    monkeypatch.setattr(kernels, "native_note", lambda: "the native kernels are not used (no C compiler)")
    check = kernels.check_kernels()
    (finding,) = check.findings
    assert (finding.name, finding.severity) == ("kernels", "warning")
    assert "no C compiler" in finding.message
    assert check.facts["native_kernels_reason"] == "no C compiler"


@pytest.mark.parametrize(
    ("visible", "cuda", "driver", "said"),
    [
        (None, "13.0", "535.183.01", "needs driver 580 or newer"),
        (None, None, "580.65.06", "CUDA build of torch"),
        ("0", "13.0", "580.65.06", "CUDA_VISIBLE_DEVICES"),
    ],
    ids=["old driver", "build for the CPU", "container"],
)
def test_a_gpu_that_auto_does_not_use_is_announced(monkeypatch, visible, cuda, driver, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.version.cuda", cuda)
    (note,) = unused_gpu([object()], driver)
    assert said in note
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert unused_gpu([object()], driver) == ()


def test_without_a_gpu_nothing_is_announced(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert unused_gpu([], None) == ()
