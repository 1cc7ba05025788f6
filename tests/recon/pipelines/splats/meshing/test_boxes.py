"""Foreground and background boxes."""

import numpy as np
import pytest
import torch

from fieldwatch.recon.geometry import Camera, camera_extent, look_at, ring, target_ball
from fieldwatch.recon.pipelines.splats.meshing.boxes import background_box, find_foreground

TARGET = np.array([5.0, 1.0, 0.0])
NOTHING = np.zeros((0, 3))


def cameras(poses=None):
    poses = ring(8, radius=3.0, height=1.0, target=tuple(TARGET)) if poses is None else poses
    lens = {"width": 64, "height": 64, "fx": 80.0, "fy": 80.0, "cx": 32.0, "cy": 32.0}
    return [Camera(name=str(i), world_from_camera=pose, **lens) for i, pose in enumerate(poses)]


def cloud(middle, half, count=4000):
    return middle + np.random.default_rng(0).uniform(-1, 1, (count, 3)) * half


def test_the_object_is_what_half_of_the_cameras_have_in_their_image():
    thing = cloud(TARGET, [0.4, 0.3, 0.5])
    # A wall behind the object: in the images of the cameras on the other side alone.
    wall = cloud(np.add(TARGET, [6.0, 0, 0]), [0.1, 3.0, 2.0])
    found = find_foreground(cameras(), np.concatenate([thing, wall]))
    assert found.kind == "object"
    np.testing.assert_allclose(found.box.low, thing.min(0), atol=0.06)
    np.testing.assert_allclose(found.box.high, thing.max(0), atol=0.06)
    assert (found.box.low < thing.min(0)).all()
    assert (found.box.high > thing.max(0)).all()


def test_what_is_far_from_the_object_is_left_out_though_all_cameras_see_it():
    """A bed that reaches from the object to beyond the cameras, seen from above."""
    high = cameras(ring(8, radius=1.5, height=3.0, target=tuple(TARGET)))
    ball = target_ball(high)
    assert ball is not None
    thing = cloud(TARGET, [0.4, 0.3, 0.5])
    below = cloud(np.add(TARGET, [0.0, 0.0, -3.5 * ball.radius]), [0.2, 0.2, 0.05])
    found = find_foreground(high, np.concatenate([thing, below]))
    assert found.kind == "object"
    assert found.box.contains(thing).mean() > 0.99
    assert not found.box.contains(below).any()


@pytest.mark.parametrize("count", [0, 99])
def test_without_an_object_in_the_middle_all_that_is_seen_counts(count):
    wall = cloud(np.add(TARGET, [6.0, 0, 0]), [0.1, 3.0, 2.0])
    found = find_foreground(cameras(), np.concatenate([wall, cloud(TARGET, [0.1, 0.1, 0.1], count)]))
    assert found.kind == "seen"
    assert found.box.contains(wall).mean() > 0.95


def test_a_room_is_all_that_its_cameras_see():
    turns = [(np.cos(a), np.sin(a)) for a in range(12)]
    walls = np.concatenate([cloud(np.array([4.0 * x, 4.0 * y, 0]), [0.2, 0.2, 1.0], 500) for x, y in turns])
    stray = np.array([[300.0, 0, 0]])
    found = find_foreground(
        cameras([look_at((0.3 * x, 0.3 * y, 0.0), (4 * x, 4 * y, 0.0)) for x, y in turns]),
        np.concatenate([walls, stray]),
    )
    assert found.kind == "seen"
    assert found.box.contains(walls).mean() > 0.95
    assert found.box.high[0] < 6


def test_cameras_in_a_row_get_the_scene_before_them():
    """Their extent says nothing about how far away the scene is."""
    forward = look_at((0.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    poses = []
    for i in range(8):
        pose = forward.clone()
        pose[:3, 3] = torch.tensor([0.1 * i, 0.0, 0.0])
        poses.append(pose)
    wall = cloud(np.array([0.0, 9.0, 0.0]), [3.0, 0.1, 3.0])
    found = find_foreground(cameras(poses), wall)
    assert found.kind == "seen"
    assert found.box.contains(wall).mean() > 0.95


def test_box_may_be_around_the_origin():
    found = find_foreground(cameras(), NOTHING, centered=False)
    np.testing.assert_allclose(found.box.middle, [0, 0, 0])
    np.testing.assert_allclose(found.box.high - found.box.low, 2 * camera_extent(cameras()))
    assert found.kind == "origin"


def test_given_box_is_taken_as_it_is():
    """SuGaR shifts even a given box to the mean camera position."""
    found = find_foreground(cameras(), NOTHING, ((-1.0, -2.0, -3.0), (1.0, 2.0, 3.0)))
    np.testing.assert_array_equal(found.box.low, [-1, -2, -3])
    np.testing.assert_array_equal(found.box.contains(np.array([[0.0, 0, 2.9], [0, 0, 3.1]])), [True, False])
    assert found.kind == "given"


def test_without_points_the_box_holds_nothing():
    found = find_foreground(cameras(), NOTHING)
    assert not found.box.contains(cloud(np.zeros(3), 1.0)).any()


def test_background_reaches_four_extents():
    box = find_foreground(cameras(), NOTHING, centered=False).box
    wide = background_box(cameras(), box)
    np.testing.assert_allclose((wide.high - wide.low) / (box.high - box.low), 4)
