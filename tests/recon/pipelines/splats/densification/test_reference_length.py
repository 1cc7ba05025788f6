"""Reference lengths: sizes are measured relative to the distance from the cameras."""

import torch

from fieldwatch.recon.geometry import look_at, rigid
from fieldwatch.recon.pipelines.splats import Gaussians
from fieldwatch.recon.pipelines.splats.densification import DensificationThresholds, densify, reference_lengths
from fieldwatch.recon.render import DensificationStatistics, View


def view_at(position, target):
    pose = torch.linalg.inv(look_at(position, target)).float()
    return View(camera_from_world=pose, fx=50, fy=50, cx=20, cy=20, width=40, height=40)


CLOSE_TOGETHER = [view_at((0.01 * i, 0.0, 0.0), (0.0, 10.0, 0.0)) for i in range(-3, 4)]


def test_it_is_the_distance_to_the_nearest_camera_that_looks_there_and_the_extent_at_least():
    views = [view_at((0.0, 0.0, 0.0), (0.0, 10.0, 0.0)), view_at((0.0, 30.0, 0.0), (0.0, 40.0, 0.0))]
    positions = torch.tensor([[0.0, 10.0, 0.0], [0.0, 31.0, 0.0], [0.0, 29.0, 0.0], [0.0, -5.0, 0.0], [0.0, 0.1, 0.0]])
    torch.testing.assert_close(reference_lengths(positions, views, 2.0), torch.tensor([10.0, 2.0, 29.0, 2.0, 2.0]))


def test_around_an_object_it_is_what_it_was():
    """3DGS's rule applies if cameras surround an object."""
    positions = [(3.0, 0.0, 1.0), (0.0, 3.0, 1.0), (-3.0, 0.0, 1.0), (0.0, -3.0, 1.0)]
    views = [view_at(position, (0.0, 0.0, 0.0)) for position in positions]
    points = 0.5 * torch.randn(100, 3, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    assert bool((reference_lengths(points, views, 3.3) < 3.7).all())
    torch.testing.assert_close(reference_lengths(points / 10, views, 3.3), torch.full((100,), 3.3))


def test_nothing_depends_on_how_many_are_measured_at_once(monkeypatch):
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 20
    whole = reference_lengths(points, CLOSE_TOGETHER, 0.1)
    monkeypatch.setattr("fieldwatch.recon.pipelines.splats.densification.reference_length._PAIRS_AT_ONCE", 20)
    torch.testing.assert_close(reference_lengths(points, CLOSE_TOGETHER, 0.1), whole)
    assert len(reference_lengths(points[:0], CLOSE_TOGETHER, 0.1)) == 0


def test_a_far_wall_is_kept_and_what_fills_the_picture_goes():
    """Discs of 2 and 30 degrees, near and far, in front of cameras whose extent is a thousandth of the depth."""
    means = torch.tensor([[0.0, 10.0, 0.0], [0.0, 10.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    sizes = torch.tensor([0.35, 5.0, 0.035, 0.5])
    gaussians = Gaussians.from_points(means, torch.rand(4, 3), degree=0, opacity=0.9, spacing=sizes)
    thresholds = DensificationThresholds(large_after=0)
    record = densify(
        gaussians,
        DensificationStatistics(4),
        thresholds,
        step=0,
        reference_length=reference_lengths(gaussians.means, CLOSE_TOGETHER, 0.03),
    )
    assert (record.pruned, record.too_large) == (2, 2)
    torch.testing.assert_close(gaussians.scales[:, 0], torch.tensor([0.35, 0.035]))


def test_none_goes_for_its_size_where_that_is_not_asked_for():
    thresholds = DensificationThresholds(largest_scale=None, large_after=0)
    gaussians = Gaussians.from_points(torch.rand(2, 3), torch.rand(2, 3), degree=0, spacing=torch.tensor([90.0, 0.1]))
    record = densify(gaussians, DensificationStatistics(2), thresholds, step=0, reference_length=1.0)
    assert record.pruned == 0


def test_cameras_turn_with_the_world():
    turn = rigid(
        torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([5.0, 1.0, 2.0])
    ).float()
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(1)) * 8
    turned = points @ turn[:3, :3].T + turn[:3, 3]
    inverse = torch.linalg.inv(turn)
    views = [
        View(camera_from_world=v.camera_from_world @ inverse, fx=50, fy=50, cx=20, cy=20, width=40, height=40)
        for v in CLOSE_TOGETHER
    ]
    expected = reference_lengths(points, CLOSE_TOGETHER, 0.1)
    torch.testing.assert_close(reference_lengths(turned, views, 0.1), expected, atol=1e-4, rtol=1e-4)
