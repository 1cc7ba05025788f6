"""``fieldwatch mesh quality`` on files that it is given."""

import json

import numpy as np
import pytest
import torch

from fieldwatch.recon.data import GaussianCloud, write_gaussian_ply
from fieldwatch.recon.mesh import Triangles, implicit_surface, write_mesh


@pytest.fixture(scope="module")
def ball(tmp_path_factory):
    """A closed ball of even triangles, and the same cut open."""
    folder = tmp_path_factory.mktemp("meshes")
    mesh = implicit_surface(lambda p: np.linalg.norm(p, axis=1) - 1, np.full(3, -1.2), np.full(3, 1.2), resolution=16)
    write_mesh(folder / "ball.ply", mesh)
    write_mesh(folder / "half.obj", mesh.chosen(mesh.corners.mean(1)[:, 2] > 0))
    return folder


def gaussians(path, centers):
    count = len(centers)
    cloud = GaussianCloud(
        means=torch.tensor(centers, dtype=torch.float32), log_scales=torch.full((count, 3), -3.0),
        quaternions=torch.tensor([[1.0, 0, 0, 0]]).repeat(count, 1), opacity_logits=torch.zeros(count),
        constant=torch.zeros(count, 3), rest=torch.zeros(count, 0, 3),
    )  # fmt: skip
    write_gaussian_ply(path, cloud)
    return path


def test_the_table_has_every_group_and_the_grade(fieldwatch, ball, tmp_path):
    centers = gaussians(tmp_path / "g.ply", [[0, 0, 0], [0.5, 0, 0], [2, 0, 0]])
    code, out, _ = fieldwatch("mesh", "quality", ball / "ball.ply", "--gaussians", centers)
    assert all(group in out for group in ("Topology", "Quality", "Geometry", "Surface", "GaussianFit"))
    assert "is_watertight" in out
    assert "0.66667" in out
    assert code == (0 if "GOOD" in out or "EXCELLENT" in out else 1)
    assert str(ball / "ball.ply") in out


def test_an_open_mesh_is_graded_as_asked(fieldwatch, ball):
    code, out, _ = fieldwatch("mesh", "quality", ball / "half.obj", "--json")
    found = json.loads(out)
    assert code == 1
    assert found["quality"]["is_watertight"] is False
    assert any("have one face" in reason for reason in found["grade"]["reasons"])
    _, out, _ = fieldwatch("mesh", "quality", ball / "half.obj", "--open", "--json")
    assert json.loads(out)["grade"]["score"] > found["grade"]["score"]


def test_coverage_of_an_open_mesh_is_none(fieldwatch, ball, tmp_path):
    centers = gaussians(tmp_path / "g.ply", [[0, 0, 2.0]])
    _, out, _ = fieldwatch("mesh", "quality", ball / "half.obj", "--gaussians", centers, "--json")
    metrics = json.loads(out)["metrics"]
    assert metrics["Mesh/GaussianFit/coverage"] is None
    assert metrics["Mesh/GaussianFit/max_distance"] == pytest.approx(1, abs=0.02)
    _, out, _ = fieldwatch("mesh", "quality", ball / "half.obj", "--gaussians", centers)
    assert "is not closed" in out


def test_a_missing_file_is_bad_input(refused, tmp_path):
    assert "does not exist" in refused("mesh", "quality", tmp_path / "none.ply")


def test_a_bad_mesh_ends_with_one(fieldwatch, tmp_path):
    sliver = Triangles(vertices=np.array([[0.0, 0, 0], [1, 0, 0], [2, 1e-9, 0]]), faces=np.array([[0, 1, 2]]))
    code, out, _ = fieldwatch("mesh", "quality", write_mesh(tmp_path / "a.ply", sliver))
    assert code == 1
    assert "POOR" in out
