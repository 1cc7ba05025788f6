"""Results of a finished run can be read back and agree with it."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.mesh import read_mesh
from fieldwatch.recon.pipelines.normals.evaluate import evaluate_surface
from fieldwatch.recon.pipelines.normals.products import upwards, write_products

SHIFT = [1.0, -2.0, 0.5]


@pytest.fixture(scope="module")
def made(ball, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fieldwatch.recon.pipelines.normals.evaluate.SAMPLES", 1000)
        patch.setattr("fieldwatch.recon.pipelines.normals.products.SIZE", 48)
        config = ball.config(held_out=4, poses=ball.learned)
        scene = ball.scene(config, size=32)
        matrix = torch.diag(torch.tensor([3.0, 3.0, 3.0, 1.0], dtype=torch.float64))
        matrix[:3, 3] = torch.tensor(SHIFT)
        scene = replace(scene, maps=replace(scene.maps, world_from_unit=matrix))
        model = ball.model(config, scene)
        folder = tmp_path_factory.mktemp("products")
        evaluation = evaluate_surface(model, scene, config)
        return (
            scene,
            evaluation,
            folder,
            write_products(config, scene, model, folder, evaluation=evaluation, seconds=0.2),
        )


def test_every_file_is_there(made):
    _, _, folder, paths = made
    names = {"mesh.ply", "mesh.glb", "mesh.png", "mesh_error.png", "turntable.mp4", "normals.png"}
    names |= {"poses.npy", "poses.json", "metrics.json", "metrics.csv"}
    assert {path.name for path in folder.iterdir()} == names == {path.name for path in paths.values()}


def test_the_mesh_is_in_the_world(made):
    mesh = read_mesh(made[3]["mesh"])
    assert mesh.closed
    assert np.allclose((mesh.vertices.min(0) + mesh.vertices.max(0)) / 2, SHIFT, atol=1e-3)
    assert np.allclose(np.ptp(mesh.vertices, axis=0), 3.0, atol=0.03)


def test_poses_are_in_both_frames(made):
    scene, _, _, paths = made
    poses = np.load(paths["poses"])
    table = json.loads(paths["poses_table"].read_text())
    assert poses.shape == (3, 4, 4)
    for place, row in enumerate(table["views"]):
        assert row["name"] == scene.maps.names[scene.train[place]]
        assert np.allclose(row["unit_from_camera"], poses[place])
        assert np.allclose(np.array(row["world_from_camera"])[:3, 3], 3 * poses[place, :3, 3] + SHIFT)
        assert row["rotation_error"] < 1e-3
    assert table["data_from_learned"]["scale"] == pytest.approx(1, abs=1e-6)


def test_figures_are_those_of_the_evaluation(made):
    _, evaluation, _, paths = made
    figures = json.loads(paths["metrics"].read_text())
    assert figures["metrics"]["Eval/mae"] == pytest.approx(evaluation.score)
    assert figures["mesh"]["chamfer_percent"] == pytest.approx(evaluation.metrics["Eval/chamfer_percent"])
    rows = list(csv.DictReader(paths["metrics_table"].read_text().splitlines()))
    assert [row["name"] for row in rows] == ["001", "002", "003", "000"]
    assert float(rows[0]["mae"]) == pytest.approx(evaluation.rows[0].mae)


def test_no_surface_leaves_the_meshes_out_and_says_so(ball, tmp_path):
    config = ball.config()
    scene = ball.scene(config)
    model = ball.model(config, scene, ((0.0, 0.0, 0.0), -0.3))
    paths = write_products(config, scene, model, tmp_path)
    assert "mesh" not in paths
    assert json.loads(paths["metrics"].read_text())["metrics"]["Eval/mesh_faces"] == 0


def test_up_is_that_of_the_cameras(made):
    assert np.allclose(np.array(upwards(made[0])) / np.linalg.norm(upwards(made[0])), [0, 0, 1], atol=1e-6)
