"""Foreground and background boxes."""

import numpy as np
import torch

from fieldwatch.recon.geometry import Camera, camera_extent, look_at, ring
from fieldwatch.recon.pipelines.splats.meshing.boxes import background_box, foreground_box


def cameras(target=(5.0, 1.0, 0.0)):
    poses = ring(8, radius=3.0, height=1.0, target=target)
    lens = {"width": 64, "height": 64, "fx": 80.0, "fy": 80.0, "cx": 32.0, "cy": 32.0}
    return [Camera(name=str(i), world_from_camera=pose, **lens) for i, pose in enumerate(poses)]


def test_box_is_around_what_the_cameras_look_at() -> None:
    box = foreground_box(cameras())
    np.testing.assert_allclose(box.middle, [5.0, 1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(box.high - box.low, 2 * camera_extent(cameras()))


def test_box_may_be_around_the_origin() -> None:
    np.testing.assert_allclose(foreground_box(cameras(), centered=False).middle, [0, 0, 0])


def test_given_box_is_taken_as_it_is() -> None:
    """SuGaR shifts even a given box to the mean camera position."""
    box = foreground_box(cameras(), ((-1.0, -2.0, -3.0), (1.0, 2.0, 3.0)))
    np.testing.assert_array_equal(box.low, [-1, -2, -3])
    np.testing.assert_array_equal(box.contains(np.array([[0.0, 0, 2.9], [0, 0, 3.1]])), [True, False])


def test_cameras_in_a_row_look_at_nothing_in_common() -> None:
    forward = look_at((0.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    row = []
    for i, camera in enumerate(cameras()):
        pose = forward.clone()
        pose[:3, 3] = torch.tensor([float(i), 0.0, 0.0])
        row.append(Camera(**{**vars(camera), "world_from_camera": pose}))
    box = foreground_box(row)
    assert box.contains(np.array([[3.5, 0.5, 0.0]])).all()


def test_background_reaches_four_extents() -> None:
    box = foreground_box(cameras())
    wide = background_box(cameras(), box)
    np.testing.assert_allclose((wide.high - wide.low) / (box.high - box.low), 4)
