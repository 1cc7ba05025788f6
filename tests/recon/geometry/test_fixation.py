"""The ball that all cameras look at."""

import math

import pytest
import torch

from fieldwatch.recon.geometry import Camera, look_at, ring, seen_from_all_sides, target_ball

LENS = {"width": 64, "height": 48, "fx": 80.0, "fy": 80.0, "cx": 32.0, "cy": 24.0}


def cameras(poses, **changes):
    return [Camera(name=str(i), world_from_camera=pose, **(LENS | changes)) for i, pose in enumerate(poses)]


def test_a_ring_around_an_object_shares_the_ball_that_touches_its_frustums():
    ball = target_ball(cameras(ring(8, radius=3.0, height=1.0, target=(5.0, 1.0, 0.0))))
    assert ball is not None
    torch.testing.assert_close(ball.center, torch.tensor([5.0, 1.0, 0.0], dtype=torch.float64), atol=1e-5, rtol=0)
    # The narrower side of the image is its height: sine of half the vertical field of view, times the distance.
    assert ball.radius == pytest.approx(math.hypot(3.0, 1.0) * math.sin(math.atan(24 / 80)), rel=1e-5)


def test_a_principal_point_off_the_middle_makes_the_ball_smaller():
    ball = target_ball(cameras(ring(8, radius=3.0, height=0.0), cy=8.0))
    assert ball is not None
    assert ball.radius == pytest.approx(3.0 * math.sin(math.atan(8 / 80)), rel=1e-5)


def test_a_few_close_cameras_do_not_shrink_the_ball():
    poses = [*ring(12, radius=3.0, height=0.0), *ring(3, radius=0.6, height=0.1)]
    ball = target_ball(cameras(poses))
    assert ball is not None
    assert ball.radius == pytest.approx(3.0 * math.sin(math.atan(24 / 80)), rel=1e-5)


def test_cameras_that_look_out_of_a_room_share_nothing():
    turns = [(math.cos(a), math.sin(a)) for a in range(12)]
    poses = [look_at((0.3 * x, 0.3 * y, 0.0), (3 * x, 3 * y, 0.1)) for x, y in turns]
    assert target_ball(cameras(poses)) is None


def test_a_forward_facing_capture_goes_around_nothing():
    poses = [look_at((0.2 * math.cos(a), 0.0, 0.2 * math.sin(a)), (0.0, 8.0, 0.0)) for a in range(12)]
    assert target_ball(cameras(poses)) is None


def test_cameras_in_a_row_look_at_nothing_in_common():
    poses = [look_at((float(i), 0.0, 0.0), (float(i), 1.0, 0.0)) for i in range(8)]
    assert target_ball(cameras(poses)) is None


def test_cameras_on_all_sides_hide_none_and_cameras_above_hide_the_underside():
    rings = [(2.0, -2.0), (3.0, 0.0), (2.0, 2.0)]
    around = [pose for radius, height in rings for pose in ring(8, radius=radius, height=height)]
    center = torch.zeros(3, dtype=torch.float64)
    assert seen_from_all_sides(cameras(around), center)
    assert not seen_from_all_sides(cameras(around[8:]), center)
    # From below the ring, the same cameras are above: which sides are hidden depends on the place.
    assert not seen_from_all_sides(cameras(around), torch.tensor([0.0, 0.0, -9.0], dtype=torch.float64))
