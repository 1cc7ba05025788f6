"""Alignment of two point sets."""

import pytest
import torch

from fieldwatch.recon.geometry import Similarity, align_points, look_at, quaternion_to_matrix


def drawn(scale=2.5):
    turn = quaternion_to_matrix(torch.randn(4, dtype=torch.float64))
    return Similarity(scale=scale, rotation=turn, translation=torch.randn(3, dtype=torch.float64))


def test_it_is_found_again():
    truth = drawn()
    points = torch.randn(20, 3, dtype=torch.float64)
    found = align_points(points, truth.apply(points))
    assert found.scale == pytest.approx(truth.scale)
    assert torch.allclose(found.rotation, truth.rotation)
    assert torch.allclose(found.translation, truth.translation)


def test_a_mirror_image_gets_a_rotation_all_the_same():
    points = torch.randn(20, 3, dtype=torch.float64)
    found = align_points(points, points * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64))
    assert float(torch.linalg.det(found.rotation)) == pytest.approx(1)


def test_no_other_similarity_is_nearer_to_noisy_points():
    truth = drawn()
    points = torch.randn(40, 3, dtype=torch.float64)
    target = truth.apply(points) + 0.3 * torch.randn(40, 3, dtype=torch.float64)
    found = align_points(points, target)
    error = (found.apply(points) - target).square().sum()
    for _ in range(50):
        turn = quaternion_to_matrix(torch.tensor([1.0, 0, 0, 0]).double() + 0.02 * torch.randn(4, dtype=torch.float64))
        near = Similarity(
            scale=found.scale * float(1 + 0.02 * torch.randn(())),
            rotation=turn @ found.rotation,
            translation=found.translation + 0.02 * torch.randn(3, dtype=torch.float64),
        )
        assert (near.apply(points) - target).square().sum() > error


def test_points_of_weight_zero_do_not_count():
    truth = drawn()
    points = torch.randn(10, 3, dtype=torch.float64)
    target = truth.apply(points)
    target[0] += 100
    weights = torch.ones(10, dtype=torch.float64)
    weights[0] = 0
    assert align_points(points, target, weights=weights).scale == pytest.approx(truth.scale)


def test_without_scale_it_is_rigid():
    points = torch.randn(10, 3, dtype=torch.float64)
    assert align_points(points, 3 * points, with_scale=False).scale == 1


def test_the_way_back_undoes_it():
    truth = drawn()
    points = torch.randn(10, 3, dtype=torch.float64)
    assert torch.allclose(truth.inverse().apply(truth.apply(points)), points)


def test_poses_move_along_and_stay_rigid():
    truth = drawn()
    pose = look_at((1.0, 2.0, 3.0), (0.0, 0.0, 0.0))
    moved = truth.apply_to_pose(pose)
    ahead = pose[:3, 3] + pose[:3, 2]
    assert torch.allclose(truth.apply(ahead), moved[:3, 3] + truth.scale * moved[:3, 2])
    assert torch.allclose(moved[:3, :3] @ moved[:3, :3].T, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("points", [torch.eye(3)[:2], torch.ones(9, 3), torch.zeros(4, 3)])
def test_too_few_points_are_refused(points):
    with pytest.raises(ValueError, match=r"\d points with variance"):
        align_points(points, points)
