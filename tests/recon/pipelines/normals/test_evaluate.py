"""Metrics of an evaluation against the known values of a ball."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import Similarity, exponential
from fieldwatch.recon.pipelines.normals.evaluate import WORST, evaluate_surface, pose_errors, smooth_errors
from fieldwatch.recon.pipelines.normals.evaluation_tags import EVALUATION_METRICS
from fieldwatch.recon.pipelines.normals.pose_accuracy import PoseErrors, rotation_angles
from fieldwatch.recon.pipelines.normals.view_errors import angle_statistics, angles_between

TURN = exponential(torch.tensor([[0.3, -0.2, 0.5]], dtype=torch.float64))[0]
CHANGE = Similarity(scale=1.3, rotation=TURN, translation=torch.tensor([0.1, -0.05, 0.02], dtype=torch.float64))


@pytest.fixture(scope="module", autouse=True)
def few_points():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fieldwatch.recon.pipelines.normals.evaluate.SAMPLES", 4000)
        yield


@pytest.fixture(scope="module")
def found(ball):
    config = ball.config(held_out=4)
    scene = ball.scene(config, size=32)
    sights = []
    return evaluate_surface(ball.model(config, scene), scene, config, on_view=sights.append), sights


def test_a_right_field_has_no_error(found):
    evaluation, _ = found
    metrics = evaluation.metrics
    assert metrics["Eval/mae"] < 0.7
    assert metrics["Eval/mae_held_out"] < 0.7
    assert metrics["Eval/below_5"] > 0.99
    assert metrics["Eval/missed"] < 0.02
    assert metrics["Eval/iou"] > 0.98
    assert metrics["Eval/depth_error"] < 2e-3
    assert metrics["Eval/depth_error_permille"] == pytest.approx(1000 * metrics["Eval/depth_error"] / 3**0.5, rel=1e-2)
    assert evaluation.score == metrics["Eval/mae"]


def test_the_mesh_is_measured_against_the_truth(found):
    metrics = found[0].metrics
    assert metrics["Eval/watertight"] == 1
    assert metrics["Eval/chamfer_percent"] < 0.2
    assert metrics["Eval/f_score"] > 0.99
    assert metrics["Eval/mesh_vertices"] == len(found[0].surface.mesh.vertices)


def test_views_are_split_and_poses_of_the_data_have_no_error(found):
    evaluation, sights = found
    assert [row.split for row in evaluation.rows] == ["train"] * 3 + ["held_out"]
    assert [sight.number for sight in sights] == [1, 2, 3, 0]
    assert evaluation.poses is None
    assert not any("pose" in name or "world" in name for name in evaluation.metrics)
    assert len(evaluation.strips) == 4


def test_means_are_over_pixels_and_every_tag_is_declared(found):
    evaluation, sights = found
    angles = torch.cat([s.angles[s.angles.isfinite()] for s in sights if s.error.split == "train"]).double()
    assert evaluation.metrics["Eval/mae"] == pytest.approx(float(angles.mean()))
    rows = evaluation.rows[:3]
    weighted = sum(row.mae * row.pixels for row in rows) / sum(row.pixels for row in rows)
    assert evaluation.metrics["Eval/mae"] == pytest.approx(weighted, rel=1e-5)
    assert set(evaluation.metrics) <= {metric.name for metric in EVALUATION_METRICS}


def test_noise_averages_out_of_smooth_errors_and_a_turned_map_does_not(found):
    sight = found[1][0]
    exact = sight.view.normals
    noise = 0.2 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))
    turned = exact @ exponential(torch.tensor([[0.0, 0.0, 0.1]], dtype=torch.float64))[0].to(exact)
    noisy = torch.nn.functional.normalize(exact + noise, dim=-1)
    left = {}
    for name, normals in {"exact": exact, "noisy": noisy, "turned": turned}.items():
        changed = replace(sight, view=replace(sight.view, normals=normals))
        left[name] = float(smooth_errors(changed).median())
    both = sight.angles.isfinite()
    wanted = torch.rad2deg((turned - exact).norm(dim=-1)[both].median())
    assert left["exact"] < 0.7
    assert left["noisy"] < 4  # of 16 degrees
    assert left["turned"] == pytest.approx(float(wanted), rel=0.2)


def test_a_smaller_ball_misses_pixels_that_no_angle_is_taken_at(ball):
    config = ball.config()
    scene = ball.scene(config, size=32)
    model = ball.model(config, scene, ((0.0, 0.0, 0.0), 0.4))
    metrics = evaluate_surface(model, scene, config, resolution=0).metrics
    assert metrics["Eval/missed"] == pytest.approx(1 - 0.4**2 / 0.5**2, abs=0.04)
    assert metrics["Eval/iou"] == pytest.approx(0.4**2 / 0.5**2, abs=0.04)
    assert "Eval/mesh_faces" not in metrics


def test_nothing_seen_is_the_worst_score(ball):
    config = ball.config()
    scene = ball.scene(config)
    model = ball.model(config, scene, ((0.0, 0.0, 0.0), -0.3))
    evaluation = evaluate_surface(model, scene, config)
    assert evaluation.score == WORST
    assert "Eval/mae" not in evaluation.metrics
    assert evaluation.metrics["Eval/missed"] == 1
    assert evaluation.metrics["Eval/mesh_faces"] == 0
    assert evaluation.surface.empty
    assert evaluation.against_truth is None


def test_poses_that_differ_by_a_similarity_have_no_error(ball):
    """Rotating, scaling and shifting the whole scene with its field changes no image and no evaluation."""
    config = ball.config(held_out=4, poses=ball.learned)
    back = CHANGE.inverse()
    scene = ball.scene(config, size=32, start=back.apply_to_pose)
    place = tuple(back.apply(torch.zeros(1, 3, dtype=torch.float64))[0].tolist())
    radius = 0.5 / 1.3
    metrics = evaluate_surface(ball.model(config, scene, (place, radius)), scene, config).metrics
    assert metrics["Eval/pose_rotation_max"] < 1e-3
    assert metrics["Eval/pose_position_max"] < 1e-5
    assert metrics["Eval/mae_world"] == pytest.approx(metrics["Eval/mae"], abs=1e-2)
    assert metrics["Eval/mae_held_out"] < 0.8
    assert metrics["Eval/chamfer_percent"] < 0.3  # cells are 1.3 times as large now


def test_a_wrong_rotation_shows_in_the_world_and_not_in_the_picture(ball):
    """Cameras that roll about their axes stay in place and still see a ball."""
    config = ball.config(poses=ball.learned)
    roll = torch.eye(4, dtype=torch.float64)
    roll[:3, :3] = exponential(torch.tensor([[0.0, 0.0, np.radians(10)]], dtype=torch.float64))[0]
    scene = ball.scene(config, size=32, start=lambda known: known @ roll)
    model = ball.model(config, scene)
    metrics = evaluate_surface(model, scene, config, resolution=0).metrics
    assert metrics["Eval/pose_rotation"] == pytest.approx(10, abs=1e-3)
    assert metrics["Eval/pose_position"] < 1e-6
    assert metrics["Eval/mae_world"] > metrics["Eval/mae"] - 1e-6
    assert pose_errors(model, scene).rotations.shape == (4,)


def test_pose_errors_of_one_camera_that_moved():
    poses = torch.eye(4, dtype=torch.float64).repeat(40, 1, 1)
    angle = torch.arange(40, dtype=torch.float64)
    poses[:, :3, 3] = torch.stack([4 * angle.cos(), 4 * angle.sin(), angle % 3], 1)
    moved = poses.clone()
    moved[7, 2, 3] += 0.1
    moved[7, :3, :3] = exponential(torch.tensor([[0.0, np.radians(5), 0.0]], dtype=torch.float64))[0]
    errors = PoseErrors.of(moved, poses)
    assert float(errors.rotations[7]) == pytest.approx(5, abs=0.2)
    assert float(errors.positions[7]) == pytest.approx(0.1, abs=0.02)
    assert float(errors.positions.median()) < 0.01


def test_two_cameras_fix_no_similarity():
    with pytest.raises(ValueError, match="similarity"):
        PoseErrors.of(torch.eye(4).repeat(2, 1, 1), torch.eye(4).repeat(2, 1, 1))


@pytest.mark.parametrize("degrees", [0.0, 1e-4, 1.0, 90.0, 179.0])
def test_angles_are_exact_for_small_ones_too(degrees):
    turn = exponential(torch.tensor([[np.radians(degrees), 0.0, 0.0]], dtype=torch.float64))
    assert float(rotation_angles(turn, torch.eye(3, dtype=torch.float64)[None])[0]) == pytest.approx(degrees, abs=1e-9)
    up = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    assert float(angles_between(up @ turn[0].T, up)[0]) == pytest.approx(degrees, abs=1e-9)


def test_figures_of_angles():
    assert angle_statistics(torch.tensor([1.0, 2.0, 6.0, 31.0])) == {
        "mae": 10.0,
        "median": 2.0,
        "below_5": 0.5,
        "below_11_25": 0.75,
    }
    assert angle_statistics(torch.empty(0)) == {}


def test_depth_is_compared_after_one_scale_per_view(ball):
    config = ball.config()
    scene = ball.scene(config, size=32)
    views = tuple(replace(view, depth=view.depth * (2.0 + i)) for i, view in enumerate(scene.maps.views))
    scaled = replace(scene, maps=replace(scene.maps, views=views))
    model = ball.model(config, scene)
    one, other = (
        evaluate_surface(model, each, config, resolution=0).metrics["Eval/depth_error"] for each in (scene, scaled)
    )
    assert other == pytest.approx(one, rel=1e-3)
