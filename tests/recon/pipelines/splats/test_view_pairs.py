"""Neighbors of a view: cameras that see the same points from another position."""

import torch

from fieldwatch.recon.geometry import Camera, look_at, ring
from fieldwatch.recon.pipelines.splats.view_pairs import neighboring_views

LENS = {"width": 40, "height": 30, "fx": 40.0, "fy": 40.0, "cx": 20.0, "cy": 15.0}
POINTS = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * 0.2


def camera(pose, name="camera"):
    return Camera(name=name, world_from_camera=pose, **LENS)


def around(count):
    return [camera(pose, f"{i}") for i, pose in enumerate(ring(count, radius=2.0, height=0.0))]


def test_on_a_ring_neighbors_stand_some_ten_degrees_apart():
    found = neighboring_views(around(72), POINTS, 2.0, count=4)  # every 5 degrees
    for number, best in enumerate(found):
        apart = sorted(min((number - other) % 72, (other - number) % 72) for other in best)
        assert apart == [2, 2, 3, 3]


def test_cameras_that_look_elsewhere_or_from_the_same_place_are_no_neighbors():
    first = camera(look_at((0, -2, 0), (0, 0, 0)))
    beside = camera(look_at((0.4, -2, 0), (0, 0, 0)))
    same = camera(look_at((0, -2, 0), (0.05, 0, 0)))
    away = camera(look_at((0.4, -2, 0), (5, -2, 0)))
    opposite = camera(look_at((0, 2, 0), (0, 0, 0)))
    found = neighboring_views([first, beside, same, away, opposite], POINTS, 2.0)
    assert found[0] == (1,)
    assert found[3] == found[4] == ()


def test_without_points_the_size_of_the_scene_is_the_depth():
    apart = [camera(look_at((x, -2, 0), (x, 0, 0))) for x in (0.0, 0.4)]
    nothing = torch.zeros(0, 3)
    assert neighboring_views(apart, nothing, 2.0) == ((1,), (0,))
    # From far away, the baseline is too short.
    assert neighboring_views(apart, nothing, 2000.0) == ((), ())


def test_a_single_camera_has_no_neighbor():
    assert neighboring_views(around(1), POINTS, 2.0) == ((),)
