"""fieldwatch data render-normals: a set that reads back healthy, its record, what is replaced, bad input."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import check_normal_maps
from fieldwatch.recon.data.normal_maps import read_normal_maps
from fieldwatch.recon.mesh import Triangles, read_mesh, write_mesh

COMMAND = ("data", "render-normals")
SMALL = ("--views", "6", "--size", "32")


def lengthy_ball():
    """An ellipsoid of rings of vertices, 6 x 4 x 2 around (10, 20, 30)."""
    around, above = np.meshgrid(np.arange(24) * np.pi / 12, (np.arange(11) - 5) * np.pi / 12)
    ring = np.stack([np.cos(around) * np.cos(above), np.sin(around) * np.cos(above), np.sin(above)], -1).reshape(-1, 3)
    places = np.concatenate([ring, [[0, 0, -1], [0, 0, 1]]])
    faces = []
    for i in range(24):
        j = (i + 1) % 24
        faces += [(264, j, i), (265, 240 + i, 240 + j)]
        for low in range(0, 240, 24):
            faces += [(low + i, low + j, low + 24 + j), (low + i, low + 24 + j, low + 24 + i)]
    return Triangles(vertices=places * [3, 2, 1] + [10, 20, 30], faces=np.array(faces))


@pytest.fixture(scope="module")
def solid():
    return lengthy_ball()


@pytest.fixture
def mesh(solid, tmp_path):
    (tmp_path / "in").mkdir()
    return write_mesh(tmp_path / "in" / "ball.ply", solid)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "sets" / "ball"


def test_a_set_reads_back_healthy_with_its_mesh_in_the_world(answer, solid, mesh, out):
    told = answer(*COMMAND, mesh, "--out", out, *SMALL)
    read = read_normal_maps(out)
    assert check_normal_maps(read) == ()
    assert (len(read), set(read.sizes)) == (6, {(32, 32)})
    assert read.world_from_unit.diagonal().tolist() == pytest.approx([3 / 0.8] * 3 + [1])
    assert read.world_from_unit[:3, 3].tolist() == pytest.approx([10, 20, 30])
    truth = read_mesh(read.mesh)
    assert np.array_equal(truth.vertices, solid.vertices)
    assert np.array_equal(truth.faces, solid.faces)
    assert sorted(told["files"]) == sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    assert [path.name for path in out.parent.iterdir()] == ["ball"]
    # every masked pixel's place lies on the ellipsoid, but for how far its faces lie below it
    for view in read.views:
        unit = view.camera.unproject(view.depth.double())[view.mask]
        places = (unit * read.scale + read.world_from_unit[:3, 3]).numpy()
        level = np.square((places - [10, 20, 30]) / [3, 2, 1]).sum(1)
        assert level.max() < 1 + 1e-5
        assert level.min() > 0.96


def test_the_record_says_how_it_was_made(answer, mesh, out):
    told = answer(*COMMAND, mesh, "-o", out, *SMALL, "--shading", "flat", "--elevations", "30", "0", "-30")
    record = json.loads((out / "render.json").read_text())
    assert {key: told[key] for key in record} == record
    assert record["command"].startswith(f"fieldwatch data render-normals {mesh} -o {out}")
    assert (record["mesh"], len(record["mesh_sha256"])) == (str(mesh), 64)
    assert (record["shading"], record["views"], record["size"]) == ("flat", 6, 32)
    assert (record["elevations"], record["distance"]) == ([30, 0, -30], 4.0)
    assert record["facing_away_share"] == 0
    assert 2 < record["smooth_to_flat_degrees"] < 10
    heights = [float(camera.position[2]) for camera in read_normal_maps(out).cameras]
    assert heights == pytest.approx([2, 0, -2, 2, 0, -2], abs=1e-9)


def test_people_are_told_what_was_made_and_where(fieldwatch, mesh, out):
    code, text, _ = fieldwatch(*COMMAND, mesh, "--out", out, *SMALL)
    assert code == 0
    for part in ("528 triangles", "6 of 32 x 32 pixels", "flat normals differ by", "of the pixels in the masks"):
        assert part in text
    assert str(out / "preview.png") in text
    sheet = np.asarray(Image.open(out / "preview.png")).astype(float)
    assert sheet.shape == (2 * 260 + 4, 3 * 260 + 4, 3)
    # in the middle of the first view the normal faces the camera, a little upwards: blue, and green above half
    assert sheet[132, 132, 2] > 200
    assert sheet[132, 132, 0] == pytest.approx(128, abs=30)


def test_up_turns_the_ring(answer, mesh, out):
    answer(*COMMAND, mesh, "--out", out, *SMALL, "--up", "0", "2", "0")
    for number, camera in enumerate(read_normal_maps(out).cameras):
        height = math.sin(math.radians(-25 if number % 2 else 25))
        assert float(camera.position[1]) == pytest.approx(4 * height, abs=1e-9)
        across, down, _ = camera.world_from_camera[1, :3].tolist()
        assert across == pytest.approx(0, abs=1e-9)
        assert down < -0.9


def test_noise_and_format(answer, mesh, tmp_path):
    folders = [tmp_path / name for name in "abcd"]
    for folder, noise, seed in zip(folders, (0, 5, 5, 5), (1, 1, 1, 2), strict=True):
        line = (mesh, "--out", folder, "--views", "2", "--size", "32", "--noise", noise, "--seed", seed)
        assert answer(*COMMAND, *line, "--format", "npy", "--depth", "none")["noise"] == noise
    truth, *drawn = (read_normal_maps(folder).views[0] for folder in folders)
    assert (folders[0] / "normal_camera_space_GT" / "000.npy").is_file()
    assert truth.depth is None
    cosine = (truth.normals * drawn[0].normals).sum(-1)[truth.mask].clamp(-1, 1)
    assert 4 < float(cosine.acos().rad2deg().mean()) < 9
    assert torch.equal(drawn[0].normals, drawn[1].normals)
    assert not torch.equal(drawn[0].normals, drawn[2].normals)


def test_depth_may_be_integrated_from_the_normals(answer, mesh, tmp_path):
    exact, made = (tmp_path / name for name in ("exact", "integrated"))
    for folder in (exact, made):
        answer(*COMMAND, mesh, "--out", folder, "--views", "1", "--size", "32", "--depth", folder.name)
    truth, own = (read_normal_maps(folder).views[0] for folder in (exact, made))
    ratio = (own.depth / truth.depth)[truth.mask]
    off = (ratio / ratio.median() - 1).abs()
    assert 0 < float(off.median()) < 0.005  # at the rim, edge on, it is worse


def test_a_folder_that_holds_something_is_refused_and_only_own_files_are_replaced(answer, refused, mesh, out):
    answer(*COMMAND, mesh, "--out", out, *SMALL)
    (out / "thoughts.txt").write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "holds cameras_sphere.npz, integration, mask" in refused(*COMMAND, mesh, "--out", out, *SMALL)
    (out / "mask" / "mine.png").write_bytes(b"")
    told = refused(*COMMAND, mesh, "--out", out, *SMALL, "--overwrite")
    assert "mask/mine.png among" in told
    assert "(1 such files)" in told
    (out / "mask" / "mine.png").unlink()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    answer(*COMMAND, mesh, "--out", out, "--views", "4", "--size", "24", "--overwrite")
    assert (out / "thoughts.txt").read_text() == "mine"
    assert len(list((out / "mask").iterdir())) == len(read_normal_maps(out)) == 4


def test_overwriting_what_this_command_did_not_write_is_refused(refused, mesh, out):
    out.mkdir(parents=True)
    (out / "render.json").write_text('{"kind": "of another program", "files": ["render.json"]}')
    assert "no render.json of this command" in refused(*COMMAND, mesh, "--out", out, "--overwrite")
    assert [path.name for path in out.iterdir()] == ["render.json"]
    assert "is a file" in refused(*COMMAND, mesh, "--out", out / "render.json", "--overwrite")


def test_files_outside_of_the_folder_are_never_replaced(answer, mesh, out, tmp_path):
    answer(*COMMAND, mesh, "--out", out, *SMALL)
    (tmp_path / "precious").write_text("mine")
    record = json.loads((out / "render.json").read_text())
    record["files"] += ["../../precious", str(tmp_path / "precious")]
    (out / "render.json").write_text(json.dumps(record))
    answer(*COMMAND, mesh, "--out", out, *SMALL, "--overwrite")
    assert (tmp_path / "precious").read_text() == "mine"


def test_an_empty_folder_is_used(answer, mesh, out):
    out.mkdir(parents=True)
    answer(*COMMAND, mesh, "--out", out, *SMALL)
    assert len(read_normal_maps(out)) == 6


def test_a_mesh_inside_out_is_turned_and_written_turned(answer, solid, out, tmp_path):
    wrong = write_mesh(tmp_path / "wrong.ply", solid.turned())
    told = answer(*COMMAND, wrong, "--out", out, *SMALL)
    assert "inside out" in told["notes"][0]
    assert told["facing_away_share"] < 0.02
    assert read_mesh(out / "mesh_Gt.ply").outward is True


def test_an_open_mesh_wound_inwards_is_refused(refused, solid, out, tmp_path):
    shell = solid.chosen(solid.corners[..., 2].max(1) < 30.5).turned()
    wrong = write_mesh(tmp_path / "shell.ply", shell)
    assert "mesh is open" in refused(*COMMAND, wrong, "--out", out, *SMALL)
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--views 0", "--views 0 --size 256: expected at least one view"),
        ("--views 9999 --size 4096", "at most 134,217,728 pixels in all"),
        ("--distance 1", "--distance must be greater than 1 (the unit sphere), as in 4, got 1"),
        ("--distance nan", "got nan"),
        ("--elevations 90", "between -90 and 90, as in 25 -25, got 90"),
        ("--elevations 20 nan", "got 20 nan"),
        ("--up 0 0 0", "--up must be a direction, as in 0 0 1 for +z, got 0.0 0.0 0.0"),
        ("--fill 1.5", "--fill must be greater than 0 and at most 1, as in 0.8, got 1.5"),
        ("--noise -1", "less than 90 degrees, as in 5, got -1"),
        ("--seed -1", "--seed must be 0 or more, got -1"),
    ],
)
def test_wishes_that_make_no_sense_are_refused_and_nothing_is_written(refused, mesh, out, words, message):
    assert message in refused(*COMMAND, mesh, "--out", out, *words.split())
    assert not out.parent.exists()


def test_an_object_between_the_rays_is_told(refused, mesh, out):
    told = refused(*COMMAND, mesh, "--out", out, "--views", "2", "--size", "2", "--fill", "0.01")
    assert "views 000, 001" in told
    assert not out.parent.exists()


def test_a_mesh_that_is_none_is_refused(refused, tmp_path, out):
    assert "none.obj does not exist" in refused(*COMMAND, tmp_path / "none.obj", "--out", out)
    (tmp_path / "bare.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\n")
    assert "face" in refused(*COMMAND, tmp_path / "bare.obj", "--out", out)
    (tmp_path / "flat.obj").write_text("v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n")
    assert "the 1 faces" in refused(*COMMAND, tmp_path / "flat.obj", "--out", out)
    assert not out.parent.exists()


def test_what_the_check_of_the_set_finds_is_told(fieldwatch, mesh, tmp_path):
    small = ("--views", "3", "--size", "32", "--depth", "none")
    code, text, _ = fieldwatch(*COMMAND, mesh, "--out", tmp_path / "a", *small, "--noise", "10")
    assert code == 0
    assert "warning  noise: " in text
    assert "before the noise" in text
    code, text, _ = fieldwatch(*COMMAND, mesh, "--out", tmp_path / "b", *small, "--noise", "60")
    assert code == 1
    assert "error  axes: no choice" in text
    assert (tmp_path / "b" / "render.json").is_file()


def test_spot_is_healthy_and_its_conventions_differ_as_they_do(answer, real_data, out):
    spot = real_data / "meshes" / "spot" / "spot_triangulated.obj"
    told = answer(*COMMAND, spot, "--out", out, "--views", "6", "--size", "48", "--up", "0", "1", "0")
    assert told["notes"] == told["checks"] == []
    assert told["smooth_to_flat_degrees"] == pytest.approx(4.65, abs=0.15)
    assert 0 < told["facing_away_share"] < 0.005
    assert check_normal_maps(read_normal_maps(out)) == ()
