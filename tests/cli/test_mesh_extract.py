"""fieldwatch mesh extract: the words of the original, the files, one message per bad input, and no half files."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fieldwatch.recon.commands.mesh.pictures import write_still_and_film
from fieldwatch.recon.commands.splats import mesh_extract
from fieldwatch.recon.mesh import Triangles, read_mesh, write_mesh
from fieldwatch.recon.pipelines.splats import Gaussians, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.start import start_run

ROOT = Path(__file__).parents[2]
CONFIG = SplatsConfig(views=8, held_out=0, device="cpu", schedule_scale=0.001)
COARSE = "--resolution 40 --points 12000".split()
QUICK = (*COARSE, "--no-pictures")


@pytest.fixture(scope="module")
def opaque(tmp_path_factory) -> Path:
    """A run that stopped after two steps, with opaque Gaussians on the points of the built-in scene."""
    folder = tmp_path_factory.mktemp("extracted") / "run"
    scene = prepare_scene(CONFIG)
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1, opacity=0.9)
    with start_run(CONFIG, scene, folder, sinks=()) as run:
        run.track(**SplatModel(gaussians, scene.background).checkpoint_items())
        run.resume()
        for _ in run.steps(2):
            run.save_after_step({"psnr": 1.0})
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-l 0.5", "--surface-level 0.5"),
        ("-l=0.5", "--surface-level 0.5"),
        ("--surface_level 0.1 0.5", "--surface-level 0.1 0.5"),
        ("-v 5000", "--vertices 5000"),
        ("--n_vertices_in_mesh=5000", "--vertices 5000"),
        ("--center_bbox False", "--no-centered"),
        ("--center_bbox=false", "--no-centered"),
        ("--center_bbox True", "--centered"),
        ("--project_mesh_on_surface_points True", "--snap"),
        ("--project_mesh_on_surface_points=False", "--no-snap"),
        ("--project_mesh_on_surface_points", "--snap"),
        ("--bboxmin (-1,-2,-3) --bboxmax (1,2,3.5)", "--bbox -1 -2 -3 1 2 3.5"),
        ("-b=(-1,-2,-3) -B=(1,2,3.5)", "--bbox -1 -2 -3 1 2 3.5"),
        ("--bboxmax [1,2,3.5] --bboxmin -1,-2,-3 --trim 0", "--trim 0 --bbox -1 -2 -3 1 2 3.5"),
    ],
)
def test_words_of_the_original_mean_the_same(theirs, ours):
    assert mesh_extract.parse(["run", *theirs.split()]) == mesh_extract.parse(["run", *ours.split()])


def test_words_of_the_original_change_what_they_say():
    options = mesh_extract.parse("run -l 0.5 -v 700 --center_bbox False -b (0,0,0) -B (1,1,1)".split()).extraction
    assert (options.surface_level, options.vertices, options.centered) == ((0.5,), 700, False)
    assert options.bbox == ((0, 0, 0), (1, 1, 1))
    assert options.snap


def test_corner_with_spaces_is_one_word():
    options = mesh_extract.parse(["run", "--bboxmin", "(-1, -2, -3)", "--bboxmax", "(1, 2, 3)"]).extraction
    assert options.bbox == ((-1, -2, -3), (1, 2, 3))


def test_every_level_gives_a_mesh_its_facts_and_an_answer(opaque, answer, tmp_path):
    out = tmp_path / "meshes"
    got = answer("mesh", "extract", opaque, *QUICK, "--surface-level", 0.2, 0.5, "--out", out)
    assert names(out) == {"level0.2.ply", "level0.2.json", "level0.5.ply", "level0.5.json"}
    assert {Path(place).name for place in got["files"].values()} == names(out)
    assert (got["step"], got["views"], got["method"]) == (2, 8, "poisson")
    for name in ("level0.2", "level0.5"):
        mesh = read_mesh(got["files"][name])
        facts = json.loads(Path(got["files"][f"{name} facts"]).read_text())
        assert got["quality"][name]["n_faces"] == len(mesh.faces) == facts["quality"]["n_faces"]
        assert facts["meshes"][name] == {"vertices": len(mesh.vertices), "triangles": len(mesh.faces)}
        assert facts["options"]["surface_level"] == [0.2, 0.5]
        assert facts["grade"]["reasons"]
        assert 1000 < facts["points"][name] <= 12_008


def test_pictures_stand_beside_the_mesh(opaque, fieldwatch, tmp_path, monkeypatch):
    monkeypatch.setattr(
        mesh_extract, "write_still_and_film", partial(write_still_and_film, size=32, seconds=0.2)
    )  # only smaller
    code, out, _ = fieldwatch("mesh", "extract", opaque, *COARSE, "--method", "tsdf", "--out", tmp_path)
    assert code == 0
    assert names(tmp_path) == {"tsdf.ply", "tsdf.json", "tsdf_still.png", "tsdf_turntable.mp4"}
    assert "watertight" in out
    assert str(tmp_path / "tsdf.ply") in out


def test_second_extraction_takes_the_place_of_the_first(opaque, answer, tmp_path):
    first = answer("mesh", "extract", opaque, *QUICK, "--out", tmp_path)["quality"]["level0.3"]["n_faces"]
    second = answer("mesh", "extract", opaque, *QUICK, "--out", tmp_path, "--triangles", 900)
    assert names(tmp_path) == {"level0.3.ply", "level0.3.json"}
    assert len(read_mesh(tmp_path / "level0.3.ply").faces) == second["quality"]["level0.3"]["n_faces"] <= 900 < first
    assert json.loads((tmp_path / "level0.3.json").read_text())["options"]["triangles"] == 900


def test_transparent_gaussians_are_one_message(splats, fieldwatch):
    code, _, message = fieldwatch("mesh", "extract", splats, *QUICK)
    assert code == 2
    assert "greater than 0.5" in message
    assert "Traceback" not in message
    assert not (splats / "mesh").exists()


def test_place_where_nothing_can_be_written_is_said_before_any_work(opaque, refused, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    before = names(opaque)
    assert f"cannot write into {taken}" in refused("mesh", "extract", opaque, *QUICK, "--out", taken / "meshes")
    assert taken.read_text() == "a file"
    assert names(opaque) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--bboxmin (0,0,0)", "--bboxmin is given without the other corner: give --bboxmin and --bboxmax, or --bbox"),
        ("--bboxmax=(0,0,0)", "--bboxmax is given without the other corner"),
        ("--bboxmin (0,0) --bboxmax (1,1,1)", "--bboxmin must be three numbers"),
        ("--bboxmax", "--bboxmax must be three numbers"),
        ("--bboxmin (1,0,0) --bboxmax (0,1,1)", "--bbox must have low < high"),
        ("-l 1.5", "--surface-level must hold densities"),
        ("--checkpoint 7", "7"),
        ("--checkpoint newest", "--checkpoint 'newest' is not known: expected best, last, or the number"),
    ],
)
def test_bad_input_is_one_message_and_nothing_is_written(opaque, refused, words, message):
    before = names(opaque)
    assert message in refused("mesh", "extract", opaque, *QUICK, *words.split())
    assert names(opaque) == before


def test_open3d_is_refused_with_the_methods_that_exist(opaque, fieldwatch):
    code, _, message = fieldwatch("mesh", "extract", opaque, *QUICK, "--method", "open3d")
    assert code == 2
    text = " ".join(message.replace("\u2502", " ").split())
    assert "invalid choice 'open3d' for argument '--method'" in text
    assert "Expected one of ('poisson', 'tsdf', 'density')" in text


def test_only_splats_runs_are_opened(trained, refused, tmp_path):
    assert "holds no run" in refused("mesh", "extract", tmp_path, *QUICK)
    assert "opens splats runs" in refused("mesh", "extract", trained, *QUICK)
    assert not (trained / "mesh").exists()


def test_interrupted_extraction_leaves_no_half_file(opaque, tmp_path):
    """Ctrl-C in the middle: the mesh of an earlier extraction stays as it was."""
    out = tmp_path / "meshes"
    old = write_mesh(out / "level0.3.ply", Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2]])))
    line = ("mesh", "extract", opaque, "--out", out, "--points", 8_000_000, "--resolution", 64, "--no-pictures")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "fieldwatch", *map(str, line)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    shown = b""
    deadline = time.monotonic() + 60
    while b"surface points" not in shown and process.poll() is None and time.monotonic() < deadline:
        shown += process.stdout.read() or b""
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    process.stdout.close()
    assert b"surface points" in shown
    assert process.returncode in {130, -signal.SIGINT}  # a shell calls both 130
    assert names(out) == {"level0.3.ply"}
    assert len(read_mesh(old).faces) == 1
