"""``fieldwatch mesh evaluate`` against files, the built-in scene, and what a run's cameras see."""

import json

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.mesh import Triangles, implicit_surface, read_mesh, write_mesh


@pytest.fixture(scope="module")
def balls(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meshes")
    mesh = implicit_surface(lambda p: np.linalg.norm(p, axis=1) - 1, np.full(3, -1.2), np.full(3, 1.2), resolution=24)
    write_mesh(folder / "truth.ply", mesh)
    write_mesh(folder / "large.ply", Triangles(vertices=1.1 * mesh.vertices, faces=mesh.faces))
    return folder


def test_a_larger_ball_and_its_files(answer, balls, tmp_path):
    words = ("mesh", "evaluate", balls / "large.ply", "--gt", balls / "truth.ply", "--samples", 3000)
    found = answer(*words, "--threshold", 0.05, 0.12, "--out", tmp_path)
    assert found["chamfer"] == pytest.approx(0.1, rel=0.01)
    assert [score["f_score"] for score in found["scores"]] == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "large_error.ply", "large_errors.png", "large_evaluation.json",
    ]  # fmt: skip
    assert read_mesh(tmp_path / "large_error.ply").colors is not None
    with Image.open(tmp_path / "large_errors.png") as picture:
        assert picture.size == (960, 660)
    stored = json.loads((tmp_path / "large_evaluation.json").read_text())
    assert stored["chamfer"] == found["chamfer"]


def test_the_table_says_what_was_found(fieldwatch, balls, tmp_path):
    words = ("mesh", "evaluate", balls / "large.ply", "--gt", balls / "truth.ply", "--samples", 1000)
    code, out, _ = fieldwatch(*words, "--align", "icp", "--out", tmp_path)
    assert code == 0
    assert "F-score" in out
    assert "scale 0.909" in out
    assert str(tmp_path / "large_errors.png") in out.replace("\n", "")


def test_the_built_in_scene_is_its_own_truth(answer, trained_splats, balls, tmp_path):
    words = ("mesh", "evaluate", balls / "truth.ply", "--gt", "built-in", "--resolution", 32, "--samples", 500)
    found = answer(*words, "--visible-from", trained_splats, "--style", "diligent", "--out", tmp_path)
    assert found["diameter"] == pytest.approx(4.6, abs=0.2)
    assert found["visible_from"] == str(trained_splats)
    assert found["points"]["truth"] > 500


def test_bad_input_is_refused(refused, balls, tmp_path):
    mesh = balls / "truth.ply"
    assert "does not exist" in refused("mesh", "evaluate", mesh, "--gt", tmp_path / "none.ply")
    assert "no cameras" in refused("mesh", "evaluate", mesh, "--gt", mesh, "--style", "diligent")
    assert "at least 1, got 0" in refused("mesh", "evaluate", mesh, "--gt", mesh, "--samples", 0)
    assert "thresholds must be" in refused("mesh", "evaluate", mesh, "--gt", mesh, "--threshold", -1)
    assert "run" in refused("mesh", "evaluate", mesh, "--gt", mesh, "--visible-from", tmp_path)
