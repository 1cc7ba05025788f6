"""Crossings of rays with level sets, against Gaussians whose density is known in closed form."""

import math

import torch

from fieldwatch.recon.losses import Ellipsoids
from fieldwatch.recon.pipelines.splats.meshing.crossings import level_crossings

ROUND = torch.tensor([[1.0, 0.0, 0.0, 0.0]])


def gaussians(means, scales, opacities, quaternions=None) -> Ellipsoids:
    count = len(means)
    return Ellipsoids(
        means=torch.tensor(means, dtype=torch.float32),
        scales=torch.tensor(scales, dtype=torch.float32),
        quaternions=ROUND.repeat(count, 1) if quaternions is None else torch.tensor(quaternions),
        opacities=torch.tensor(opacities, dtype=torch.float32),
    )


def cross(origins, directions, shapes, levels, neighbors=None):
    rays = len(origins)
    table = torch.arange(len(shapes.means))[None].repeat(len(shapes.means), 1) if neighbors is None else neighbors
    towards = torch.nn.functional.normalize(torch.tensor(directions, dtype=torch.float32), dim=-1)
    places = torch.tensor(origins, dtype=torch.float32)
    return level_crossings(places, towards, torch.zeros(rays, dtype=torch.int64), table, shapes, levels)


def test_ball_is_met_where_its_density_is_the_level() -> None:
    shapes = gaussians([[0.0, 0.0, 0.0]], [[0.2, 0.2, 0.2]], [0.9])
    levels = (0.1, 0.3, 0.5)
    for level, crossing in zip(levels, cross([[0.05, 0.0, 0.0]], [[0, 0, 1]], shapes, levels), strict=True):
        radius = 0.2 * math.sqrt(2 * math.log(0.9 / level))
        wanted = torch.tensor([[0.05, 0.0, -math.sqrt(radius**2 - 0.05**2)]])
        assert crossing.found.all()
        torch.testing.assert_close(crossing.points, wanted, atol=1e-3, rtol=0)
        torch.testing.assert_close(crossing.normals, crossing.points / crossing.points.norm(), atol=1e-4, rtol=0)


def test_ray_that_stays_below_the_level_has_no_crossing() -> None:
    shapes = gaussians([[0.0, 0.0, 0.0]], [[0.2, 0.2, 0.2]], [0.9])
    beside = 1.01 * 0.2 * math.sqrt(2 * math.log(3))
    passing, through = cross([[beside, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 1]], shapes, (0.3,))[0].found
    assert not passing
    assert through


def test_ray_that_begins_above_the_level_has_no_crossing() -> None:
    inside = gaussians([[0, 0, 0], [0, 0, -0.6]], [[0.2, 0.2, 0.2], [0.5, 0.5, 0.5]], [0.9, 0.9])
    assert not cross([[0, 0, 0]], [[0, 0, 1]], inside, (0.3,))[0].found.any()


def test_disc_thinner_than_the_samples_lie_apart_is_met() -> None:
    """A slanted disc: the sample distance of 0.3 standard deviations is 600 times its thickness."""
    half = math.radians(30)
    turned = [[math.cos(half), math.sin(half), 0.0, 0.0]]  # by 60 degrees around x: normal (0, -sin 60, cos 60)
    shapes = gaussians([[0, 0, 0]], [[0.3, 0.3, 1e-4]], [0.95], turned)
    crossing = cross([[0.05, 0.02, 0.02 * math.tan(2 * half)]], [[0, 0, 1]], shapes, (0.3,))[0]
    normal = torch.tensor([[0.0, math.sin(2 * half), -math.cos(2 * half)]])
    assert crossing.found.all()
    assert abs(float((crossing.points * normal).sum())) < 5e-4
    torch.testing.assert_close(crossing.normals, normal, atol=1e-3, rtol=0)


def test_normal_points_to_the_camera_where_the_ray_enters() -> None:
    generator = torch.Generator().manual_seed(3)
    places = torch.rand(40, 3, generator=generator) - 0.5
    shapes = gaussians(places.tolist(), [[0.15, 0.1, 0.05]] * 40, [0.8] * 40)
    directions = torch.nn.functional.normalize(torch.randn(40, 3, generator=generator), dim=-1)
    table = torch.arange(40)[None].repeat(40, 1)
    found = level_crossings(places, directions, torch.arange(40), table, shapes, (0.6,))[0]
    assert int(found.found.sum()) > 3
    assert ((found.normals * directions).sum(-1)[found.found] < 1e-3).all()


def test_density_is_the_level_at_every_crossing() -> None:
    generator = torch.Generator().manual_seed(5)
    places = (torch.rand(60, 3, generator=generator) - 0.5) * 0.6
    shapes = gaussians(places.tolist(), [[0.1, 0.07, 0.03]] * 60, [0.7] * 60)
    table = torch.arange(60)[None].repeat(60, 1)
    directions = torch.nn.functional.normalize(torch.randn(60, 3, generator=generator), dim=-1)
    for level, found in zip((0.2, 0.5), level_crossings(
        places, directions, torch.arange(60), table, shapes, (0.2, 0.5)
    ), strict=True):  # fmt: skip
        points = found.points[found.found].double()
        offsets = (points[:, None] - shapes.means.double()) / shapes.scales.double()
        density = (shapes.opacities.double() * (-0.5 * offsets.square().sum(-1)).exp()).sum(1)
        assert len(points) > 5
        torch.testing.assert_close(density, torch.full_like(density, level), atol=0.02, rtol=0)
