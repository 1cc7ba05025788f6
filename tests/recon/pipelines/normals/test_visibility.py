"""Visibility of a point on a sphere, and of one behind another sphere."""

import torch

from fieldwatch.recon.pipelines.normals.visibility import ITERATIONS, OFFSET, visible

RADIUS = 0.4


def ball(points):
    return points.norm(dim=-1) - RADIUS


def two_balls(points):
    """One around the origin, and a smaller one above it."""
    return torch.minimum(ball(points), (points - torch.tensor([0.0, 0.0, 0.7])).norm(dim=-1) - 0.15)


def on_sphere(count):
    points = torch.randn(count, 3)
    return RADIUS * points / points.norm(dim=-1, keepdim=True)


def test_a_ball_is_seen_from_where_its_horizon_lets_it():
    """A camera at c sees the point x of a sphere around the origin where <x, c> > radius^2."""
    points = on_sphere(500)
    cameras = torch.tensor([0.0, 0.0, 4.0]).expand_as(points)
    angle = (points @ torch.tensor([0.0, 0.0, 4.0]) - RADIUS**2) / (4 * RADIUS)  # sine above the horizon, about
    seen = visible(ball, points, cameras)
    assert bool(seen[angle > 0.2].all())
    assert not bool(seen[angle < -0.05].any())


def test_what_lies_between_hides_it():
    points = torch.tensor([[0.0, 0.0, RADIUS], [0.0, 0.0, RADIUS]])
    cameras = torch.tensor([[0.0, 0.0, 4.0], [4.0, 0.0, 3.0]])
    assert visible(ball, points, cameras).tolist() == [True, True]
    assert visible(two_balls, points, cameras).tolist() == [False, True]


def test_every_point_has_a_camera_of_its_own():
    points = torch.tensor([[0.0, 0.0, RADIUS], [0.0, 0.0, -RADIUS]])
    above = torch.tensor([0.0, 0.0, 4.0])
    below = torch.tensor([0.0, 0.0, -4.0])
    assert visible(ball, points, torch.stack([above, below])).tolist() == [True, True]
    assert visible(ball, points, torch.stack([below, above])).tolist() == [False, False]


def test_a_point_a_little_below_the_surface_is_not_hidden_by_itself():
    points = (RADIUS - 0.5 * OFFSET) / RADIUS * torch.tensor([[0.0, 0.0, RADIUS]])
    cameras = torch.tensor([[0.0, 0.0, 4.0]])
    assert visible(ball, points, cameras).item()
    assert not visible(ball, points, cameras, offset=1e-3).item()


def test_a_camera_within_the_sphere_is_reached():
    points = torch.tensor([[0.0, 0.0, RADIUS]])
    cameras = torch.tensor([[0.0, 0.0, 0.5]])
    assert visible(two_balls, points, cameras).item()


def test_the_field_is_asked_within_its_sphere_a_bounded_number_of_times_and_not_at_all_for_nothing():
    asked = []

    def slow(points):
        assert float(points.norm(dim=-1).max()) < 1
        asked.append(len(points))
        return torch.full((len(points),), 2e-4)  # creeps

    points = on_sphere(5)
    assert not bool(visible(slow, points, 4 * points / RADIUS).any())
    assert asked == [5] * (ITERATIONS + 1)
    asked.clear()
    assert visible(slow, points[:0], points[:0]).shape == (0,)
    assert asked == []


def test_no_gradient_flows():
    points = on_sphere(3).requires_grad_()
    assert not visible(ball, points, 4 * points).requires_grad
